"""What each data set may cost, and all that was charged to it, for good.

A budget belongs to the name of a data set, not to a process, a file or an object:
whoever opens the ledger sees what the others spent. A release is charged and committed
before its noise is drawn, and its reply is committed before it leaves (`Job`). The same
request again gets the stored reply and costs nothing. Nothing is refunded.
"""

import json
import os
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import sqlalchemy as sa

from mapl.arrays import Words
from mapl.errors import (
    LedgerCorruptedError,
    LedgerError,
    ParameterError,
    one_of,
    positive,
    probability,
)
from mapl.ledger.files import (
    given_key,
    locked,
    refuse_network_folder,
    state_folder,
)
from mapl.ledger.job import Job, who_and_when
from mapl.ledger.online import OnlineJob
from mapl.ledger.rules import DELTA_UNIT, RULES
from mapl.ledger.store import NO_LEDGER, Row, Store
from mapl.ledger.tables import APPEND_ONLY, ENTRIES, META, TABLES, VERSION
from mapl.ledger.transaction import Transaction, WriteLock
from mapl.ledger.verify import ChainVerifier
from mapl.privacy.events import Event, from_json
from mapl.progress import Progress


@dataclass(frozen=True)
class Balance:
    """What a data set may cost and what was spent."""

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
    >>> from mapl.privacy.events import GaussianEvent
    >>> folder = tempfile.mkdtemp()
    >>> os.environ["MAPL_STATE"] = folder  # only here: keys and marks belong elsewhere
    >>> ledger = Ledger(f"sqlite:///{folder}/budget.db", create=True)
    >>> ledger.create("patients", epsilon=2, delta=1e-4)
    >>> job = ledger.job("patients", b"what is asked for", delta=1e-5)
    >>> job.charge(GaussianEvent(sigma=Fraction(40), steps=100))
    >>> balance = ledger.balance("patients")
    >>> round(balance.epsilon_spent, 2), balance.delta_spent
    (0.93, 1e-05)
    """

    def __init__(self, url: str, *, create: bool = False) -> None:
        self.store = Store(url)
        path = self.store.path
        if create:
            _create_ledger(self.store)
        elif path is not None and not path.exists():
            raise LedgerError(NO_LEDGER.format(url=self.url))
        with Transaction(self.store):
            pass  # opening checks everything since the mark

    @property
    def url(self) -> str:
        """Where it is."""
        return self.store.url

    @property
    def id(self) -> str:
        """Its random name, made when it was created."""
        return str(self.store.id)

    def create(
        self, dataset: str, *, epsilon: float, delta: float, rule: str = "basic"
    ) -> None:
        """Give a data set its budget, once and for all."""
        if not isinstance(dataset, str) or not dataset.strip():
            raise ParameterError(f"dataset must be a name, got {dataset!r}.")
        one_of(*RULES, rule=rule)
        # Plain types: a row must look the same when it is read again.
        dataset, rule = str.__str__(dataset), str.__str__(rule)
        if dataset != dataset.encode("utf-8", "replace").decode():
            raise ParameterError("dataset must be a name in valid Unicode.")
        epsilon, delta = positive(epsilon=epsilon), probability(delta=delta)
        limits = RULES[rule].limits(epsilon=epsilon, delta=delta)
        public = {"epsilon_limit": epsilon, "delta_limit": delta, **who_and_when()}
        with Transaction(self.store) as transaction:
            if transaction.last_of(dataset) is not None:
                raise LedgerError(
                    f"Data set {dataset!r} has a budget in {self.url} already, which "
                    "cannot be changed. See: mapl ledger show"
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
        """Return the job of a request, new or begun earlier.

        Parameters
        ----------
        dataset : str
            Whose budget it is.
        content : bytes
            Everything that identifies the request. Public values only: that an answer
            was stored already must reveal nothing about a record.
        delta : float
            At which a rule "basic" states the price.
        what : str
            A note for the history. Public.
        """
        return Job(*self._request(dataset, content), delta=delta, what=what)

    def online_job(
        self, dataset: str, content: bytes, *, delta: float, what: str = ""
    ) -> OnlineJob:
        """Return a job that is asked for as long as its budget lasts, as `job`."""
        return OnlineJob(*self._request(dataset, content), delta=delta, what=what)

    def _request(self, dataset: str, content: bytes) -> tuple[Store, str, str]:
        return self.store, str.__str__(dataset), self.store.keyed_digest(content)

    def records_digest(self, keys: Words) -> str:
        """Return a keyed digest of a set of records, whatever their order.

        It is stored when a job begins: with another formula, jobs that were begun
        before would take their own records for others.
        """
        ordered = keys.copy()
        ordered.sort(axis=0)  # each word by itself, which is enough to tell sets apart
        return self.store.keyed_digest(ordered.tobytes())

    def balance(self, dataset: str) -> Balance:
        """Return limits and spending of a data set."""
        with Transaction(self.store) as transaction:
            return self._balance(transaction, transaction.budget_of(dataset))

    def balances(self) -> list[Balance]:
        """Return limits and spending of all data sets, in order of creation."""
        with Transaction(self.store) as transaction:
            created = transaction.rows(ENTRIES.c.kind == "create")
            return [
                self._balance(transaction, transaction.budget_of(row["dataset"]))
                for row in created
            ]

    def history(self, dataset: str | None = None) -> Iterator[dict[str, Any]]:
        """Yield the rows in order, with public values only.

        Requests, replies and the state of mechanisms stay inside.
        """
        where = [] if dataset is None else [ENTRIES.c.dataset == dataset]
        after = 0
        while True:
            with Transaction(self.store) as transaction:
                rows = transaction.rows(*where, after=after)
            if not rows:
                return
            after = rows[-1]["seq"]
            yield from map(_public_part, rows)

    def newest_answers(self, dataset: str, *, n: int) -> list[dict[str, Any]]:
        """Return the last questions that a panel answered, newest first. Public: when,
        by whom, how many queries, and how many answers were withheld.
        """
        with Transaction(self.store) as transaction:
            rows = transaction.newest(dataset, "reply", n)
        shown = [json.loads(row["public"]) for row in rows]
        return [one for one in shown if "asked_at" in one]

    def charges(self, dataset: str, *, n: int = 50) -> list[dict[str, Any]]:
        """Return what was last charged to a data set, newest first."""
        with Transaction(self.store) as transaction:
            return [*map(_public_part, transaction.newest(dataset, "charge", n))]

    def verify(self) -> int:
        """Check every row and the whole chain; return the number of rows."""
        with Transaction(self.store) as transaction:
            verifier = ChainVerifier(self.store)
            total = transaction.last["seq"] if transaction.last else 0
            with Progress("Checking rows", total) as progress:
                while rows := transaction.page(verifier.seq):
                    for row in rows:
                        verifier.check(row)
                    progress.advance(len(rows))
            transaction.check_integrity()
            return verifier.seq

    def check_receipt(self, receipt: dict[str, Any], events: list[Event]) -> None:
        """Refuse a receipt whose rows are not in this ledger with these events."""
        found = []
        if receipt.get("id") == self.id:
            with Transaction(self.store) as transaction:
                listed = receipt.get("rows")
                numbers = listed[:1000] if isinstance(listed, list) else []
                small = [n for n in numbers if isinstance(n, int) and 0 < n < 2**62]
                rows = transaction.rows(ENTRIES.c.seq.in_(small))
                found = [
                    from_json(json.loads(row["public"])["event"])
                    for row in rows
                    if row["kind"] == "charge"
                    and row["dataset"] == receipt.get("dataset")
                ]
        if not events or found != events:
            raise LedgerError(
                f"The ledger at {self.url} has no such rows: the receipt belongs to "
                "another ledger, or was changed."
            )

    def close(self) -> None:
        """Close the connection; the next use opens and checks it again."""
        self.store.close()

    def _balance(self, transaction: Transaction, row: Row) -> Balance:
        """Return limits as declared, and spending as the last row has it."""
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
        return Balance(
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


def _public_part(row: Row) -> dict[str, Any]:
    """Return what of a row may be shown: no request, reply or state."""
    unit = RULES[row["rule"]].unit
    public = json.loads(row["public"])
    if row["kind"] not in ("create", "charge"):
        public.pop("at", None)  # earlier versions stored it: it tells of training
    return {
        "row": row["seq"],
        "dataset": row["dataset"],
        "kind": row["kind"],
        "rule": row["rule"],
        "loss": float(row["loss"] * unit),
        "delta": float(row["delta"] * DELTA_UNIT),
        "loss_spent": float(row["loss_spent"] * unit),
        "delta_spent": float(row["delta_spent"] * DELTA_UNIT),
        **public,
    }


# Making a new ledger: its key first, then its tables ---------------------------------


def _create_ledger(store: Store) -> None:
    """Make a ledger if there is none; two processes that try at once make one."""
    folder = state_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock_file = os.open(folder / "create.lock", os.O_CREAT | os.O_RDWR, 0o600)
    except OSError as error:
        raise LedgerError(
            f"The state folder {folder} cannot be written ({error.strerror}). Set "
            "MAPL_STATE to a folder on this machine that lasts."
        ) from error
    try:
        with locked(lock_file):
            if store.path is not None:
                refuse_network_folder(store.path.parent)
                # SQLite gives its other files the permissions of this one.
                descriptor = os.open(store.path, os.O_CREAT | os.O_RDWR, 0o600)
                os.fchmod(descriptor, 0o600)
                os.close(descriptor)
            with WriteLock(store) as lock:
                if not sa.inspect(lock.connection).has_table("mapl_meta"):
                    _refuse_replacement(store, folder)
                    _create_tables(store, folder, lock.connection)
    finally:
        os.close(lock_file)


def _create_tables(store: Store, folder: Path, connection: sa.Connection) -> None:
    """Write the key first: without it the tables could not be used."""
    name = secrets.token_hex(16)
    key = None if "MAPL_KEY" in os.environ else secrets.token_hex(32)
    if key is None:
        _check_given_key(name)
    _write_key(folder / f"{name}.key", key, store.place)
    TABLES.create_all(connection)
    for statement in APPEND_ONLY[connection.dialect.name]:
        connection.exec_driver_sql(statement)
    rows = [("version", str(VERSION)), ("id", name)]
    connection.execute(sa.insert(META), [{"name": n, "value": v} for n, v in rows])


def _refuse_replacement(store: Store, folder: Path) -> None:
    """Refuse to start again where a ledger was and is gone."""
    for path in folder.glob("*.key"):
        mark = path.with_suffix(".mark")
        if json.loads(path.read_text())["place"] == store.place and mark.exists():
            raise LedgerCorruptedError(
                f"There was a ledger at {store.url} and it is gone. Put it back; a new "
                "one would forget what was spent. If its data are gone too, remove "
                f"{path} and {mark}."
            )


def _check_given_key(name: str) -> None:
    """Refuse a MAPL_KEY that can be guessed."""
    try:
        given_key(name)
    except ValueError:
        raise LedgerError(
            "MAPL_KEY must be at least 32 characters long: python -c 'import secrets; "
            "print(secrets.token_hex(32))' makes one."
        ) from None


def _write_key(path: Path, key: str | None, place: str) -> None:
    """Write the key to the disk, whole or not at all; None if it comes from outside."""
    part = path.with_suffix(".part")
    descriptor = os.open(part, os.O_CREAT | os.O_WRONLY, 0o600)
    with os.fdopen(descriptor, "w") as file:
        json.dump({"key": key, "place": place}, file)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    os.fsync(folder)
    os.close(folder)
