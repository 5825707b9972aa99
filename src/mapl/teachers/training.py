"""One clone of any classifier for each chunk.

Teacher j depends on its chunk, its seed and what is public, and on nothing else. What
goes wrong inside a teacher stays inside: it has no vote, and no warning, message or
count of such teachers leaves.
"""

from collections.abc import Callable
from contextlib import suppress
from copy import copy
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import joblib
import numpy as np
from sklearn.base import clone
from sklearn.pipeline import Pipeline
from sklearn.utils import _safe_indexing

from mapl.arrays import Array, Ints, Words, n_rows
from mapl.learners import seed_names, set_seeds
from mapl.progress import Progress
from mapl.records.labels import encode_predictions
from mapl.teachers import linear
from mapl.teachers.stacked import fit_binary_chunks
from mapl.teachers.workers import no_warnings_one_thread, run_tasks


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
    n_jobs: int | None = None,
    checkpoint_dir: str | None = None,
    keys: Words | None = None,
) -> list[Teacher | None]:
    """Train one teacher per chunk; None where a chunk is empty or training failed.

    ``labels`` has the label of each class index. Learners are seeded by
    ``random_state`` and the number of the chunk. Quick teachers are trained in this
    process, whatever ``n_jobs``.
    With a private ``checkpoint_dir`` and the records' ``keys``, which name the files,
    finished teachers are kept there, so that training that was interrupted can go on;
    those that train together in a fraction of a second (`stacked`) are not.
    """
    estimator = clone(estimator)
    seeds, is_linear = seed_names(estimator), linear.can_fit(estimator)
    plain = type(features) is np.ndarray  # its own indexing is the fastest
    checkpoints = None
    if checkpoint_dir is not None and keys is not None:
        checkpoints = _Checkpoints(
            checkpoint_dir, estimator, labels, random_state, keys, codes
        )

    def make_task(j: int) -> Callable[[], Teacher | None]:
        rows = chunks[j]
        chunk: Any = None
        if len(rows):
            chunk = features[rows] if plain else _safe_indexing(features, rows)
        return _Fit(
            estimator=estimator,
            linear=is_linear,
            features=chunk,
            codes=codes[rows],
            labels=labels,
            seeds=seeds,
            seed=(random_state, j),
            path=checkpoints.path(j, rows) if checkpoints else None,
        )

    teachers: dict[int, Teacher | None] = {}
    with Progress("Training teachers", len(chunks)) as progress:
        if linear.can_stack(estimator, features):
            teachers |= _train_stacked(
                estimator, features, codes, chunks, labels, progress
            )
        rest = [j for j in range(len(chunks)) if j not in teachers]
        trained = run_tasks(
            lambda i: make_task(rest[i]), len(rest), progress, n_jobs=n_jobs
        )
        teachers |= zip(rest, trained, strict=True)
    return [teachers[j] for j in range(len(chunks))]


def _train_stacked(
    estimator: Any,
    features: Array,
    codes: Ints,
    chunks: list[Ints],
    labels: Array,
    progress: Progress,
) -> dict[int, Teacher]:
    """Train logistic regressions on all chunks with two classes, side by side."""
    present = [np.unique(codes[rows]) for rows in chunks]
    binary = [j for j, classes in enumerate(present) if len(classes) == 2]
    mine, second = [chunks[j] for j in binary], [int(present[j][1]) for j in binary]
    teachers = {}
    with no_warnings_one_thread():
        for i, coef, intercept in fit_binary_chunks(
            estimator, features, codes, mine, second
        ):
            model, own = copy(estimator), present[binary[i]]
            model.coef_, model.intercept_ = coef, intercept
            model.classes_, model.n_features_in_ = labels[own], features.shape[1]
            model.n_iter_ = np.ones(1, dtype=np.int32)
            teachers[binary[i]] = Teacher(model, labels[own], own)
            progress.advance(1)
    return teachers


class _Checkpoints:
    """Names the file of each teacher by content: of its task and its records' keys."""

    def __init__(
        self,
        folder: str,
        estimator: Any,
        labels: Array,
        random_state: int,
        keys: Words,
        codes: Ints,
    ) -> None:
        self._folder, self._keys, self._codes = Path(folder), keys, codes
        try:
            self._task = joblib.hash((estimator, labels, random_state)).encode()
        except Exception:  # a learner without a pickle has no checkpoints
            self._task = b""

    def path(self, j: int, rows: Ints) -> Path | None:
        """Return the file of teacher j."""
        if not self._task:
            return None
        records = self._keys[rows].tobytes() + self._codes[rows].tobytes()
        name = sha256(self._task + b"/%d/" % j + records).hexdigest()
        return self._folder / f"{name}.joblib"


@dataclass(repr=False)
class _Fit:
    """The training of one teacher, as a task that another process can run."""

    estimator: Any
    linear: bool  # fitted by `mapl.teachers.linear`
    features: Any
    codes: Ints
    labels: Array
    seeds: list[str]  # names of the parameters that get one
    seed: tuple[int, int]
    path: Path | None  # of its checkpoint

    def __call__(self) -> Teacher | None:
        if self.path is None:
            return self._fit()
        with suppress(Exception):  # none, or damaged: it is trained again
            return joblib.load(self.path)  # type: ignore[no-any-return]
        teacher = self._fit()
        part = self.path.with_suffix(".part")
        try:
            joblib.dump(teacher, part)
            part.replace(self.path)  # a finished file or none
        except Exception:  # no pickle, or a full disk: it will be trained again
            part.unlink(missing_ok=True)
        return teacher

    def _fit(self) -> Teacher | None:
        """Train on labels, then on class numbers without gaps, if a learner wants
        these.
        """
        present = np.unique(self.codes)
        if len(present) < 2:
            return Teacher(None, self.labels[:0], present) if len(present) else None
        local = np.searchsorted(present, self.codes)
        # Some learners want class numbers without gaps: those of this chunk.
        for given in (self.labels[present], np.arange(len(present))):
            try:
                model = self._blank()
                set_seeds(model, *self.seed, names=self.seeds)
                fit = linear.fit if self.linear else type(model).fit
                fit(model, self.features, given[local])
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
