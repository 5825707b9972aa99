"""One request to one data set, from its charge to its last reply."""

import getpass
import json
import platform
import shutil
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

from mapl.errors import (
    BudgetExceededError,
    LedgerError,
    MaplError,
    MechanismStateError,
    PrivacyWarning,
    probability,
)
from mapl.ledger.files import state_folder
from mapl.ledger.rules import check_price
from mapl.ledger.store import Row, Store
from mapl.ledger.transaction import Transaction
from mapl.privacy.events import Event, from_json

State = dict[str, Any]


@dataclass(frozen=True)
class StoredStep:
    """A step that was committed before: its question, and its reply if there is one."""

    state: State
    question: bytes
    reply: bytes | None


class Job:
    """One request to one data set, from its charge to its last reply.

    The durable `mapl.release.account.Account`: charge and state are committed before
    noise is drawn, the reply before it leaves. A job that was killed goes on from there
    when it is run again.
    """

    def __init__(
        self, store: Store, dataset: str, request: str, *, delta: float, what: str
    ) -> None:
        self._store, self._dataset, self._request = store, dataset, request
        self._what = what
        self.delta = probability(delta=delta)
        self.events: list[Event] = []
        self.rows: list[int] = []
        self.paid_before = False
        self.seed = 0
        self._other_records = False

    def begin(self, private_state: State) -> State:
        """Commit what decides the private computation, and return what was committed
        first: every run of a job computes the same.

        ``data``, a keyed digest of the records, warns of a mix-up. Its only other
        effect: a job that has no answer yet does not go on with other records.
        """
        with Transaction(self._store) as transaction:
            row = transaction.requested(self._dataset, self._request + "/begin")
            if row is None:
                last = transaction.budget_of(self._dataset)
                self._warn_if_mixed_up(transaction, private_state.get("data"))
                row = self._append_free(
                    transaction, last, "/begin", "begin", private_state, b""
                )
        stored: State = json.loads(row["sealed"])
        self.seed = int(stored.get("seed", 0))
        if stored.get("data") != private_state.get("data"):
            self._other_records = True
            warnings.warn(
                "This job was begun with other records, and only its stored answers "
                "are available. To learn from these records, start a new fit with "
                "another random_state: that is another release.",
                PrivacyWarning,
                stacklevel=5,
            )
        return stored

    def check(self, event: Event) -> None:
        """Refuse an event that is too much; charge nothing."""
        with Transaction(self._store) as transaction:
            if transaction.requested(self._dataset, self._request) is None:
                budget = transaction.budget_of(self._dataset)
                try:
                    check_price(budget, event, delta=self.delta)
                except BudgetExceededError:  # such a job will not go on
                    self._remove_checkpoints()
                    raise

    def charge(self, event: Event) -> None:
        """Commit the price of an event, once; or refuse, and change nothing."""
        if self.events:
            raise MechanismStateError(
                "This job has an open mechanism already. Make a new job."
            )
        with Transaction(self._store) as transaction:
            row = transaction.requested(self._dataset, self._request)
            self.paid_before = row is not None
            if row is None:
                last = transaction.budget_of(self._dataset)
                row = self._append_charge(transaction, last, event)
            elif from_json(json.loads(row["public"])["event"]) != event:
                raise LedgerError(
                    "This request was charged before with another mechanism; it cannot "
                    "be changed now. Nothing was released."
                )
        self.events.append(event)
        self.rows.append(row["seq"])

    def stored_step(self, step: int) -> StoredStep | None:
        """Return what an earlier run of this job committed of a step.

        Refuse to go on without a reply where rows are missing (a lost reply would be
        drawn a second time), or with other records.
        """
        with Transaction(self._store) as transaction:
            ask, reply = (
                transaction.requested(self._dataset, f"{self._request}/{part}")
                for part in (f"{step}", f"{step}/reply")
            )
            if reply is None:
                transaction.refuse_gaps(since=min(self.rows, default=1))
        if reply is None and self._other_records:
            raise LedgerError(
                "This job was begun with other records and cannot go on with these. "
                "Start a new fit with another random_state. Nothing was released."
            )
        if ask is None:
            return None
        # A step without a reply starts again: nothing of it has left. It uses the state
        # that the mechanism is in, not a stored one.
        state = {} if reply is None else json.loads(reply["sealed"])
        answer = None if reply is None else bytes(reply["blob"])
        return StoredStep(state, bytes(ask["blob"]), answer)

    def commit_question(self, step: int, state: State, question: bytes) -> None:
        """Commit what a step asks and what it leaves of the mechanism."""
        if self._find_or_append(f"/{step}", "ask", state, question)["blob"] != question:
            raise LedgerError(
                "Another process runs this job and asked something else. Nothing was "
                "released. Rerun; committed charges are reused."
            )

    def commit_reply(
        self, step: int, state: State, reply: bytes
    ) -> tuple[State, bytes]:
        """Commit a reply; return state and reply that were committed first."""
        row = self._find_or_append(f"/{step}/reply", "reply", state, reply)
        return json.loads(row["sealed"]), bytes(row["blob"])

    @contextmanager
    def checkpoint_dir(self) -> Iterator[str]:
        """A private folder for finished teachers, in case the job is killed.

        It lies in the state folder, and is removed when the job is done or fails with
        a `MaplError`; an interruption leaves it.
        """
        folder = self._checkpoints()
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        try:
            yield str(folder)
        except MaplError:  # refused, or the ledger failed: a rerun trains again
            self._remove_checkpoints()
            raise
        self._remove_checkpoints()

    def _checkpoints(self) -> Path:
        return state_folder() / "teachers" / self._request

    def _remove_checkpoints(self) -> None:
        shutil.rmtree(self._checkpoints(), ignore_errors=True)

    def receipt(self) -> dict[str, Any]:
        """Return what a certificate says of the ledger. Public."""
        return {"id": self._store.id, "dataset": self._dataset, "rows": self.rows}

    def _find_or_append(self, part: str, kind: str, state: State, blob: bytes) -> Row:
        """Return the row of a part of this job, appended unless it is there."""
        with Transaction(self._store) as transaction:
            row = transaction.requested(self._dataset, self._request + part)
            if row is None:
                last = transaction.budget_of(self._dataset)
                row = self._append_free(transaction, last, part, kind, state, blob)
            return row

    def _append_free(
        self,
        transaction: Transaction,
        last: Row,
        part: str,
        kind: str,
        state: State,
        blob: bytes,
    ) -> Row:
        """Append a row that costs nothing."""
        new = {"kind": kind, "request": self._request + part, "loss": 0, "delta": 0}
        new |= {"sealed": json.dumps(state), "blob": blob}
        new["public"] = json.dumps(who_and_when())
        return transaction.append(_following_row(last) | new)

    def _append_charge(self, transaction: Transaction, last: Row, event: Event) -> Row:
        """Append the row of a charge; totals are the last row's plus the price."""
        loss, delta = check_price(last, event, delta=self.delta)
        return transaction.append(
            _following_row(last)
            | {
                "kind": "charge",
                "request": self._request,
                "loss": loss,
                "delta": delta,
                "loss_spent": last["loss_spent"] + loss,
                "delta_spent": last["delta_spent"] + delta,
                "public": _charge_as_json(event, self._what, **who_and_when()),
                "sealed": "null",
                "blob": b"",
            }
        )

    def _warn_if_mixed_up(self, transaction: Transaction, digest: Any) -> None:
        """Warn where digests suggest a mix-up; `stored_step` refuses, this does not."""
        latest = {
            row["dataset"]: json.loads(row["sealed"]).get("data")
            for row in transaction.last_begun()
        }
        if latest.get(self._dataset, digest) != digest:
            warnings.warn(
                f"The records are not those of the last release from data set "
                f"{self._dataset!r}. If they belong to other people, give them a name "
                "of their own: the budget belongs to the name.",
                PrivacyWarning,
                stacklevel=6,
            )
        others = [name for name in latest if name != self._dataset]
        if any(latest[name] == digest for name in others):
            warnings.warn(
                "The same records have a budget under another name in this ledger. "
                "Their privacy loss is the sum of both.",
                PrivacyWarning,
                stacklevel=6,
            )


def _following_row(last: Row) -> Row:
    """Return a row that follows the last of its data set and adds nothing."""
    kept = ("dataset", "rule", "loss_spent", "delta_spent", "loss_limit", "delta_limit")
    return {name: last[name] for name in kept} | {"number": last["number"] + 1}


@lru_cache(maxsize=256)
def _charge_as_json(event: Event, what: str, **signature: str) -> str:
    """Return the public column of a charge; ``event`` is read back from there.

    Cached: many charges a second have the same event and stamp.
    """
    return json.dumps({"event": event.to_json(), "what": what, **signature})


def who_and_when() -> dict[str, str]:
    """Return who and when, for the reader: nothing is decided by it."""
    return {"who": _who(), "at": _at(int(time.time()))}


@lru_cache(maxsize=1)
def _at(second: int) -> str:
    return datetime.fromtimestamp(second, UTC).isoformat()


@lru_cache(maxsize=1)
def _who() -> str:
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a user without a name
        user = "?"
    return f"{user}@{platform.node()}"
