"""One clone of any classifier per chunk, and their votes.

Everything here is private. Teacher j is a function of its chunk, its seed and what is
public; of nothing else. What goes wrong inside a teacher stays inside: it has no vote,
and no warning, message or count of such teachers leaves.
"""

from __future__ import annotations

import math
import os
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import joblib
import numpy as np
import numpy.typing as npt
from sklearn.base import clone
from sklearn.pipeline import Pipeline
from sklearn.utils import _safe_indexing, get_tags
from threadpoolctl import threadpool_limits

from mapl import linear
from mapl.errors import ParameterError
from mapl.partition import n_rows, record_digests
from mapl.progress import Progress
from mapl.votes import NO_VOTE

if TYPE_CHECKING:  # loaded when teachers are asked; workers that train do without it
    from mapl.trees import Ensemble, Trees

Ints = npt.NDArray[np.int64]
Predictions = npt.NDArray[np.integer[Any]]

_BLOCK_CELLS = 1 << 24  # cells of the public data that are asked in one go
_TASK_SECONDS = 1.0  # work handed to another process in one go
_TRIAL_SECONDS = 0.1  # before it is decided where the rest is done
_SMALL_SECONDS = 0.5  # of work that is not worth a thread
_PROCESS_SECONDS = 4.0  # of work that is not worth a process: it takes some to start


@dataclass(frozen=True)
class Teacher:
    """A fitted model and the class index of each label that it can give.

    ``model`` is None where the chunk had one class only: then that is the vote.
    """

    model: Any
    labels: npt.NDArray[Any]
    codes: Ints

    def vote(self, features: Any) -> Ints:
        """Return a class index, or NO_VOTE, for each row."""
        if self.model is None:
            return np.full(n_rows(features), self.codes[0])
        return _to_codes(self.model.predict(features), self.labels, self.codes)

    def own_codes(self) -> Ints:
        """Return the class index of each class of the model, in its own order."""
        return _to_codes(self.model.classes_, self.labels, self.codes)


def train(
    estimator: Any,
    features: Any,
    codes: Ints,
    chunks: list[Ints],
    *,
    labels: npt.NDArray[Any],
    random_state: int,
    n_jobs: int | None = None,
    checkpoint: str | None = None,
) -> list[Teacher | None]:
    """Train one teacher a chunk; None where a chunk is empty or training failed.

    Parameters
    ----------
    estimator : classifier
        Cloned for each chunk, with seeds made of ``random_state`` and the chunk's
        number.
    features, codes : array-like, ndarray of int
        The private records, and their class indices.
    chunks : list of ndarray of int
        The rows of each chunk.
    labels : ndarray
        The label of each class index.
    random_state : int
        Seeds the learners; noise never.
    n_jobs : int or None
        Workers, as in joblib. Quick teachers are trained here whatever it says.
    checkpoint : str or None
        A directory, inside the trust boundary, that keeps finished teachers. Training
        that was interrupted goes on from there.
    """
    estimator = clone(estimator)
    seeds, known = _seeds_of(estimator), linear.fits(estimator)
    table = type(features) is np.ndarray  # its own indexing is the quickest

    def job(j: int) -> Callable[[], Teacher | None]:
        rows = chunks[j]
        chunk: Any = None
        if len(rows):
            chunk = features[rows] if table else _safe_indexing(features, rows)
        return _Fit(
            estimator,
            known,
            chunk,
            codes[rows],
            labels,
            seeds,
            (random_state, j),
            checkpoint,
        )

    teachers: dict[int, Teacher | None] = {}
    with Progress("Training teachers", len(chunks)) as progress:
        if linear.stacks(estimator, features):
            pairs = _train_pairs(estimator, features, codes, chunks, labels, progress)
            teachers |= pairs
        rest = [j for j in range(len(chunks)) if j not in teachers]
        trained = _run(lambda i: job(rest[i]), len(rest), progress, n_jobs=n_jobs)
        teachers |= zip(rest, trained, strict=True)
    return [teachers[j] for j in range(len(chunks))]


def _train_pairs(
    estimator: Any,
    features: npt.NDArray[Any],
    codes: Ints,
    chunks: list[Ints],
    labels: npt.NDArray[Any],
    progress: Progress,
) -> dict[int, Teacher]:
    """Train logistic regressions on all chunks with two classes, side by side."""
    present = [np.unique(codes[rows]) for rows in chunks]
    pairs = [j for j, some in enumerate(present) if len(some) == 2]
    mine, second = [chunks[j] for j in pairs], [int(present[j][1]) for j in pairs]
    teachers = {}
    with _quiet():
        for i, coef, intercept in linear.fit_pairs(
            estimator, features, codes, mine, second
        ):
            model, own = copy(estimator), present[pairs[i]]
            model.coef_, model.intercept_ = coef, intercept
            model.classes_, model.n_features_in_ = labels[own], features.shape[1]
            model.n_iter_ = np.ones(1, dtype=np.int32)
            teachers[pairs[i]] = Teacher(model, labels[own], own)
            progress.advance(1)
    return teachers


def ask(
    teachers: list[Teacher | None],
    features: Any,
    *,
    n_classes: int,
    n_jobs: int | None = None,
) -> Predictions:
    """Return the votes of all teachers, shape (n_teachers, n_queries).

    The public data is read in blocks, so memory stays bounded by the votes themselves.
    """
    return Panel(teachers, n_classes=n_classes).ask(features, n_jobs=n_jobs)


class Panel:
    """Teachers that are ready to be asked, again and again.

    Linear models are stacked into one matrix, small trees into one table; each other
    model is asked for itself. Which of these a teacher is depends on that teacher
    alone, and so do its votes.
    """

    def __init__(self, teachers: list[Teacher | None], *, n_classes: int) -> None:
        self.teachers, self.n_classes = teachers, n_classes
        from mapl.trees import Ensemble, Trees

        with _silent():
            ready = [_ready(teacher) for teacher in teachers]
        self._stacked = [j for j, one in enumerate(ready) if isinstance(one, tuple)]
        self._read = [j for j, one in enumerate(ready) if isinstance(one, Ensemble)]
        self._others = [j for j, one in enumerate(ready) if one is None]
        self._stack: linear.Stack | None = None
        self._trees: Trees | None = None
        if self._stacked:
            found = [one if isinstance(one, tuple) else None for one in ready]
            self._stack = linear.Stack(found, n_classes=n_classes)
        if self._read:
            self._trees = Trees([cast(Ensemble, ready[j]) for j in self._read])
            self._codes = np.full((len(self._read), n_classes), NO_VOTE)
            for row, j in zip(self._codes, self._read, strict=True):
                codes = cast(Teacher, teachers[j]).own_codes()
                row[: len(codes)] = codes

    def ask(self, features: Any, *, n_jobs: int | None = None) -> Predictions:
        """Return the votes, shape (n_teachers, n_queries)."""
        n = n_rows(features)
        dtype = np.int8 if self.n_classes <= 127 else np.int32
        votes = np.full((len(self.teachers), n), NO_VOTE, dtype=dtype)
        step = max(1, _BLOCK_CELLS // max(1, _n_columns(features)))
        for start in range(0, n, step):
            rows = slice(start, min(n, start + step))
            block = features if step >= n else _safe_indexing(features, rows)
            with _silent():
                self._ask_block(block, votes[:, rows], n_jobs)
        return votes

    def _ask_block(self, block: Any, votes: Predictions, n_jobs: int | None) -> None:
        each = list(self._others)
        numbers = _numbers(block) if self._stack or self._trees else None
        if self._stack:
            if numbers is not None:
                self._stack.votes(numbers, votes)
            else:
                each += self._stacked
        if self._trees:
            if numbers is not None and self._trees.takes(numbers):
                own = self._trees.votes(numbers)
                votes[self._read] = np.take_along_axis(self._codes, own, axis=1)
            else:
                each += self._read

        def job(i: int) -> Callable[[], Any]:
            return lambda: _vote(self.teachers[each[i]], block)

        with Progress("Asking teachers", len(self.teachers)) as progress:
            # How many have votes of their own is private: the bar does not show it.
            progress.advance(len(self.teachers) - len(each))
            answers = _run(job, len(each), progress, n_jobs=n_jobs, threads=True)
            for j, answer in zip(each, answers, strict=True):
                if answer is not None:
                    votes[j] = answer


def _ready(teacher: Teacher | None) -> tuple[Any, ...] | Ensemble | None:
    """Return a teacher's coefficients, or its trees if they are quick; else None."""
    from mapl import trees

    if teacher is None or teacher.model is None:
        return None
    try:
        if known := linear.affine(teacher.model):
            return *known, teacher.own_codes()
        if trees.reads(teacher.model):
            ensemble = trees.Ensemble(teacher.model)
            return ensemble if ensemble.quick else None
    except Exception:
        return None  # whatever it was, it is private
    return None


def _numbers(block: Any) -> Any:
    """Return the block as finite numbers, or None if it is something else."""
    if hasattr(block, "tocsr"):
        return None
    raw = np.asarray(block)
    try:
        numbers = raw.astype(np.float64, copy=False)
    except (TypeError, ValueError):
        return None
    # Beyond 2^53 integers are rounded on the way, and would be rounded twice.
    largest = np.inf if raw.dtype.kind == "f" else 2.0**53
    good = numbers.ndim == 2 and (np.abs(numbers) < largest).all()
    return numbers if good else None


@dataclass
class _Fit:
    """The training of one teacher, as a task that another process can run."""

    estimator: Any
    linear: bool  # fitted by `mapl.linear`
    features: Any
    codes: Ints
    labels: npt.NDArray[Any]
    seeds: list[str]  # parameters that get one
    seed: tuple[int, int]
    checkpoint: str | None

    def __call__(self) -> Teacher | None:
        name = self._name() if self.checkpoint else None
        if self.checkpoint is None or name is None:
            return self._fit()
        path = Path(self.checkpoint) / f"{name}.joblib"
        if path.exists():
            return joblib.load(path)  # type: ignore[no-any-return]
        teacher = self._fit()
        part = path.with_suffix(".part")
        try:
            joblib.dump(teacher, part)
            part.replace(path)  # a finished file or none
        except Exception:  # it has no pickle, or the disk is full: it is trained again
            part.unlink(missing_ok=True)
        return teacher

    def _name(self) -> str | None:
        """What this task is, by content; None where a learner has no pickle. Only
        digests of the records are looked at: an error that shows its arguments must
        not show theirs.
        """
        try:
            public = joblib.hash((self.estimator, self.labels, self.seed))
        except Exception:
            return None
        records = record_digests(self.features, self.codes) if len(self.codes) else b""
        return sha256(public.encode() + bytes(records)).hexdigest()

    def _fit(self) -> Teacher | None:
        present = np.unique(self.codes)
        if len(present) < 2:
            return Teacher(None, self.labels[:0], present) if len(present) else None
        local = np.searchsorted(present, self.codes)
        # Some learners want class numbers without gaps: those of this chunk.
        for given in (self.labels[present], np.arange(len(present))):
            try:
                model = self._blank()
                _set_named(model, self.seeds, self.seed)
                fit = linear.fit if self.linear else type(model).fit
                fit(model, self.features, given[local])
                return Teacher(model, given, present)
            except Exception:  # noqa: S112 - whatever it was, it is private
                continue
        return None

    def _blank(self) -> Any:
        """A clone; of a linear model, whose parameters are numbers and words, a copy is
        the same, and quicker.
        """
        whole = self.linear and not isinstance(self.estimator, Pipeline)
        return copy(self.estimator) if whole else clone(self.estimator)


def check_classifier(estimator: Any) -> None:
    """Refuse what is known to be no classifier; custom learners may not say."""
    kind = get_tags(estimator).estimator_type
    if kind not in ("classifier", None):
        raise ParameterError(f"estimator must be a classifier, got a {kind}.")


def set_seeds(model: Any, seed: int) -> None:
    """Set every random_state among the parameters."""
    _set_named(model, _seeds_of(model), (seed,))


def _seeds_of(model: Any) -> list[str]:
    return [
        name
        for name in sorted(model.get_params(deep=True))
        if name == "random_state" or name.endswith("__random_state")
    ]


def _set_named(model: Any, names: list[str], seed: tuple[int, ...]) -> None:
    if not names:
        return
    drawn = np.random.SeedSequence(seed).generate_state(len(names)) >> 1
    values = dict(zip(names, drawn.tolist(), strict=True))
    if names == ["random_state"]:
        model.random_state = values["random_state"]  # ten times as fast
    else:
        model.set_params(**values)


def _vote(teacher: Teacher | None, features: Any) -> Ints | None:
    """Return the votes of one teacher; None if it has none, or not one for each row."""
    try:
        votes = None if teacher is None else teacher.vote(features)
    except Exception:
        return None
    return votes if votes is not None and len(votes) == n_rows(features) else None


def _to_codes(raw: Any, labels: npt.NDArray[Any], codes: Ints) -> Ints:
    """Look labels up; what is no label, a NaN for one, is no vote."""
    given = np.asarray(raw).reshape(-1)
    out = np.full(given.shape, NO_VOTE, dtype=np.int64)
    for label, code in zip(labels, codes, strict=True):
        out[given == label] = code
    return out


def _n_columns(data: Any) -> int:
    shape: Any = getattr(data, "shape", ())
    return int(shape[1]) if len(shape) > 1 else 64  # texts: a guess


# Running many small tasks -----------------------------------------------------------


@contextmanager
def _silent() -> Iterator[None]:
    """No warning leaves, and none becomes an error.

    Filters of warnings are the process's own: this is entered by one thread only.
    """
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        yield


@contextmanager
def _quiet() -> Iterator[None]:
    """Silent, and with one thread of the numerical libraries: with more, the last bits
    would depend on how many there happen to be.
    """
    with _silent(), threadpool_limits(1):
        yield


def _run(
    job: Callable[[int], Callable[[], Any]],
    n: int,
    progress: Progress,
    *,
    n_jobs: int | None,
    threads: bool = False,
) -> Iterator[Any]:
    """Yield the results of n tasks in order; in other workers where that pays.

    The first tasks are run here and timed. If all of them together do not take long,
    so are the others; else these are handed over in groups of about a second, smaller
    ones towards the end, so that all workers finish at about the same time. Where a
    task is run does not change what comes of it.
    """
    if n == 0:  # to be quiet takes milliseconds
        return
    n_workers = joblib.effective_n_jobs(n_jobs)
    worth = _SMALL_SECONDS if threads else _PROCESS_SECONDS
    worth = math.inf if n_workers == 1 else worth
    with _quiet():
        done, spent = 0, 0.0
        while True:
            start = time.perf_counter()
            result = job(done)()
            spent += time.perf_counter() - start
            done += 1
            progress.advance(1)
            yield result
            if done == n:
                return
            if spent >= _TRIAL_SECONDS and spent / done * (n - done) > worth:
                break
        size = max(1, int(_TASK_SECONDS * done / spent))
        groups = _groups(done, n, size, 4 * n_workers)
        workers = joblib.Parallel(
            n_jobs=n_jobs,
            prefer="threads" if threads else None,
            return_as="generator",
            pre_dispatch="2*n_jobs",
        )
        here = os.getpid()
        tasks = (
            joblib.delayed(_run_group)([job(j) for j in group], here)
            for group in groups
        )
        for results in workers(tasks):
            yield from results
            progress.advance(len(results))


def _groups(start: int, stop: int, size: int, parts: int) -> Iterator[range]:
    """Cut a range: pieces of the size, at most the given part of what is left."""
    while start < stop:
        group = range(start, start + min(size, -(-(stop - start) // parts)))
        yield group
        start = group.stop


def _run_group(tasks: Iterable[Callable[[], Any]], parent: int) -> list[Any]:
    # A thread is quiet as its process is, but for this, which is each thread's own.
    own = np.errstate(all="ignore") if os.getpid() == parent else _quiet()
    with own:
        return [task() for task in tasks]
