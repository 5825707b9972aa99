"""The ledger: what each data set may cost, and all that was charged to it, for good.

A budget belongs to the name of a data set, not to a process, a file or an object:
whoever opens the ledger finds what the others spent. A release is charged and
committed before its noise is drawn, and its reply is committed before it leaves
(`Job`). The same request again gets the stored reply and costs nothing. Nothing is
refunded.
"""

from __future__ import annotations

import getpass
import json
import math
import platform
import shutil
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from fractions import Fraction
from functools import lru_cache
from typing import Any, NoReturn

from mapl import accounting
from mapl.errors import (
    BudgetExceededError,
    LedgerCorruptedError,
    LedgerError,
    MechanismStateError,
    ParameterError,
    PrivacyWarning,
    positive,
    probability,
)
from mapl.events import Event, from_json
from mapl.journal import ENTRIES, Journal, Row, Transaction, state_folder

DELTA_UNIT = Fraction(1, 10**18)
_LARGEST = 2**62  # of a stored integer
_LEAK_SHARE = Fraction(1, 10)  # of a Gaussian rule's delta, kept for leaks


@dataclass(frozen=True)
class Rule:
    """How the prices of releases are measured and added up.

    Guarantee: releases chosen in any way after seeing earlier ones, whose prices add up
    to no more than `limits`, are (epsilon, delta)-DP together.
    Proof: docs/proofs/ledger.md

    Attributes
    ----------
    name : str
        "basic" adds up epsilons and deltas. "gaussian" adds up squared Gaussian
        shifts: for the same delta k equal releases cost about sqrt(k) times as much
        as one, not k times.
    unit : Fraction
        Of the stored losses.
    """

    name: str
    unit: Fraction
    _limit: Callable[[float, float], tuple[float, float]]
    _price: Callable[[Event, float], tuple[float, float]]
    _spent: Callable[[float, float], float]

    def limits(self, *, epsilon: float, delta: float) -> tuple[int, int]:
        """Return the limits of loss and delta as integers, rounded down."""
        if not 1e-6 <= positive(epsilon=epsilon) <= 1e6:
            raise ParameterError(
                f"epsilon must be from 1e-6 to 1e6 for a budget, got {epsilon!r}."
            )
        loss, leaks = self._limit(positive(epsilon=epsilon), probability(delta=delta))
        return math.floor(_meant(loss) / self.unit), math.floor(
            _meant(leaks) / DELTA_UNIT
        )

    @lru_cache(maxsize=256)  # noqa: B019 - there are two rules, for ever
    def price(self, event: Event, *, delta: float) -> tuple[int, int]:
        """Return what an event costs, rounded up; at least one unit of each."""
        loss, leaks = self._price(event, probability(delta=delta))
        return _up(loss, self.unit), _up(leaks, DELTA_UNIT)

    def epsilon_spent(self, loss: int, *, delta: float) -> float:
        """Return what a stored loss is in epsilon, at the data set's delta."""
        return self._spent(float(loss * self.unit), delta)


def _meant(value: float) -> Fraction:
    """The decimal that was typed, which the nearest float may miss by 1e-16 of it; all
    curves are inflated by far more.
    """
    return Fraction(repr(float(value)))


def _up(value: float, unit: Fraction) -> int:
    if not math.isfinite(value) or value / float(unit) > _LARGEST:
        return _LARGEST + 1
    return max(1, math.ceil(_meant(value) / unit))


def _kept(delta: float) -> float:
    return delta * float(1 - _LEAK_SHARE) * (1 - 1e-15)


RULES = {
    "basic": Rule(
        "basic",
        Fraction(1, 10**6),
        lambda epsilon, delta: (epsilon, delta),
        lambda event, delta: (accounting.epsilon([event], delta=delta), delta),
        lambda loss, delta: loss,
    ),
    "gaussian": Rule(
        "gaussian",
        Fraction(1, 10**12),
        lambda epsilon, delta: (
            accounting.gaussian_limit(epsilon=epsilon, delta=_kept(delta)),
            delta * float(_LEAK_SHARE),
        ),
        lambda event, delta: accounting.gaussian_price(event),
        lambda loss, delta: accounting.gaussian_epsilon(loss, delta=_kept(delta)),
    ),
}


State = dict[str, Any]
"""Of a running mechanism, as JSON. Private."""


@dataclass(frozen=True)
class Asked:
    """A step of a job that was committed before: its question, perhaps its reply."""

    state: State
    question: bytes
    reply: bytes | None


@dataclass(frozen=True)
class Standing:
    """What a data set may cost and what was spent, at the end of the journal."""

    name: str
    rule: str
    epsilon_limit: float
    epsilon_spent: float
    delta_limit: float
    delta_spent: float
    releases: int


class Ledger:
    """Budgets by data set, in a database that outlives every process.

    Parameters
    ----------
    url : str
        ``sqlite:///path`` for one machine, ``postgresql://user@host/db`` for many.
    create : bool
        Make a ledger there if there is none.

    Examples
    --------
    >>> import os, tempfile
    >>> from fractions import Fraction
    >>> from mapl import Ledger
    >>> from mapl.events import GaussianEvent
    >>> folder = tempfile.mkdtemp()
    >>> os.environ["MAPL_STATE"] = folder  # only here: keys and marks belong elsewhere
    >>> ledger = Ledger(f"sqlite:///{folder}/budget.db", create=True)
    >>> ledger.create("patients", epsilon=2, delta=1e-4)
    >>> job = ledger.job("patients", b"what is asked for", delta=1e-5)
    >>> job.charge(GaussianEvent(sigma=Fraction(40), steps=100))
    >>> standing = ledger.standing("patients")
    >>> round(standing.epsilon_spent, 2), standing.delta_spent
    (0.93, 1e-05)
    """

    def __init__(self, url: str, *, create: bool = False) -> None:
        self.journal = Journal(url, create=create)

    @property
    def url(self) -> str:
        """Where it is."""
        return self.journal.url

    @property
    def id(self) -> str:
        """Its name, made up when it was created."""
        return str(self.journal.id)

    def create(
        self, dataset: str, *, epsilon: float, delta: float, rule: str = "basic"
    ) -> None:
        """Give a data set its budget; this happens once, and is never changed."""
        if not isinstance(dataset, str) or not dataset.strip():
            raise ParameterError(f"dataset must be a name, got {dataset!r}.")
        if rule not in RULES:
            raise ParameterError(
                f"rule must be one of {', '.join(map(repr, RULES))}, got {rule!r}."
            )
        limits = RULES[rule].limits(epsilon=epsilon, delta=delta)
        public = {"epsilon_limit": epsilon, "delta_limit": delta, **_stamp()}
        with self.journal.transaction() as transaction:
            if transaction.last_of(dataset) is not None:
                raise LedgerError(
                    f"Data set {dataset!r} has a budget in {self.url} already; it "
                    "cannot be given another. See: mapl ledger show"
                )
            transaction.append(
                {
                    "dataset": dataset,
                    "number": 1,
                    "kind": "create",
                    "request": "create",
                    "rule": rule,
                    "loss": 0,
                    "delta": 0,
                    "loss_spent": 0,
                    "delta_spent": 0,
                    "loss_limit": limits[0],
                    "delta_limit": limits[1],
                    "public": json.dumps(public),
                    "sealed": "null",
                    "blob": b"",
                }
            )

    def job(self, dataset: str, content: bytes, *, delta: float, what: str = "") -> Job:
        """Return the job that this content asks for, new or begun earlier.

        Parameters
        ----------
        dataset : str
            Whose budget it is.
        content : bytes
            All that makes it this request and no other. Public values only: who sees
            that an answer was there already must not learn from that of a record.
        delta : float
            At which a rule "basic" states the price.
        what : str
            A note for the history. Public.
        """
        return Job(self, dataset, self.journal.keyed(content), delta=delta, what=what)

    def begin(
        self,
        dataset: str,
        content: bytes,
        *,
        delta: float,
        what: str,
        seed: int,
        records: Any,
    ) -> tuple[Job, dict[str, Any]]:
        """Return such a job, and what is sealed in it: the seed that decides the
        chunks, and a keyed digest of the records' digests that warns of a mix-up.
        """
        job = self.job(dataset, content, delta=delta, what=what)
        records = records.copy()
        records.sort(axis=0)  # their order is no part of the data
        data = self.journal.keyed(records.tobytes())
        return job, job.begin({"seed": seed, "data": data})

    def standing(self, dataset: str) -> Standing:
        """Return limits and spending of a data set."""
        with self.journal.transaction() as transaction:
            return self._standing(transaction, self._last(transaction, dataset))

    def standings(self) -> list[Standing]:
        """Return limits and spending of all data sets, in order of creation."""
        with self.journal.transaction() as transaction:
            created = transaction.rows(ENTRIES.c.kind == "create")
            return [
                self._standing(transaction, self._last(transaction, row["dataset"]))
                for row in created
            ]

    def history(self, dataset: str | None = None) -> Iterator[dict[str, Any]]:
        """Yield what happened, in order: public values only.

        Requests, their replies and the state of mechanisms stay inside.
        """
        where = [] if dataset is None else [ENTRIES.c.dataset == dataset]
        after = 0
        while True:
            with self.journal.transaction() as transaction:
                rows = transaction.rows(*where, after=after)
            if not rows:
                return
            after = rows[-1]["seq"]
            yield from map(_shown, rows)

    def verify(self) -> int:
        """Check every row and the whole chain; return the number of rows."""
        return self.journal.verify()

    def check_receipt(self, receipt: dict[str, Any], events: list[Event]) -> None:
        """Refuse a receipt whose rows are not in this ledger with these events."""
        found = []
        if receipt.get("id") == self.id:
            with self.journal.transaction() as transaction:
                rows = transaction.rows(ENTRIES.c.seq.in_(receipt.get("rows", [])))
                found = [
                    from_json(json.loads(row["public"])["event"])
                    for row in rows
                    if row["kind"] == "charge" and row["dataset"] == receipt["dataset"]
                ]
        if not events or found != events:
            raise LedgerError(
                f"The ledger at {self.url} has no such rows: the receipt is of another "
                "ledger, or was changed."
            )

    def close(self) -> None:
        """Give the connection back."""
        self.journal.close()

    def _last(self, transaction: Transaction, dataset: str) -> Row:
        row = transaction.last_of(dataset)
        if row is None:
            raise LedgerError(
                f"Data set {dataset!r} has no budget in {self.url}. Give it one: mapl "
                f"ledger create {self.url} --dataset {dataset} --epsilon E --delta D"
            )
        return row

    def _standing(self, transaction: Transaction, row: Row) -> Standing:
        first = transaction.requested(row["dataset"], "create")
        if first is None:
            raise LedgerCorruptedError(
                f"{self.url} is damaged: the budget of {row['dataset']!r} is gone."
            )
        charges = transaction.count(row["dataset"], "charge")
        declared = json.loads(first["public"])
        rule, delta = RULES[row["rule"]], declared["delta_limit"]
        spent = float(row["delta_spent"] * DELTA_UNIT)
        if rule.name == "gaussian" and charges:
            spent = delta  # epsilon is stated for all of it
        return Standing(
            name=row["dataset"],
            rule=rule.name,
            epsilon_limit=declared["epsilon_limit"],
            epsilon_spent=rule.epsilon_spent(row["loss_spent"], delta=delta),
            delta_limit=delta,
            delta_spent=spent,
            releases=charges,
        )

    def __reduce__(self) -> NoReturn:
        raise LedgerError(
            "A ledger cannot be copied or pickled. Pass its URL and open it again."
        )

    def __repr__(self) -> str:
        return f"Ledger({self.url!r})"


class Job:
    """One request to one data set, from its charge to its last reply.

    It has the interface of `mapl.labeler.Budget`, and is what makes it durable: charge
    and state are committed before noise is drawn, the reply before it leaves. A job
    that was killed goes on from there when the same is asked again.
    """

    def __init__(
        self, ledger: Ledger, dataset: str, request: str, *, delta: float, what: str
    ) -> None:
        self._ledger, self._dataset, self._request = ledger, dataset, request
        self._what = what
        self.delta = probability(delta=delta)
        self.events: list[Event] = []
        self.rows: list[int] = []
        self.paid_before = False
        self._other_records = False

    def begin(self, sealed: State) -> State:
        """Commit what decides the private computation, and return what was committed
        first: whoever runs this job computes the same.

        ``data``, a keyed digest of the records, warns of a mix-up. It decides nothing
        but this: a job that has not been answered does not go on with other records.
        """
        with self._ledger.journal.transaction() as transaction:
            row = transaction.requested(self._dataset, self._request + "/begin")
            if row is None:
                last = self._ledger._last(transaction, self._dataset)
                self._warn_of_a_mix_up(transaction, sealed)
                row = self._free(transaction, last, "/begin", "begin", sealed, b"")
        kept: State = json.loads(row["sealed"])
        if kept.get("data") != sealed.get("data"):
            self._other_records = True
            warnings.warn(
                "This job was begun with other records. What it was answered then is "
                "all there is; for an answer about these, ask anew with another "
                "random_state: that is another release.",
                PrivacyWarning,
                stacklevel=4,
            )
        return kept

    def check(self, event: Event) -> None:
        """Refuse an event that is too much; charge nothing."""
        with self._ledger.journal.transaction() as transaction:
            if transaction.requested(self._dataset, self._request) is None:
                self._priced(self._ledger._last(transaction, self._dataset), event)

    def charge(self, event: Event) -> None:
        """Commit the price of an event, once; or refuse, and change nothing."""
        if self.events:
            raise MechanismStateError("A job opens one mechanism; this one has its.")
        with self._ledger.journal.transaction() as transaction:
            row = transaction.requested(self._dataset, self._request)
            self.paid_before = row is not None
            if row is None:
                last = self._ledger._last(transaction, self._dataset)
                row = self._append(transaction, last, event)
            elif from_json(json.loads(row["public"])["event"]) != event:
                raise LedgerError(
                    "This request was charged before with another mechanism; it cannot "
                    "be changed now. Nothing was released."
                )
        self.events.append(event)
        self.rows.append(row["seq"])

    def asked(self, step: int) -> Asked | None:
        """Return what was committed of a step by an earlier run of this job."""
        with self._ledger.journal.transaction() as transaction:
            ask, reply = (
                transaction.requested(self._dataset, f"{self._request}/{part}")
                for part in (f"{step}", f"{step}/reply")
            )
            if reply is None:
                transaction.refuse_gaps(since=min(self.rows, default=1))
        if reply is None and self._other_records:
            raise LedgerError(
                "This job was begun with other records and cannot go on with these. "
                "Ask anew with another random_state. Nothing was released."
            )
        if ask is None:
            return None
        # A step that was asked and not answered begins anew: nothing of it has left.
        # The state is then the one that it finds, and is not taken from here.
        state = {} if reply is None else json.loads(reply["sealed"])
        answer = None if reply is None else bytes(reply["blob"])
        return Asked(state, bytes(ask["blob"]), answer)

    def before_draw(self, step: int, state: State, question: bytes) -> None:
        """Commit what a step asks and what it leaves of the mechanism."""
        if self._add(f"/{step}", "ask", state, question)["blob"] != question:
            raise LedgerError(
                "Another process runs this job and asks otherwise. Nothing was "
                "released; run the same again."
            )

    def before_answer(
        self, step: int, state: State, reply: bytes
    ) -> tuple[State, bytes]:
        """Commit a reply; return state and reply that were committed first."""
        row = self._add(f"/{step}/reply", "reply", state, reply)
        return json.loads(row["sealed"]), bytes(row["blob"])

    @contextmanager
    def workshop(self) -> Iterator[str]:
        """A folder for what the private computation has finished, in case it is
        killed; it lies beside the key, and is removed when all is done.
        """
        folder = state_folder() / "teachers" / self._request
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        yield str(folder)
        shutil.rmtree(folder, ignore_errors=True)

    def receipt(self) -> dict[str, Any]:
        """Return what a certificate says of the ledger. Public."""
        return {"id": self._ledger.id, "dataset": self._dataset, "rows": self.rows}

    def _add(self, part: str, kind: str, sealed: State, blob: bytes) -> Row:
        with self._ledger.journal.transaction() as transaction:
            row = transaction.requested(self._dataset, self._request + part)
            if row is None:
                last = self._ledger._last(transaction, self._dataset)
                row = self._free(transaction, last, part, kind, sealed, blob)
            return row

    def _free(
        self,
        transaction: Transaction,
        last: Row,
        part: str,
        kind: str,
        sealed: State,
        blob: bytes,
    ) -> Row:
        """Append a row that costs nothing."""
        new = {"kind": kind, "request": self._request + part, "loss": 0, "delta": 0}
        new |= {"sealed": json.dumps(sealed), "blob": blob}
        new["public"] = json.dumps(_stamp())
        return transaction.append(_next(last) | new)

    def _priced(self, last: Row, event: Event) -> tuple[int, int]:
        """Return the price of an event that the budget can pay."""
        loss, delta = RULES[last["rule"]].price(event, delta=self.delta)
        after = last["loss_spent"] + loss, last["delta_spent"] + delta
        if after[0] > last["loss_limit"] or after[1] > last["delta_limit"]:
            raise BudgetExceededError(_too_much(last, loss, delta))
        return loss, delta

    def _append(self, transaction: Transaction, last: Row, event: Event) -> Row:
        loss, delta = self._priced(last, event)
        return transaction.append(
            _next(last)
            | {
                "kind": "charge",
                "request": self._request,
                "loss": loss,
                "delta": delta,
                "loss_spent": last["loss_spent"] + loss,
                "delta_spent": last["delta_spent"] + delta,
                "public": _public(event, self._what, **_stamp()),
                "sealed": "null",
                "blob": b"",
            }
        )

    def _warn_of_a_mix_up(
        self, transaction: Transaction, sealed: dict[str, Any]
    ) -> None:
        """Compare keyed digests of the data: they warn, and decide nothing."""
        digest = sealed.get("data")
        latest = {
            row["dataset"]: json.loads(row["sealed"]).get("data")
            for row in transaction.last_begun()
        }
        if latest.get(self._dataset, digest) != digest:
            warnings.warn(
                f"The records are not those of the last release from data set "
                f"{self._dataset!r}. If they are of other people, give them a name of "
                "their own: the budget belongs to the name.",
                PrivacyWarning,
                stacklevel=5,
            )
        others = [name for name in latest if name != self._dataset]
        if any(latest[name] == digest for name in others):
            warnings.warn(
                "The same records have a budget under another name in this ledger. "
                "Both together protect them less than each.",
                PrivacyWarning,
                stacklevel=5,
            )


def _shown(row: Row) -> dict[str, Any]:
    """What of a row may be shown: no request, reply, or state of a mechanism."""
    unit = RULES[row["rule"]].unit
    return {
        "row": row["seq"],
        "dataset": row["dataset"],
        "kind": row["kind"],
        "rule": row["rule"],
        "loss": float(row["loss"] * unit),
        "delta": float(row["delta"] * DELTA_UNIT),
        "loss_spent": float(row["loss_spent"] * unit),
        "delta_spent": float(row["delta_spent"] * DELTA_UNIT),
        **json.loads(row["public"]),
    }


def _next(last: Row) -> Row:
    """A row that follows the last of its data set and adds nothing."""
    kept = ("dataset", "rule", "loss_spent", "delta_spent", "loss_limit", "delta_limit")
    return {name: last[name] for name in kept} | {"number": last["number"] + 1}


@lru_cache(maxsize=256)
def _public(event: Event, what: str, **stamp: str) -> str:
    return json.dumps({"event": event.to_json(), "what": what, **stamp})


def _stamp() -> dict[str, str]:
    """Who and when, for the reader: nothing is decided by it."""
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


def _too_much(last: Row, loss: int, delta: int) -> str:
    rule = RULES[last["rule"]]
    name = last["dataset"]

    def shown(value: int, unit: Fraction) -> str:
        return f"{float(value * unit):.6g}" if value <= _LARGEST else "infinite"

    if last["loss_spent"] + loss > last["loss_limit"]:
        what = "epsilon" if rule.name == "basic" else "loss (squared Gaussian shift)"
        spent, limit, unit = last["loss_spent"], last["loss_limit"], rule.unit
        asked, way = loss, "Ask for less, or for nothing more."
    else:
        what = "delta" if rule.name == "basic" else "leaks"
        spent, limit, unit = last["delta_spent"], last["delta_limit"], DELTA_UNIT
        asked, way = delta, "Each release spends its own delta: ask for a smaller one."
    return (
        f"Budget of {name!r} exceeded: {shown(spent, unit)} of {what} "
        f"{shown(limit, unit)} is spent, this release needs {shown(asked, unit)}. "
        f"{way} Nothing was released."
    )
