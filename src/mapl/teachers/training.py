"""One clone of any classifier for each chunk.

Teacher j depends on its chunk, its seed and what is public, and on nothing else. What
goes wrong inside a teacher stays inside: it has no vote, and no warning, message or
count of such teachers leaves.
"""

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.pipeline import Pipeline

from mapl.arrays import Array, Floats, Ints, n_rows
from mapl.learners import seed_names, set_seeds
from mapl.privacy.votes import NO_VOTE
from mapl.progress import Progress
from mapl.records.labels import encode_predictions
from mapl.records.table import take_rows
from mapl.teachers import linear
from mapl.teachers.known import silent_clone
from mapl.teachers.silence import seed_everything, teacher_surroundings
from mapl.teachers.stacked import fit_binary_chunks


@dataclass(frozen=True, repr=False)
class Teacher:
    """A fitted model and the class index of each label that it can give.

    ``model`` is None where the chunk had one class only: then that is the vote.
    """

    model: Any
    labels: Array
    codes: Ints

    def vote(self, features: Any) -> Ints:
        """Return a class index, or NO_VOTE, for each row."""
        if self.model is None:
            return np.full(n_rows(features), self.codes[0])
        return encode_predictions(self.model.predict(features), self.labels, self.codes)

    def probabilities(self, features: Any, n_classes: int) -> Floats:
        """Return a probability for each class and row; of a model without any, its
        votes as certain.
        """
        n = n_rows(features)
        out = np.zeros((n, n_classes))
        if self.model is None or not hasattr(self.model, "predict_proba"):
            votes = self.vote(features)
            rows = np.flatnonzero(votes != NO_VOTE)
            out[rows, votes[rows]] = 1.0
            return out
        codes = self.model_codes()
        found = np.asarray(self.model.predict_proba(features), dtype=np.float64)
        out[:, codes[codes != NO_VOTE]] = found[:, codes != NO_VOTE]
        return out

    def model_codes(self) -> Ints:
        """Return the class index of each of ``model.classes_``, in that order."""
        return encode_predictions(self.model.classes_, self.labels, self.codes)


def train(
    estimator: Any,
    features: Any,
    codes: Ints,
    chunks: list[Ints],
    *,
    labels: Array,
    random_state: int,
    numbers: Sequence[int] | None = None,
    advance: Callable[[int], None] | None = None,
) -> list[Teacher | None]:
    """Train one teacher per chunk, in this process; None where a chunk is empty or
    training failed.

    ``labels`` has the label of each class index. Learners are seeded by
    ``random_state`` and the number of the chunk: ``numbers``, else its place in the
    list. ``advance`` is called with the number of teachers done.
    """
    estimator = silent_clone(estimator)
    seeds, is_linear = seed_names(estimator), linear.can_fit(estimator)
    numbers = range(len(chunks)) if numbers is None else numbers
    teachers: dict[int, Teacher | None] = {}
    with (
        Progress("Training teachers", len(chunks)) as progress,
        teacher_surroundings(),
    ):
        done = progress.advance if advance is None else advance
        if linear.can_stack(estimator, features):
            teachers |= _train_stacked(estimator, features, codes, chunks, labels)
            done(len(teachers))
        for i, rows in enumerate(chunks):
            if i in teachers:
                continue
            fit = _Fit(estimator, is_linear, labels, seeds)
            seed_everything(random_state, numbers[i])
            chunk = take_rows(features, rows) if len(rows) else None
            teachers[i] = fit(chunk, codes[rows], (random_state, numbers[i]))
            done(1)
    return [teachers[i] for i in range(len(chunks))]


def _train_stacked(
    estimator: Any,
    features: Array,
    codes: Ints,
    chunks: list[Ints],
    labels: Array,
) -> dict[int, Teacher]:
    """Train logistic regressions on all chunks with two classes, side by side."""
    present = [np.unique(codes[rows]) for rows in chunks]
    binary = [j for j, classes in enumerate(present) if len(classes) == 2]
    mine, second = [chunks[j] for j in binary], [int(present[j][1]) for j in binary]
    teachers = {}
    for i, coef, intercept in fit_binary_chunks(
        estimator, features, codes, mine, second
    ):
        model, own = copy(estimator), present[binary[i]]
        model.coef_, model.intercept_ = coef, intercept
        model.classes_, model.n_features_in_ = labels[own], features.shape[1]
        model.n_iter_ = np.ones(1, dtype=np.int32)
        teachers[binary[i]] = Teacher(model, labels[own], own)
    return teachers


@dataclass(repr=False)
class _Fit:
    """The training of one teacher."""

    estimator: Any
    linear: bool  # fitted by `mapl.teachers.linear`
    labels: Array
    seeds: list[str]  # names of the parameters that get one

    def __call__(
        self, features: Any, codes: Ints, seed: tuple[int, int]
    ) -> Teacher | None:
        """Train on labels, then on class numbers without gaps, if a learner wants
        these.
        """
        present = np.unique(codes)
        if len(present) < 2:
            return Teacher(None, self.labels[:0], present) if len(present) else None
        local = np.searchsorted(present, codes)
        for given in (self.labels[present], np.arange(len(present))):
            try:
                model = self._blank()
                set_seeds(model, *seed, names=self.seeds)
                fit = linear.fit if self.linear else type(model).fit
                fit(model, features, given[local])
                return Teacher(model, given, present)
            except Exception:  # noqa: S112 - whatever it was, it is private
                continue
        return None

    def _blank(self) -> Any:
        """Return a clone; for a linear model, whose parameters are plain values, a copy
        does, and is quicker.
        """
        whole = self.linear and not isinstance(self.estimator, Pipeline)
        return copy(self.estimator) if whole else clone(self.estimator)
