r"""Algorithm 3, and beyond: from published answers to a published model.

All of it is post-processing of public values, hence free. A student averages over
points anyway, so it does not need a few sure labels: noisy shares of the vote on many
points tell it more for the same price. They are smoothed by two softmax regressions, on
public features and on the place of a point among all others, and what is smoothed is
the guess for the next batch of `ChargedDissent`: it begins with few points and a poor
guess, and asks for more and more as the guess gets better and dissent rarer. Which
features and penalties serve best, and how much each regression counts, is found on the
noisy shares themselves. At the end a forest looks for what they have missed, and the
smoothed shares are the soft labels of any classifier.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.pipeline import Pipeline
from sklearn.utils.metaestimators import available_if
from threadpoolctl import threadpool_limits

from mapl.labeler import Labeler
from mapl.mechanisms import ABSTAIN, ChargedDissent
from mapl.progress import Progress

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Singles = npt.NDArray[np.float32]

_START, _FEWEST = 0.02, 50  # the first batch: so much of the pool, so many points
_GROWTH = 0.6  # of what was asked: the next batch
_LEAST_DISSENT = 0.02  # of the points, taken for the price whatever it was
_NEARLY = 0.95  # of the dissents: then one last batch
_LAST = 0.25  # of what was asked; silent teachers cost less than unused dissents
_MOST_TIMES = 30  # that the pool is asked for
_CHOOSE_AT = (0.15, 0.5, 1.0)  # of the dissents: when the regression is chosen
_SPREADS = (1.0, 4.0, 16.0, 64.0)  # variance of its weights before any data
_WAVES, _FREQUENCIES = 600, (0.5, 2.0)  # random Fourier features beside the others
_LANDMARKS, _NEIGHBOURS = 10_000, 10  # of the graph of public points
_PLACES, _WALKS = 40, 10  # coordinates in it, and rounds of steps to find them
_STRAY = 0.15  # how far a point's share may lie from what the student says
_TREES, _LEAF_NOISE = 100, 0.12  # of the forest that looks for what is left
_MOST_FEATURES = 1500  # beyond, public features are projected


@dataclass(frozen=True)
class SoftLabels:
    """What the rounds of asking came to. Public.

    ``noisy`` are the averaged shares as published, ``precision`` is 1 over the variance
    of their noise; ``smooth`` is what regression makes of them: rows add up to 1.
    ``labels`` follow from both, ABSTAIN where they leave it open. For each batch,
    ``asked`` is its number of points and ``spent`` the part of the dissents used until
    then, estimated from what was published.
    """

    noisy: Floats
    precision: Floats
    smooth: Floats
    labels: Ints
    asked: list[int]
    spent: list[float]


def ask_in_rounds(
    labeler: Labeler, mechanism: ChargedDissent, features: Floats, *, seed: int = 0
) -> SoftLabels:
    """Ask in growing batches, until the dissents are nearly spent.

    How much is spent is estimated from what was published: the shares that disagreed.

    Parameters
    ----------
    labeler : Labeler
        With the mechanism open.
    mechanism : ChargedDissent
        Its public parameters are used here.
    features : ndarray, shape (n_points, n_features)
        Public features of the pool.
    seed : int
        For the order of asking, and the features.
    """
    rng = np.random.default_rng(seed)
    # Products this small lose by waiting for threads.
    with threadpool_limits(1), Progress("Asking in rounds", 100) as progress:
        return _rounds(labeler, mechanism, features, rng, progress)


def _rounds(
    labeler: Labeler,
    mechanism: ChargedDissent,
    features: Floats,
    rng: np.random.Generator,
    progress: Progress,
) -> SoftLabels:
    n, n_classes = len(features), mechanism.n_classes
    variance = (float(mechanism.sigma) / mechanism.n_teachers) ** 2
    shares, smoother = Shares(n, n_classes), Smoother(features, variance, rng)
    order = _Order(n, rng)
    guess: Ints = np.zeros(n, dtype=np.int64)
    asked: list[int] = []
    spent: list[float] = []
    disagreed, last, size = 0.0, False, max(_START * n, _FEWEST)
    price = 1 - 1 / n_classes  # of a point, in dissents: what the guess gets wrong
    while True:
        rows = order.take(size)
        answer = labeler.shares(rows, guess[rows])
        shares.add(answer)
        asked.append(len(answer.rows))
        # Noise may hide what a batch has cost; half of what it should have is sure.
        disagreed += max(answer.dissent(), price * len(answer.rows) / 2)
        total = sum(asked)
        spent.append(disagreed / mechanism.dissents)
        progress.advance(int(90 * min(spent[-1], 1)) - progress.done)
        smooth = smoother.fit(shares, spent[-1], last=last)
        if last:
            labels = decide(shares, smooth, variance).labels()
            precision = shares.asked() / max(variance, 1e-8)
            noisy = shares.mean()
            return SoftLabels(noisy, precision, smooth, labels, asked, spent)
        guess = smooth.argmax(axis=1)
        price = max(1 - float(smooth.max(axis=1).mean()), _LEAST_DISSENT)
        left = _NEARLY - spent[-1]
        last = left < 1 - _NEARLY or total > _MOST_TIMES * n
        size = max(_START * n, _GROWTH * total)
        size = _LAST * total if last else min(size, left * mechanism.dissents / price)


class Shares:
    """The noisy shares of a pool, as they come in batch after batch.

    Where a class was the guess, its share is 1 less all others, which is noisier and
    tells nothing new; with two classes it is as good as the other.
    """

    def __init__(self, n_points: int, n_classes: int) -> None:
        self.times: Ints = np.zeros((n_points, n_classes), dtype=np.int64)
        self._counted: Floats = np.zeros((n_points, n_classes))
        self._asked: Ints = np.zeros((n_points, 1), dtype=np.int64)
        self._all: Floats = np.zeros((n_points, n_classes))

    def add(self, answer: Any) -> None:
        """Take a batch in which no point comes twice."""
        counted = np.ones(answer.shares.shape, dtype=np.int64)
        if counted.shape[1] > 2:
            counted[np.arange(len(counted)), answer.guess] = 0
        self.times[answer.rows] += counted
        self._counted[answer.rows] += counted * answer.shares
        self._asked[answer.rows] += 1
        self._all[answer.rows] += answer.shares

    def counted(self) -> Floats:
        """Return the mean of the shares that were counted, 0 where none was."""
        mean: Floats = self._counted / np.maximum(self.times, 1)
        return mean

    def known(self) -> Ints:
        """Return the points that were asked for."""
        return np.flatnonzero(self._asked)

    def asked(self) -> Ints:
        """Return how often each point was asked for."""
        return self._asked[:, 0]

    def mean(self) -> Floats:
        """Return the averaged shares; even ones where nothing was asked."""
        even = np.full(self._all.shape, 1 / self._all.shape[1])
        np.divide(self._all, self._asked, out=even, where=self._asked > 0)
        return even


@dataclass(frozen=True)
class Decision:
    """For each point the likeliest label, how likely it is that most teachers gave it,
    and the share of them that is expected to have done so. Public.
    """

    likeliest: Ints
    probability: Floats
    share: Floats

    def labels(self, at_least: float = 2 / 3) -> Ints:
        """Return the labels, ABSTAIN where they are less probable than that."""
        return np.where(self.probability >= at_least, self.likeliest, ABSTAIN)


def decide(shares: Shares, smooth: Floats, variance: float) -> Decision:
    """Weigh what was published for each point with the student's opinion.

    One class has the largest share, the others have the rest in equal parts.
    Beforehand it is each class with the probability that the student gives it, and its
    share is about what the student says.

    Parameters
    ----------
    shares : Shares
        What was published.
    smooth : ndarray of shape (n_points, n_classes)
        The student's shares.
    variance : float
        Of the noise on one published share.
    """
    mean, n_classes = shares.counted(), smooth.shape[1]
    precision = shares.times / max(variance, 1e-8) / (2 if n_classes == 2 else 1)
    largest = np.linspace(max(0.3, 1 / n_classes), 1.0, 15)
    fits = []
    for share in largest:
        rest = (1 - share) / (n_classes - 1)
        off_rest, off_share = (precision * (mean - x) ** 2 for x in (rest, share))
        total = off_rest.sum(axis=1, keepdims=True)
        opinion = ((share - smooth) / _STRAY) ** 2
        fits.append(-(total - off_rest + off_share + opinion) / 2)
    log_posterior = np.array(fits) + np.log(np.maximum(smooth, 1e-6))
    log_posterior -= log_posterior.max(axis=(0, 2), keepdims=True)
    posterior = np.exp(log_posterior)
    posterior /= posterior.sum(axis=(0, 2), keepdims=True)
    of_class = posterior.sum(axis=0)
    best = of_class.argmax(axis=1)
    rows = np.arange(len(best))
    expected = np.einsum("a,anc->nc", largest, posterior)
    return Decision(best, of_class[rows, best], expected[rows, best])


class Smoother:
    """Two regressions of noisy shares on public features, and their weighted mean.

    One sees a point's features, the other its place among all public points: where
    classes form clusters, this takes far fewer answers. How much each counts is what
    predicts held-out noisy shares best.
    """

    def __init__(
        self, features: Floats, variance: float, rng: np.random.Generator
    ) -> None:
        self._by_features = _Regression(_feature_maps(features, rng))
        self._by_place = _Regression([_places(features, rng)])
        self._weight = 0.5  # of the place
        self._variance = max(variance, 1e-8)
        self._rng = rng
        self._choose_at = _CHOOSE_AT[0]

    def fit(self, shares: Shares, spent: float, *, last: bool) -> Floats:
        """Return the smoothed shares of all points."""
        rows = shares.known()
        mean, weights = shares.counted()[rows], shares.times[rows] / self._variance
        if mean.shape[1] == 2:
            weights = weights / 2  # both columns hold the same number
        if last or spent > self._choose_at:
            later = (part for part in _CHOOSE_AT if part > spent)
            self._choose_at = min(later, default=np.inf)
            self._choose(rows, weights, mean)
        first = self._by_features.fit(rows, weights, mean, last=last)
        second = self._by_place.fit(rows, weights, mean, last=last)
        return first + self._weight * (second - first)

    def _choose(self, rows: Ints, weights: Floats, mean: Floats) -> None:
        """Hold out a third of the points; take what predicts their shares best."""
        held = self._rng.random(len(rows)) < 1 / 3
        first = self._by_features.choose(rows, weights, mean, held)
        off = mean[held] - first
        apart = self._by_place.choose(rows, weights, mean, held) - first
        size = float((weights[held] * apart**2).sum())
        along = float((weights[held] * apart * off).sum())
        # Less the standard error of along, which is what noise alone would give.
        along -= math.sqrt(size)
        self._weight = min(max(along / size, 0.0), 1.0) if size else 0.0


class _Regression:
    r"""Softmax regression: minimises
    :math:`\sum_{ic} n_{ic} (s_{ic} - p_c(x_i))^2 / v + \|W\|^2/\tau^2`
    with p the softmax of the linear form Wx + b, n how often a share was published and
    v the variance of its noise. Which of the maps gives x, and :math:`\tau^2`, are
    chosen.
    """

    def __init__(self, maps: list[Singles]) -> None:
        self._maps = maps
        self._map, self._spread = 0, _SPREADS[1]
        self._weights: Floats | None = None

    def fit(self, rows: Ints, weights: Floats, mean: Floats, *, last: bool) -> Floats:
        """Return the smoothed shares of all points; the last time from the start."""
        table, start = self._maps[self._map], None if last else self._weights
        self._weights = _softmax_fit(
            *(table[rows], weights, mean),
            *(self._spread, start, 120 if last else 40),
        )
        return _softmax_shares(table, self._weights)

    def choose(
        self, rows: Ints, weights: Floats, mean: Floats, held: npt.NDArray[np.bool_]
    ) -> Floats:
        """Take the map and the penalty that predict the shares of the points held out
        best; return that prediction.
        """
        least, best, prediction = np.inf, (self._map, self._spread), mean[held]
        for number, table in enumerate(self._maps):
            fitted, before = None, np.inf
            for spread in _SPREADS:
                some = table[rows[~held]], weights[~held], mean[~held]
                fitted = _softmax_fit(*some, spread, fitted, 25)
                found = _softmax_shares(table[rows[held]], fitted)
                loss = float((weights[held] * (mean[held] - found) ** 2).sum())
                if loss < least:
                    least, best, prediction = loss, (number, spread), found
                if loss > before:
                    break
                before = loss
        if best[0] != self._map:
            self._weights = None
        self._map, self._spread = best
        return prediction


def refined(soft: SoftLabels, features: Floats, *, n_jobs: int | None = None) -> Floats:
    """Return the smoothed shares with what a forest finds in the noisy ones beside.

    Its leaves hold so many points that the noise on the mean of one is _LEAF_NOISE.
    """
    from sklearn.ensemble import ExtraTreesRegressor

    leaf = math.ceil(1 / (_LEAF_NOISE**2 * float(soft.precision.mean())))
    forest = ExtraTreesRegressor(
        _TREES, min_samples_leaf=leaf, max_features=0.5, random_state=0, n_jobs=n_jobs
    )
    forest.fit(features, soft.noisy - soft.smooth, sample_weight=soft.precision)
    forest.set_params(n_jobs=1)  # whose sum does not depend on who is ready first
    shares = np.maximum(soft.smooth + forest.predict(features), 1e-6)
    return np.asarray(shares / shares.sum(axis=1, keepdims=True))


class _Order:
    """All points in random order, and again, and again."""

    def __init__(self, n: int, rng: np.random.Generator) -> None:
        self._n, self._rng = n, rng
        self._next: Ints = np.zeros(0, dtype=np.int64)

    def take(self, size: float) -> Ints:
        """Return so many points, none of them twice."""
        size = max(1, min(int(size), self._n))
        if len(self._next) < size:
            self._next = np.append(self._next, self._rng.permutation(self._n))
        rows, self._next = np.split(self._next, [size])
        return np.unique(rows)


def _feature_maps(features: Floats, rng: np.random.Generator) -> list[Singles]:
    """Return the features, and with random Fourier features (Rahimi, Recht 2007) of
    each frequency beside; centred, with mean squared norm 1.
    """
    linear = _standardised(features)
    maps = [linear]
    for frequency in _FREQUENCIES:
        shape = linear.shape[1], _WAVES
        waves = np.sqrt(2 * frequency) * rng.normal(size=shape)
        phases = rng.uniform(0, 2 * np.pi, _WAVES)
        curved = _standardised(np.cos(linear @ waves.astype(np.float32) + phases))
        maps.append(np.hstack([linear, curved]) * np.float32(np.sqrt(0.5)))
    return maps


def _places(features: Floats, rng: np.random.Generator) -> Singles:
    """Return coordinates of the points in the graph of their nearest neighbours: where
    a random walk over it stays for long (spectral embedding, Belkin, Niyogi 2003).

    The graph has at most _LANDMARKS points; the others are placed among them.
    """
    from scipy.sparse import csr_array, diags_array
    from sklearn.neighbors import NearestNeighbors

    # Equal points would be neighbours of each other alone.
    table, equal = np.unique(_standardised(features), axis=0, return_inverse=True)
    n = len(table)
    if n < _FEWEST:
        return np.asarray(table[equal])
    marks = np.sort(rng.permutation(n)[:_LANDMARKS])
    near = NearestNeighbors(n_neighbors=_NEIGHBOURS).fit(table[marks])
    distance, index = near.kneighbors(table)
    reach = np.maximum(distance[:, -1], 1e-3)
    close = np.exp(-(distance**2) / (reach[:, None] * reach[marks][index]))
    ends = np.arange(0, close.size + 1, _NEIGHBOURS)
    shape = n, len(marks)
    ties = csr_array((close.ravel(), index.ravel(), ends), shape, dtype=np.float32)
    walk = ties[marks] + ties[marks].T
    scale = diags_array(1 / np.sqrt(walk.sum(axis=1)))
    walk = scale @ walk @ scale
    places = rng.normal(size=(len(marks), min(_PLACES, len(marks)))).astype(np.float32)
    for _ in range(_WALKS):
        for _ in range(_WALKS):
            places = walk @ places
        places = np.linalg.qr(places)[0]
    places = ties @ (scale @ places)
    norm = np.sqrt((places**2).sum(axis=1, keepdims=True))
    return _standardised((places / np.maximum(norm, 1e-30))[equal])


def _standardised(table: npt.NDArray[Any]) -> Singles:
    centred = table - table.mean(axis=0)
    norm = float(np.sqrt((centred**2).sum(axis=1).mean()))
    return np.asarray(centred / (norm or 1.0), dtype=np.float32)


def _softmax_fit(
    table: Singles,
    weights: Floats,
    target: Floats,
    spread: float,
    start: Floats | None,
    steps: int,
) -> Floats:
    """Return weights and, in the last row, biases of the regression."""
    from scipy.optimize import minimize

    d, n_classes = table.shape[1], target.shape[1]
    weights, target = weights.astype(np.float32), target.astype(np.float32)
    penalty = np.full((d + 1, 1), 1 / spread)
    penalty[d] = 0.01

    def loss(flat: Floats) -> tuple[float, Floats]:
        inner = flat.reshape(d + 1, n_classes)
        shares = _softmax_shares(table, inner)
        off = shares - target
        pull = weights * off
        slope = shares * (pull - (pull * shares).sum(axis=1, keepdims=True))
        gradient = penalty * inner
        value = (pull * off).sum(dtype=np.float64) + (gradient * inner).sum()
        gradient[:d] += (slope.T @ table).T  # twice as fast as table.T @ slope
        gradient[d] += slope.sum(axis=0, dtype=np.float64)
        return value / 2, gradient.ravel()

    begin = np.zeros((d + 1) * n_classes) if start is None else start.ravel()
    options = {"maxiter": steps, "maxcor": 15}
    found = minimize(loss, begin, jac=True, method="L-BFGS-B", options=options)
    return np.asarray(found.x.reshape(d + 1, n_classes))


def _softmax_shares(table: Singles, weights: Floats) -> Floats:
    single = weights.astype(np.float32)
    logits = table @ single[:-1] + single[-1]
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))


def is_linear(student: Any) -> bool:
    """Whether a classifier, or the end of a pipeline, is one of scikit-learn's linear
    ones.
    """
    last = student[-1] if isinstance(student, Pipeline) else student
    return any(kind.__name__ == "LinearClassifierMixin" for kind in type(last).mro())


def public_features(estimator: Any, pool: Any) -> Floats:
    """Return numbers for the public points: by the estimator's own pipeline if it has
    one that needs no labels, else by a plain one.
    """
    inner = getattr(estimator, "estimator", estimator)
    if isinstance(inner, Pipeline) and len(inner) > 1:
        try:
            return _dense(clone(inner[:-1]).fit_transform(pool))
        except (TypeError, ValueError):  # a step that wants labels, or leaves texts
            pass
    return _dense(_plain_features(pool))


def _plain_features(pool: Any) -> Any:
    from sklearn.compose import make_column_selector, make_column_transformer
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.impute import SimpleImputer
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import MaxAbsScaler, OneHotEncoder, StandardScaler

    if hasattr(pool, "tocsr"):
        return MaxAbsScaler().fit_transform(pool)
    numbers = make_pipeline(SimpleImputer(keep_empty_features=True), StandardScaler())
    if hasattr(pool, "iloc") and pool.ndim == 2:
        pool = pool.replace([np.inf, -np.inf], np.nan)
        selected = make_column_selector(dtype_include="number")
        others = make_column_selector(dtype_exclude="number")
        encoder = OneHotEncoder(handle_unknown="ignore", min_frequency=5)
        transformer = make_column_transformer((numbers, selected), (encoder, others))
        return transformer.fit_transform(pool)
    if np.ndim(pool) == 1:
        return TfidfVectorizer(sublinear_tf=True, min_df=2).fit_transform(pool)
    table = SimpleImputer(keep_empty_features=True).fit_transform(pool)
    # Two values are a code: made as wide as the others, rare ones would stand out.
    codes = [len(np.unique(column)) <= 2 for column in np.asarray(table).T]
    return np.where(codes, table, StandardScaler().fit_transform(table))


def _dense(table: Any) -> Floats:
    if hasattr(table, "toarray"):
        table = table.tocsr().astype(np.float64)
        table.data = _finite(table.data)
    else:
        table = _finite(np.asarray(table, dtype=np.float64))
    if table.shape[1] > _MOST_FEATURES:
        from sklearn.decomposition import TruncatedSVD

        n_components = min(_MOST_FEATURES // 5, table.shape[0] - 1)
        table = TruncatedSVD(n_components, random_state=0).fit_transform(table)
    return np.asarray(table.toarray() if hasattr(table, "toarray") else table)


def _finite(values: Floats) -> Floats:
    """Some learners take what is no number; neighbours and trees do not."""
    return np.clip(np.nan_to_num(values), -1e30, 1e30)


def fit_hard(student: Any, pool: Any, labels: npt.NDArray[Any]) -> Any:
    """Fit a student to labels; one that has a single label to go by always gives it."""
    if len(set(labels.tolist())) == 1:
        from sklearn.dummy import DummyClassifier

        return DummyClassifier(strategy="most_frequent").fit(pool, labels)
    return _fit(student, pool, labels)


def _fit(student: Any, pool: Any, labels: npt.NDArray[Any], **named: Any) -> Any:
    """Fit to labels; a learner that wants class numbers without gaps is given them."""
    try:
        return clone(student).fit(pool, labels, **named)
    except (TypeError, ValueError):
        return Decoded(student).fit(pool, labels, **named)


def _inner_has(name: str) -> Any:
    return lambda self: hasattr(getattr(self, "classifier_", self.classifier), name)


class Decoded(ClassifierMixin, BaseEstimator):
    """A classifier of class numbers that answers with the labels themselves."""

    def __init__(self, classifier: Any) -> None:
        self.classifier = classifier

    def fit(self, X: Any, y: npt.NDArray[Any], **named: Any) -> Decoded:
        """Fit the classifier to the labels' numbers, without gaps."""
        self.classes_, codes = np.unique(y, return_inverse=True)
        self.classifier_ = clone(self.classifier).fit(X, codes, **named)
        return self

    def predict(self, X: Any) -> npt.NDArray[Any]:
        """Return the label of each record."""
        return np.asarray(self.classes_[np.asarray(self.classifier_.predict(X))])

    @available_if(_inner_has("predict_proba"))
    def predict_proba(self, X: Any) -> Floats:
        """Return the probability of each label."""
        return np.asarray(self.classifier_.predict_proba(X))

    @available_if(_inner_has("decision_function"))
    def decision_function(self, X: Any) -> Floats:
        """Return how sure it is of each label."""
        return np.asarray(self.classifier_.decision_function(X))


def fit_shares(
    student: Any,
    pool: Any,
    soft: SoftLabels,
    features: Floats,
    classes: npt.NDArray[Any],
    *,
    n_jobs: int | None = None,
) -> Any:
    """Fit a classifier to what was published, with all that serves one of its kind."""
    shares = soft.smooth
    if not is_linear(student):  # which could not learn what a forest finds
        shares = refined(soft, features, n_jobs=n_jobs)
    return fit_soft(student, pool, shares, classes)


def fit_soft(student: Any, pool: Any, soft: Floats, classes: npt.NDArray[Any]) -> Any:
    """Fit a classifier to soft labels: each point once a class, weighted.

    A learner that takes no weights is given the most probable class.
    """
    from sklearn.utils.validation import has_fit_parameter

    name = "sample_weight"
    last = student
    if isinstance(student, Pipeline):
        step, last = student.steps[-1]
        name = f"{step}__sample_weight"
    if not has_fit_parameter(last, "sample_weight"):
        return fit_hard(student, pool, classes[soft.argmax(axis=1)])
    # Beyond the two most probable classes shares change little but the time.
    second = np.partition(soft, -2, axis=1)[:, -2:-1]
    row, code = np.nonzero((soft >= second) & (soft >= 0.01))
    if len(np.unique(code)) == 1:
        return fit_hard(student, pool, classes[soft.argmax(axis=1)])
    from sklearn.utils import _safe_indexing

    repeated = _safe_indexing(pool, row)
    return _fit(student, repeated, classes[code], **{name: soft[row, code]})
