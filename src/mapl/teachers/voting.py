"""From chunks to votes: where each teacher is trained, and what is kept of it.

Where a teacher runs is decided by public numbers: what kind of learner it is, how many
teachers and workers there are, and how long the learner takes on public records.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from typing import Any, Protocol

import joblib
import numpy as np

from mapl.arrays import Array, Integers, Ints, Words, n_rows
from mapl.privacy.votes import NO_VOTE
from mapl.progress import Progress
from mapl.records.table import take_rows
from mapl.teachers import linear
from mapl.teachers.isolation import PublicPart, Task, TeacherServer
from mapl.teachers.known import is_known, keeps_to_itself, silent_clone
from mapl.teachers.panel import ask
from mapl.teachers.training import train

_WORTH_SECONDS = 4.0  # of training that pays for starting processes
_BATCH = 16  # teachers trained between two checkpoints
_GROUPS_A_WORKER = 4  # so that all workers finish at about the same time


class Checkpoints(Protocol):
    """Keeps finished votes in case a fit is killed, encrypted."""

    def load(self, name: str, content: bytes) -> bytes | None:
        """Return what was saved under a name for this content."""

    def save(self, name: str, content: bytes, data: bytes) -> None:
        """Keep data under a name; ``content`` says what it was computed from."""


@dataclass(frozen=True, repr=False)
class Chunks:
    """The private records, and which of them each teacher gets. Private."""

    features: Any
    codes: Ints
    rows: list[Ints]
    keys: Words

    def digest(self, j: int) -> bytes:
        """Return a digest of chunk j: by it a checkpoint is recognised."""
        rows = self.rows[j]
        records = self.keys[rows].tobytes() + self.codes[rows].tobytes()
        return sha256(b"%d/" % j + records).digest()

    def take(self, j: int) -> tuple[Any, Ints]:
        """Return a copy of the records of chunk j."""
        return take_rows(self.features, self.rows[j]), self.codes[self.rows[j]]

    def empty(self) -> tuple[Any, Ints]:
        """Return a chunk without records."""
        none = np.empty(0, dtype=np.int64)
        return take_rows(self.features, none), self.codes[none]


def collect_votes(
    estimator: Any,
    chunks: Chunks,
    points: Any,
    *,
    labels: Array,
    random_state: int,
    n_jobs: int | None = None,
    seconds_each: float = 0.0,
    time_limit: float | None = None,
    checkpoints: Checkpoints | None = None,
    soft: bool = False,
) -> Integers:
    """Train one teacher per chunk; return their votes, shape (n_teachers, n_points).

    With ``soft`` their probabilities, in steps of 1/GRID: (n_teachers, n_points,
    n_classes).

    Parameters
    ----------
    estimator : classifier
        Each teacher is a clone.
    chunks : Chunks
        The private records.
    points : container of records
        Public points to be asked about.
    labels : ndarray
        The label of each class index.
    random_state : int
        Seeds teacher j, together with j.
    n_jobs : int or None
        Workers, as in joblib.
    seconds_each : float
        About how long one teacher takes, from public records.
    time_limit : float or None
        Seconds that a teacher may take; one that takes longer has no vote. Each teacher
        then has a process of its own, one after the other, as learners have whose code
        we do not know.
    checkpoints : Checkpoints or None
        Where finished votes are kept.
    """
    estimator, n = silent_clone(estimator), len(chunks.rows)
    public = PublicPart(estimator, points, labels, random_state, soft)
    dtype = np.int8 if len(labels) <= 127 else np.int32
    votes: Integers = np.full((n, n_rows(points)), NO_VOTE, dtype=dtype)
    if soft:
        votes = np.zeros((n, n_rows(points), len(labels)), dtype=np.uint8)
    n_workers = joblib.effective_n_jobs(n_jobs)
    if one_at_a_time(estimator, time_limit):
        n_workers = 1
    shared = is_known(estimator) and time_limit is None
    quick = shared and linear.can_stack(estimator, chunks.features)
    store = _Store(None if quick else checkpoints, public, chunks, votes)
    alone = n_workers == 1 or seconds_each * n < _WORTH_SECONDS
    if quick or (shared and alone):
        with Progress("Training teachers", n) as progress:
            for group in store.missing(_BATCH if store.checkpoints else n):
                store.keep(group, _votes_here(public, chunks, group, progress))
        return votes
    size = max(1, -(-n // (_GROUPS_A_WORKER * n_workers))) if shared else 1
    with (
        TeacherServer(public, n_points=n_rows(points), time_limit=time_limit) as server,
        ThreadPoolExecutor(n_workers) as threads,
        Progress("Training teachers", n) as progress,
    ):
        groups = list(store.missing(size))
        blank = np.zeros if soft else partial(np.full, fill_value=NO_VOTE)

        def answer(group: list[int]) -> Integers:
            nothing = blank((len(group), *votes.shape[1:]))
            return np.asarray(_votes_there(server, chunks, group, nothing))

        found = threads.map(answer, groups)
        for group, rows in zip(groups, found, strict=True):
            store.keep(group, rows)
            progress.advance(len(group))
    return votes


def one_at_a_time(estimator: Any, time_limit: float | None) -> bool:
    """Whether no two teachers may be trained at once, wherever they are.

    Side by side, a slow one could push another over its time limit, and one that takes
    all of the disk or the memory could silence it.
    """
    return time_limit is not None or not keeps_to_itself(silent_clone(estimator))


def _votes_here(
    public: PublicPart, chunks: Chunks, group: list[int], progress: Progress
) -> Integers:
    """Train and ask teachers in this process."""
    teachers = train(
        public.estimator,
        chunks.features,
        chunks.codes,
        [chunks.rows[j] for j in group],
        labels=public.labels,
        random_state=public.random_state,
        numbers=group,
        advance=progress.advance,
    )
    return public.answers(teachers, public.points)


def _votes_there(
    server: TeacherServer, chunks: Chunks, group: list[int], rows: Any
) -> Any:
    """Train and ask teachers in another process; ``rows`` is what silence looks like.

    If that fails for a group, each has a process of its own: what one chunk does to its
    process reaches no other teacher. The others are then there as empty chunks, since
    the last bits of a product may depend on how many teachers are asked together.
    """
    if not any(len(chunks.rows[j]) for j in group):
        return rows
    found = server.votes(Task(group, [chunks.take(j) for j in group]))
    if found is not None:
        return found
    for i, j in enumerate(group if len(group) > 1 else []):
        alone = [chunks.take(k) if k == j else chunks.empty() for k in group]
        votes = server.votes(Task(group, alone)) if len(chunks.rows[j]) else None
        if votes is not None:
            rows[i] = votes[i]
    return rows


def votes_on_own_points(
    estimator: Any,
    chunks: Chunks,
    points: list[Ints],
    *,
    labels: Array,
    random_state: int,
) -> list[Any]:
    """Train one teacher per chunk, and ask teacher j about rows ``points[j]``.

    None where there are no votes.
    """
    estimator, n_classes = silent_clone(estimator), len(labels)
    if is_known(estimator):
        seeds: dict[str, Any] = {"labels": labels, "random_state": random_state}
        teachers = train(estimator, chunks.features, chunks.codes, chunks.rows, **seeds)
        return [
            ask([teacher], take_rows(chunks.features, rows), n_classes=n_classes)[0]
            for teacher, rows in zip(teachers, points, strict=True)
        ]
    public = PublicPart(estimator, chunks.features[:0], labels, random_state)
    found: list[Any] = []
    with (
        TeacherServer(public, n_points=0) as server,
        Progress("Training teachers", len(points)) as progress,
    ):
        for j, rows in enumerate(points):
            asked = take_rows(chunks.features, rows)
            votes = None
            if len(chunks.rows[j]) and len(rows):
                votes = server.votes(Task([j], [chunks.take(j)], asked))
            found.append(None if votes is None else votes[0])
            progress.advance(1)
    return found


@dataclass(frozen=True, repr=False)
class _Store:
    """Fills the table of votes, from checkpoints where there are some."""

    checkpoints: Checkpoints | None
    public: PublicPart
    chunks: Chunks
    votes: Integers

    def missing(self, size: int) -> Iterator[list[int]]:
        """Yield the numbers of teachers that are not there yet, in groups."""
        left = [j for j in range(len(self.chunks.rows)) if not self._load(j)]
        for start in range(0, len(left), size):
            yield left[start : start + size]

    def keep(self, group: list[int], rows: Integers) -> None:
        """Take the votes of a group of teachers."""
        self.votes[group] = rows
        if self.checkpoints is not None:
            for j in group:
                file = io.BytesIO()
                np.save(file, self.votes[j], allow_pickle=False)
                self.checkpoints.save(str(j), self._content(j), file.getvalue())

    def _load(self, j: int) -> bool:
        if self.checkpoints is None:
            return False
        saved = self.checkpoints.load(str(j), self._content(j))
        if saved is None:
            return False
        self.votes[j] = np.load(io.BytesIO(saved), allow_pickle=False)
        return True

    def _content(self, j: int) -> bytes:
        kind = b"soft" if self.public.soft else b""
        return self.chunks.digest(j) + b"%d" % self.public.random_state + kind
