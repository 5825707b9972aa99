"""Many columns, or texts, as a few integers: directions that the public points set.

Products are of integers below 2^53, held in float64, so they are exact in any order.
"""

from __future__ import annotations

import math
import warnings
from functools import cached_property
from typing import Any

import numpy as np

from mapl.arrays import Array, Floats

COMPONENTS = 60  # of numbers
TEXT_COMPONENTS = 200
_MOST = 0.6  # of the variance, in the leading directions
_FINE = 2**12  # integer steps of a direction's entry of 1
_WORD_UNIT = 2**10  # of a text's vector of length 1
_MOST_WORDS = 20_000
_TERM_UNIT = 2**6  # of a word's frequency and rarity
_MOST_TIMES = 1000  # a word counts
_FARTHEST, _FINE_VALUE = 4, 32  # where numbers are clipped; integer steps of 1
_SAME_RANGE = 0.5  # share of columns with one maximum: they share a scale
_SMALL = 2**11  # of a component of public points, at most
LARGEST_COMPONENT = 2 * _SMALL


class Projection:
    """Integer directions, and a divisor that makes components small."""

    def __init__(self, directions: Floats, divisor: float) -> None:
        self.directions, self.divisor = directions, divisor

    @property
    def n_components(self) -> int:
        """How many components there are."""
        return int(self.directions.shape[1])

    @classmethod
    def of(cls, public: Any, n_components: int) -> Projection:
        """Take the leading directions of public points, sparse or dense."""
        most = max(1, min(n_components, public.shape[0] // 5, public.shape[1] - 1))
        directions = np.rint(_leading(public, most) * _FINE)
        shown = np.abs(np.asarray(public @ directions)).max(initial=1.0)
        return cls(directions, 2.0 ** max(0, math.ceil(math.log2(shown / _SMALL))))

    def __call__(self, values: Any) -> Floats:
        """Return the components of some records, clipped."""
        found = np.rint(np.asarray(values @ self.directions) / self.divisor)
        return np.clip(found, -LARGEST_COMPONENT, LARGEST_COMPONENT)


def _leading(public: Any, n: int) -> Floats:
    """Return the directions in which public points have most."""
    if hasattr(public, "tocsr"):
        from sklearn.utils.extmath import randomized_svd

        found = randomized_svd(public.astype(np.float64), n, random_state=0)
        return np.asarray(found[2].T)
    centred = public - public.mean(axis=0)
    values, vectors = np.linalg.eigh(centred.T @ centred / len(public))
    return np.asarray(vectors[:, np.argsort(-values)[:n]])


class ManyNumbers:
    """Many number columns, scaled and projected."""

    def __init__(self, mean: Floats, scale: Floats, projection: Projection) -> None:
        self.mean, self.scale, self.projection = mean, scale, projection

    @property
    def n_components(self) -> int:
        """How many components there are."""
        return self.projection.n_components

    @staticmethod
    def say_most(public: Any) -> bool:
        """Whether a few directions hold most of what the columns hold, as those of
        images and of words do: else columns are better taken one by one.
        """
        if hasattr(public, "tocsr"):
            return True
        scaled = _scaled(public, *_places(public))
        values = np.linalg.eigvalsh(np.cov(scaled.T))[::-1]
        return bool(values[:COMPONENTS].sum() >= _MOST * values.sum())

    @classmethod
    def of(cls, public: Any) -> ManyNumbers:
        """Take all from public points. A sparse matrix keeps its zeros."""
        if hasattr(public, "tocsr"):
            largest = np.asarray(abs(public).max(axis=0).todense()).reshape(-1)
            mean, n_components = np.zeros(len(largest)), TEXT_COMPONENTS
            scale = np.where(np.isfinite(largest) & (largest > 0), largest, 1.0)
        else:
            mean, scale = _places(public)
            n_components = COMPONENTS
        scaled = _scaled(public, mean, scale)
        return cls(mean, scale, Projection.of(scaled, n_components))

    def __call__(self, values: Any) -> Floats:
        """Return the components of some records."""
        return self.projection(_scaled(values, self.mean, self.scale))


def _places(public: Floats) -> tuple[Floats, Floats]:
    """Return mean and scale of each column; one scale for all where they have the same
    range, as pixels do.
    """
    with np.errstate(over="ignore", invalid="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # columns without a value
        mean, scale = np.nanmean(public, axis=0), np.nanstd(public, axis=0)
        high = np.nanmax(public, axis=0)
    mean = np.where(np.isfinite(mean), mean, 0.0)
    scale = np.where(np.isfinite(scale) & (scale > 0), scale, 1.0)
    varied = high[scale != 1.0]
    if varied.size and (varied == np.median(varied)).mean() > _SAME_RANGE:
        scale = np.full_like(scale, math.sqrt(float((scale[scale != 1.0] ** 2).mean())))
    return mean, scale


def _scaled(values: Any, mean: Floats, scale: Floats) -> Any:
    """Return scaled values as integers, clipped; 0 for missing ones."""
    if hasattr(values, "tocsr"):
        matrix = values.tocsr()
        found = np.clip(matrix.data / scale[matrix.indices], -_FARTHEST, _FARTHEST)
        found = np.rint(np.nan_to_num(found) * _FINE_VALUE)
        return type(matrix)((found, matrix.indices, matrix.indptr), shape=matrix.shape)
    with np.errstate(over="ignore"):
        found = np.clip((values - mean) / scale, -_FARTHEST, _FARTHEST)
    return np.rint(np.nan_to_num(found) * _FINE_VALUE)


class Words:
    """The words of a text, weighted by how rare they are among public texts."""

    def __init__(self, vocabulary: list[str], rarity: Floats) -> None:
        self.vocabulary, self.rarity = vocabulary, rarity

    @classmethod
    def of(cls, texts: Array) -> Words:
        """Take words and pairs of words that several public texts have."""
        given = [text or "" for text in texts.tolist()]
        counter = _counter(max_features=_MOST_WORDS, min_df=2 if len(given) > 50 else 1)
        try:
            found = counter.fit_transform(given)
        except ValueError:  # no words at all
            return cls([], np.empty(0))
        in_texts = np.asarray((found > 0).sum(axis=0)).reshape(-1)
        rarity = np.log((1 + len(given)) / (1 + in_texts)) + 1
        words = sorted(counter.vocabulary_, key=counter.vocabulary_.__getitem__)
        return cls(words, np.rint(rarity * _TERM_UNIT))

    @cached_property
    def _fitted_counter(self) -> Any:
        return _counter(vocabulary=self.vocabulary)

    def __call__(self, texts: Array) -> Any:
        """Return the vectors of some texts, as a sparse matrix of integers.

        The length is of exact integers, so each entry is a function of its text alone.
        """
        from scipy.sparse import csr_matrix

        if not self.vocabulary:
            return csr_matrix((len(texts), 1))
        counts = self._fitted_counter.transform([text or "" for text in texts.tolist()])
        counts = counts.tocsr().astype(np.float64)
        counts.sort_indices()
        times = np.minimum(counts.data, _MOST_TIMES).astype(np.int64)
        values = _FREQUENCIES[times] * self.rarity[counts.indices]
        squares = csr_matrix((values**2, counts.indices, counts.indptr), counts.shape)
        length = np.sqrt(np.asarray(squares.sum(axis=1)).reshape(-1))
        each = np.repeat(np.maximum(length, 1.0), np.diff(counts.indptr))
        scaled = np.rint(values / each * _WORD_UNIT)
        return csr_matrix((scaled, counts.indices, counts.indptr), counts.shape)


# 1 + ln(times), from a table: logarithms differ between processors.
_TIMES = np.maximum(np.arange(_MOST_TIMES + 1), 1)
_FREQUENCIES = np.rint((1 + np.log(_TIMES)) * _TERM_UNIT)


def _counter(**kwargs: Any) -> Any:
    from sklearn.feature_extraction.text import CountVectorizer

    return CountVectorizer(ngram_range=(1, 2), **kwargs)
