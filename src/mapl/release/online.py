"""Queries that come one after another: each is answered once, whoever asks again.

Charge and state are committed before noise is drawn, the reply before it leaves. The
name of a request binds its content to its reply.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from hashlib import sha256

import numpy as np

from mapl.arrays import Integers, Ints
from mapl.errors import BudgetExceededError, MechanismStateError, RequestConflictError
from mapl.ledger.job import Job
from mapl.privacy.charged_dissent import ChargedDissent
from mapl.privacy.events import Event
from mapl.privacy.sparse_vector import SparseVector
from mapl.privacy.votes import Votes

OnlineMechanism = SparseVector | ChargedDissent
_SURE = 2  # noise scales that the largest count must lead by


class OnlineLabeler:
    """Answers queries by the votes of teachers, from a budget that was paid for.

    ``make`` returns the mechanism as it was opened; its running state is kept in the
    ledger, so that several processes may answer in turn.
    """

    def __init__(self, job: Job, make: Callable[[], OnlineMechanism]) -> None:
        self._job, self._make = job, make

    def open(self) -> Event:
        """Charge the whole price of the mechanism, once."""
        event = self._make().event
        self._job.charge(event)
        return event

    def ask(
        self,
        name: str,
        content: bytes,
        votes: Callable[[], Integers],
        guess: Ints | None,
        *,
        n_classes: int,
    ) -> Ints:
        """Return the labels of some queries, ABSTAIN for none.

        ``name`` identifies the request. The same name and content again return the
        stored labels; with other content it is refused.
        """
        step = f"ask/{sha256(name.encode()).hexdigest()}"
        digest = sha256(content).digest()
        with self._job.turn():
            stored = self._job.stored_step(step)
            if stored is not None and stored.question != digest:
                raise RequestConflictError(name)
            if stored is not None and stored.reply is not None:
                return _unpack(stored.reply)
            mechanism = self._running()
            if isinstance(mechanism, SparseVector) and mechanism.halted:
                raise BudgetExceededError(
                    "This panel has withheld as many answers as were paid for. Open it "
                    "again to go on. Nothing was released."
                )
            asked = Votes.from_predictions(votes(), n_classes=n_classes)
            labels = self._draw(mechanism, asked, guess, step, digest)
            state, reply = mechanism.state(), _pack(labels)
            return _unpack(self._job.commit_reply(step, state, reply)[1])

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
        step: str,
        digest: bytes,
    ) -> Ints:
        def commit() -> None:
            self._job.commit_question(step, mechanism.state(), digest)

        if isinstance(mechanism, ChargedDissent):
            answer = mechanism.answer(votes, guess, before_draw=commit)
            return answer.sure(_SURE * float(mechanism.sigma))
        if mechanism.event.threshold_noise_scale:
            raise MechanismStateError("Only a sparse vector without hidden noise.")
        commit()
        return np.asarray(mechanism.answer(votes).labels, dtype=np.int64)

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


def _pack(labels: Ints) -> bytes:
    return json.dumps(labels.tolist()).encode()


def _unpack(reply: bytes) -> Ints:
    return np.array(json.loads(reply), dtype=np.int64)
