"""Queries that come one after another: each is answered once, whoever asks again.

Charge and state are committed before noise is drawn, the reply before it leaves. The
name of a request binds its content to its reply.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256

import numpy as np

from mapl.arrays import Integers, Ints
from mapl.errors import (
    BudgetExceededError,
    MaplError,
    MechanismStateError,
    RequestConflictError,
)
from mapl.ledger.online import OnlineJob
from mapl.privacy.charged_dissent import ChargedDissent
from mapl.privacy.events import Event
from mapl.privacy.sparse_vector import SparseVector
from mapl.privacy.votes import ABSTAIN, Votes

OnlineMechanism = SparseVector | ChargedDissent
_SURE = 2  # noise scales that the largest count must lead by


@dataclass(frozen=True, repr=False)
class Request:
    """Some queries that are asked together under one name.

    The same name and content again get the stored labels; other content is refused.
    """

    name: str
    content: bytes  # tells these queries from all others
    n_queries: int
    by: str  # who asks; public

    @property
    def step(self) -> str:
        """Its name in the ledger."""
        return f"ask/{sha256(self.name.encode()).hexdigest()}"

    @property
    def digest(self) -> bytes:
        """Binds its content to its reply."""
        return sha256(self.content).digest()


Outcome = Ints | MaplError  # labels, ABSTAIN for none; or why there are none


class OnlineLabeler:
    """Answers queries by the votes of teachers, from a budget that was paid for.

    ``make`` returns the mechanism as it was opened; its running state is kept in the
    ledger, so that several processes may answer in turn. ``panel`` names it in notes.
    """

    def __init__(
        self, job: OnlineJob, make: Callable[[], OnlineMechanism], *, panel: str = ""
    ) -> None:
        self._job, self._make, self._panel = job, make, panel

    def open(self) -> Event:
        """Charge the whole price of the mechanism, once."""
        event = self._make().event
        self._job.charge(event)
        return event

    def is_paid(self) -> bool:
        """Whether the mechanism was charged."""
        return self._job.resume(self._make().event)

    def ask(
        self,
        requests: Sequence[Request],
        votes: Integers,
        guess: Ints | None,
        *,
        n_classes: int,
        before: Sequence[OnlineLabeler] = (),
    ) -> list[Outcome]:
        """Return what becomes of some requests, whose queries are the columns of
        ``votes`` one request after the other.

        They are answered as if one by one, and committed together. ``before`` answered
        earlier: a name that they know keeps its reply.
        """
        ends = np.cumsum([0, *(request.n_queries for request in requests)])
        with self._job.turn():
            settled, fresh = self._sorted(requests, before)
            if fresh:
                rows = [np.arange(ends[i], ends[i + 1]) for i in fresh]
                picked = np.concatenate(rows)
                asked = Votes.from_predictions(votes[:, picked], n_classes=n_classes)
                guesses = None if guess is None else guess[picked]
                new = [requests[i] for i in fresh]
                settled |= self._answered(new, asked, guesses)
        return [settled[request.step, request.digest] for request in requests]

    def _sorted(
        self, requests: Sequence[Request], before: Sequence[OnlineLabeler]
    ) -> tuple[dict[tuple[str, bytes], Outcome], list[int]]:
        """Return what is settled already, by name and content; and which are new."""
        steps = [request.step for request in requests]
        stored = self._job.stored_steps(steps)
        for labeler in before:
            earlier = labeler._job.stored_anywhere(steps)
            stored = [a or b for a, b in zip(stored, earlier, strict=True)]
        settled: dict[tuple[str, bytes], Outcome] = {}
        fresh: dict[str, int] = {}
        for i, (request, found) in enumerate(zip(requests, stored, strict=True)):
            first = fresh.get(request.step)
            known = found.question if found else None
            if first is not None:
                known = requests[first].digest
            if known is not None and known != request.digest:
                conflict = RequestConflictError(request.name)
                settled[request.step, request.digest] = conflict
            elif found is not None and found.reply is not None:
                settled[request.step, request.digest] = _unpack(found.reply)
            elif first is None:
                fresh[request.step] = i
        return settled, list(fresh.values())

    def _answered(
        self, requests: list[Request], votes: Votes, guess: Ints | None
    ) -> dict[tuple[str, bytes], Outcome]:
        """Draw and commit the labels of new requests."""
        mechanism = self._running()
        if isinstance(mechanism, SparseVector) and mechanism.halted:
            return {(request.step, request.digest): _spent() for request in requests}
        asked = {request.step: request.digest for request in requests}
        labels, n_asked = self._draw(mechanism, votes, guess, asked)
        ends = np.cumsum([0, *(request.n_queries for request in requests)])
        settled: dict[tuple[str, bytes], Outcome] = {}
        parts: dict[Request, Ints] = {}
        for request, start, end in zip(requests, ends, ends[1:], strict=False):
            key = request.step, request.digest
            if start < n_asked:
                parts[request] = settled[key] = labels[start:end]
            else:  # it halted before this one was looked at
                settled[key] = _spent()
        self._job.commit_replies(
            {one.step: _pack(part) for one, part in parts.items()},
            mechanism.state(),
            {
                request.step: self._note(request, part)
                for request, part in parts.items()
            },
        )
        return settled

    def _note(self, request: Request, labels: Ints) -> dict[str, str | int]:
        """Return what may be shown of a request that was answered."""
        return {
            "panel": self._panel,
            "by": request.by,
            "queries": len(labels),
            "abstained": int(np.count_nonzero(labels == ABSTAIN)),
        }

    def _running(self) -> OnlineMechanism:
        """Return the mechanism in the state that the last question left."""
        mechanism, state = self._make(), self._job.latest_state()
        if state is not None:
            mechanism.resume(state)
        return mechanism

    def _draw(
        self,
        mechanism: OnlineMechanism,
        votes: Votes,
        guess: Ints | None,
        asked: dict[str, bytes],
    ) -> tuple[Ints, int]:
        """Return labels, and how many queries were looked at."""

        def commit() -> None:
            self._job.commit_questions(asked, mechanism.state())

        if isinstance(mechanism, ChargedDissent):
            answer = mechanism.answer(votes, guess, before_draw=commit)
            return answer.sure(_SURE * float(mechanism.sigma)), votes.n_queries
        if mechanism.event.threshold_noise_scale:
            raise MechanismStateError("Only a sparse vector without hidden noise.")
        commit()
        given = mechanism.answer(votes)
        return np.asarray(given.labels, dtype=np.int64), given.n_asked

    def n_replies(self) -> int:
        """Return how many requests were answered."""
        return self._job.n_replies()

    def abstentions_left(self) -> int | None:
        """Return how many answers a sparse vector may still withhold. Public: each was
        handed out.
        """
        with self._job.turn():
            mechanism = self._running()
        if isinstance(mechanism, SparseVector):
            return mechanism.cutoff - mechanism.n_abstained
        return None

    def __repr__(self) -> str:
        return "OnlineLabeler()"


def _spent() -> BudgetExceededError:
    return BudgetExceededError(
        "This panel has withheld as many answers as were paid for. Open it again to go "
        "on. Nothing was released."
    )


def _pack(labels: Ints) -> bytes:
    return json.dumps(labels.tolist()).encode()


def _unpack(reply: bytes) -> Ints:
    return np.array(json.loads(reply), dtype=np.int64)
