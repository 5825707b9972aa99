"""One request to one data set, from its charge to its last reply."""

import getpass
import json
import platform
import shutil
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from mapl.errors import (
    LedgerError,
    MechanismStateError,
    PrivacyWarning,
    probability,
)
from mapl.ledger.budget import charge_all, check_all, payers
from mapl.ledger.rules import check_price
from mapl.ledger.secrecy import FolderOfCheckpoints, checkpoint_folder
from mapl.ledger.store import Row, Store
from mapl.ledger.transaction import Transaction
from mapl.privacy.events import Event, from_json

State = dict[str, Any]


@dataclass(frozen=True, repr=False)
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
        self._payers = payers()
        self.delta = probability(delta=delta)
        self.events: list[Event] = []
        self.rows: list[int] = []
        self._first_number = 1  # of the charge, among the rows of the data set
        self.paid_before = False
        self.seed = 0
        self._other_records = False
        # The time of a charge is that of its beginning: it tells nothing of training.
        self._signature = who_and_when()

    def begin(
        self,
        seed: int,
        *,
        data: str = "",
        assignment: Callable[[int], bytes] = lambda seed: b"",
        quiet: bool = False,
    ) -> None:
        """Commit what decides the private computation; every run of a job computes the
        same, with the seed that was committed first.

        ``data``, a keyed digest of the records, warns of a mix-up. ``assignment``
        returns, for a seed, a digest of which record is in which chunk: a job that has
        no answer yet does not go on with another assignment. ``quiet``: no warning.
        """
        mine = self._store.keyed_digest(assignment(seed))
        state = {"seed": seed, "data": data, "assignment": mine}
        with Transaction(self._store) as transaction:
            row = transaction.requested(self._dataset, self._request + "/begin")
            if row is None:
                last = transaction.budget_of(self._dataset)
                if not quiet:
                    self._warn_if_mixed_up(transaction, data)
                row = self._append_free(transaction, last, "/begin", "begin", state)
        stored = self._state_of(row)
        self.seed = int(stored.get("seed", 0))
        if self.seed != seed:
            mine = self._store.keyed_digest(assignment(self.seed))
        if (stored.get("data"), stored.get("assignment")) != (data, mine):
            self._other_records = True
            if quiet:
                return
            warnings.warn(
                "This job was begun with other records or groups, and only its stored "
                "answers are available. To learn from these records, start a new fit "
                "with another random_state: that is another release.",
                PrivacyWarning,
                stacklevel=6,
            )

    def check(self, event: Event) -> None:
        """Refuse an event that is too much; charge nothing."""
        check_all(self._payers, event, request=self._name)
        with Transaction(self._store) as transaction:
            if transaction.requested(self._dataset, self._request) is None:
                self._refuse_other_records()
                budget = transaction.budget_of(self._dataset)
                check_price(budget, event, delta=self.delta)

    def charge(self, event: Event) -> None:
        """Commit the price of an event, once; or refuse, and change nothing.

        An open budget is charged even if the ledger was before: for once, whatever is
        released inside it.
        """
        check_all(self._payers, event, request=self._name)
        self._charge_ledger(event)
        charge_all(self._payers, event, request=self._name)

    @property
    def _name(self) -> str:
        """What a budget knows this job by."""
        return f"{self._store.id}/{self._dataset}/{self._request}"

    def _charge_ledger(self, event: Event) -> None:
        """Commit the price of an event to the ledger, once."""
        if self.events:
            raise MechanismStateError(
                "This job has an open mechanism already. Make a new job."
            )
        with Transaction(self._store) as transaction:
            row = transaction.requested(self._dataset, self._request)
            self.paid_before = row is not None
            if row is None:
                self._refuse_other_records()
                last = transaction.budget_of(self._dataset)
                row = self._append_charge(transaction, last, event)
            elif from_json(json.loads(row["public"])["event"]) != event:
                raise LedgerError(
                    "This request was charged before with another mechanism; it cannot "
                    "be changed now. Nothing was released."
                )
        self.events.append(event)
        self.rows.append(row["seq"])
        self._first_number = row["number"]

    def stored_step(self, step: int | str) -> StoredStep | None:
        """Return what an earlier run of this job committed of a step."""
        return self.stored_steps([step])[0]

    def stored_steps(self, steps: Sequence[int | str]) -> list[StoredStep | None]:
        """Return what was committed of some steps before.

        Refuse to go on without a reply where rows are missing (a lost reply would be
        drawn a second time), or with other records.
        """
        with Transaction(self._store) as transaction:
            found = [self._rows_of(transaction, step) for step in steps]
            unanswered = any(reply is None for _, reply in found)
            if unanswered:
                transaction.refuse_gaps(self._dataset, since=self._first_number)
        if unanswered:
            self._refuse_other_records()
        return [self._stored(ask, reply) for ask, reply in found]

    def _rows_of(
        self, transaction: Transaction, step: int | str
    ) -> tuple[Row | None, Row | None]:
        """Return the rows of a step's question and reply."""
        ask, reply = (
            transaction.requested(self._dataset, f"{self._request}/{part}")
            for part in (f"{step}", f"{step}/reply")
        )
        return ask, reply

    def _stored(self, ask: Row | None, reply: Row | None) -> StoredStep | None:
        if ask is None:
            return None
        # A step without a reply starts again: nothing of it has left. It uses the state
        # that the mechanism is in, not a stored one.
        state = {} if reply is None else self._state_of(reply)
        answer = None if reply is None else bytes(reply["blob"])
        return StoredStep(state, bytes(ask["blob"]), answer)

    def _refuse_other_records(self) -> None:
        if self._other_records:
            raise LedgerError(
                "This job was begun with other records or groups and cannot go on with "
                "these. Start a new fit with another random_state. Nothing was "
                "released."
            )

    def commit_question(self, step: int | str, state: State, question: bytes) -> None:
        """Commit what a step asks and what it leaves of the mechanism."""
        if self._find_or_append(f"/{step}", "ask", state, question)["blob"] != question:
            raise LedgerError(
                "Another process runs this job and asked something else. Nothing was "
                "released. Rerun; committed charges are reused."
            )

    def commit_reply(
        self, step: int | str, state: State, reply: bytes
    ) -> tuple[State, bytes]:
        """Commit a reply; return state and reply that were committed first."""
        row = self._find_or_append(f"/{step}/reply", "reply", state, reply)
        return self._state_of(row), bytes(row["blob"])

    @contextmanager
    def checkpoints(self) -> Iterator[FolderOfCheckpoints]:
        """Where finished votes are kept in case the process is killed.

        They lie encrypted in the state folder, and are removed when the job ends,
        however it ends.
        """
        folder = checkpoint_folder() / self._request
        try:
            yield FolderOfCheckpoints(folder, self._store.cipher)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

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
        blob: bytes = b"",
        **note: Any,
    ) -> Row:
        """Append a row that costs nothing, with a note that may be shown.

        It has no time: that of the first row would tell how long training took.
        """
        request = self._request + part
        new = {"kind": kind, "request": request, "loss": 0, "delta": 0, "blob": blob}
        new["sealed"] = self._store.cipher.seal(json.dumps(state), request)
        new["public"] = json.dumps({"who": who_and_when()["who"], **note})
        return transaction.append(_following_row(last) | new)

    def _state_of(self, row: Row) -> State:
        """Return the state that a row holds."""
        found: State = json.loads(
            self._store.cipher.open(row["sealed"], str(row["request"]))
        )
        return found

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
                "public": _charge_as_json(event, self._what, **self._signature),
                "sealed": "null",
                "blob": b"",
            }
        )

    def _warn_if_mixed_up(self, transaction: Transaction, digest: Any) -> None:
        """Warn where digests suggest a mix-up; `stored_step` refuses, this does not."""
        latest = {
            row["dataset"]: self._state_of(row).get("data")
            for row in transaction.last_begun()
        }
        if latest.get(self._dataset, digest) != digest:
            warnings.warn(
                f"The records are not those of the last release from data set "
                f"{self._dataset!r}. If they belong to other people, give them a name "
                "of their own: the budget belongs to the name.",
                PrivacyWarning,
                stacklevel=7,
            )
        others = [name for name in latest if name != self._dataset]
        if any(latest[name] == digest for name in others):
            warnings.warn(
                "The same records have a budget under another name in this ledger. "
                "Their privacy loss is the sum of both.",
                PrivacyWarning,
                stacklevel=7,
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
