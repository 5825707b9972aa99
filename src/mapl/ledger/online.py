"""A job that goes on for years: questions one after another, of a running mechanism.

Whoever answers next must start from the state that the last question left. Each commit
checks that nobody else has asked since the state was read: two processes that started
from the same one would spend it twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from mapl.errors import LedgerError
from mapl.ledger.job import Job, State, StoredStep, who_and_when
from mapl.ledger.transaction import Transaction
from mapl.ledger.turns import turn
from mapl.privacy.events import Event

_QUESTIONS = "ask/"
_NewRow = tuple[str, bytes, dict[str, Any]]  # part of the job, content, public note


class OnlineJob(Job):
    """A job whose questions come one after another, several at a time or alone."""

    _newest: int = 0  # number of the newest row that this process knows of

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Wait until no other process asks this job, and keep it so."""
        with turn(self._store, self._request):
            yield

    def latest_state(self) -> State | None:
        """Return the state that the newest question or reply of this job left."""
        with Transaction(self._store) as transaction:
            row = transaction.latest(self._dataset, self._prefix)
        self._newest = 0 if row is None else row["number"]
        return None if row is None else self._state_of(row)

    def resume(self, event: Event) -> bool:
        """Go on with what was charged; return False, and charge nothing, if it was
        not. Open budgets pay when a mechanism is opened, not for its answers.
        """
        with Transaction(self._store) as transaction:
            paid = transaction.requested(self._dataset, self._request) is not None
        if paid and not self.events:
            self._charge_ledger(event)  # finds its row
        return paid

    def stored_anywhere(self, steps: Sequence[str]) -> list[StoredStep | None]:
        """Return what was committed of some steps; as `stored_steps`, without going
        on.
        """
        with Transaction(self._store) as transaction:
            found = [self._rows_of(transaction, step) for step in steps]
        return [self._stored(ask, reply) for ask, reply in found]

    def commit_questions(self, asked: Mapping[str, bytes], state: State) -> None:
        """Commit digests of what some steps ask, and what they leave of the mechanism.

        A question that was committed before and got no reply is there already.
        """
        with Transaction(self._store) as transaction:
            self._refuse_others(transaction)
            new: list[_NewRow] = [
                (f"/{step}", digest, {})
                for step, digest in asked.items()
                if transaction.requested(self._dataset, f"{self._request}/{step}")
                is None
            ]
            self._append_all(transaction, "ask", new, state)

    def commit_replies(
        self,
        replies: Mapping[str, bytes],
        state: State,
        notes: Mapping[str, dict[str, Any]],
    ) -> None:
        """Commit the replies to questions that have none, with public notes."""
        at = who_and_when()["at"]
        with Transaction(self._store) as transaction:
            self._refuse_others(transaction)
            new: list[_NewRow] = [
                (f"/{step}/reply", reply, {"asked_at": at, **notes[step]})
                for step, reply in replies.items()
            ]
            self._append_all(transaction, "reply", new, state)

    def n_replies(self) -> int:
        """Return how many questions were answered. Public."""
        with Transaction(self._store) as transaction:
            return transaction.count_replies(self._dataset, self._prefix)

    @property
    def _prefix(self) -> str:
        return f"{self._request}/{_QUESTIONS}"

    def _refuse_others(self, transaction: Transaction) -> None:
        row = transaction.latest(self._dataset, self._prefix)
        if (0 if row is None else row["number"]) != self._newest:
            raise LedgerError(
                "Another process asks this panel, and does not wait for its turn: it "
                "has another state folder. Use the same MAPL_STATE. Nothing was "
                "released."
            )

    def _append_all(
        self,
        transaction: Transaction,
        kind: str,
        rows: list[_NewRow],
        state: State,
    ) -> None:
        """Append rows; the last one, which is the newest then, holds the state."""
        for i, (part, blob, note) in enumerate(rows, 1):
            last = transaction.budget_of(self._dataset)
            kept = state if i == len(rows) else {}
            row = self._append_free(transaction, last, part, kind, kept, blob, **note)
            self._newest = row["number"]
