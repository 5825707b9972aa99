"""A durable, append-only table whose rows are chained under a key.

SQLite for one machine, PostgreSQL for many. Each row carries a keyed digest of itself
and of the row before it, so that a changed byte, a missing row or a stranger's row is
noticed when it is read. The key and a high-water mark lie outside the database, in the
state folder: an old copy of the database that is put back lacks the row at the mark.
No clock decides anything.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import sqlite3
import threading
from collections.abc import Iterable
from contextlib import suppress
from functools import cached_property
from hashlib import blake2b, sha256
from pathlib import Path
from typing import Any, Self
from weakref import WeakSet

import psycopg
import sqlalchemy as sa

from mapl.errors import LedgerCorruptedError, LedgerError
from mapl.progress import Progress

VERSION = 1  # of the schema
# From a version to the statements that lead to the next one.
MIGRATIONS: dict[int, list[str]] = {}

_TABLES = sa.MetaData()
# In SQLite an INTEGER key is the row's own place; any other needs one more index.
_SEQ = sa.BigInteger().with_variant(sa.Integer, "sqlite")
_META = sa.Table(
    "mapl_meta",
    _TABLES,
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("value", sa.Text, nullable=False),
)
# Losses are integers in the unit of their rule, deltas in 1e-18; every row carries the
# totals of its data set, so that its last row is all one needs to read.
ENTRIES = sa.Table(
    "mapl_entries",
    _TABLES,
    sa.Column("seq", _SEQ, primary_key=True, autoincrement=False),
    sa.Column("dataset", sa.Text, nullable=False),
    sa.Column("number", sa.BigInteger, nullable=False),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("request", sa.Text, nullable=False),
    sa.Column("rule", sa.Text, nullable=False),
    sa.Column("loss", sa.BigInteger, nullable=False),
    sa.Column("delta", sa.BigInteger, nullable=False),
    sa.Column("loss_spent", sa.BigInteger, nullable=False),
    sa.Column("delta_spent", sa.BigInteger, nullable=False),
    sa.Column("loss_limit", sa.BigInteger, nullable=False),
    sa.Column("delta_limit", sa.BigInteger, nullable=False),
    sa.Column("public", sa.Text, nullable=False),  # JSON that may be shown
    sa.Column("sealed", sa.Text, nullable=False),  # JSON that leaves by no command
    sa.Column("blob", sa.LargeBinary, nullable=False),
    sa.Column("mac", sa.LargeBinary, nullable=False),
    sa.UniqueConstraint("dataset", "number"),
    sa.UniqueConstraint("dataset", "request"),
    sa.CheckConstraint("kind IN ('create', 'begin', 'charge', 'ask', 'reply')"),
    sa.CheckConstraint("seq >= 1 AND number >= 1 AND loss >= 0 AND delta >= 0"),
    sa.CheckConstraint("loss_spent >= loss AND loss_spent <= loss_limit"),
    sa.CheckConstraint("delta_spent >= delta AND delta_spent <= delta_limit"),
)
_TYPES = {column.name: column.type.python_type for column in ENTRIES.columns}
_CHAINED = [name for name in _TYPES if name not in ("blob", "mac")]
_APPEND_ONLY = {
    "sqlite": [
        f"CREATE TRIGGER mapl_no_{verb.lower()} BEFORE {verb} ON mapl_entries "
        "BEGIN SELECT RAISE(ABORT, 'mapl_entries is append-only'); END"
        for verb in ("UPDATE", "DELETE")
    ],
    "postgresql": [
        "CREATE FUNCTION mapl_append_only() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN RAISE EXCEPTION 'mapl_entries is append-only'; END $$",
        "CREATE TRIGGER mapl_append_only BEFORE UPDATE OR DELETE OR TRUNCATE "
        "ON mapl_entries EXECUTE FUNCTION mapl_append_only()",
    ],
}
_NETWORK = {"9p", "afs", "beegfs", "ceph", "cifs", "lustre", "ncpfs", "nfs", "nfs4"}
_NETWORK |= {"smb3", "smbfs", "fuse.sshfs", "fuse.glusterfs", "fuse.s3fs"}
_MOUNTS = Path("/proc/mounts")
_GENESIS = bytes(32)
_REFUSALS = (sa.exc.SQLAlchemyError, sqlite3.Error, psycopg.Error, UnicodeDecodeError)
_NONE = (
    "There is no ledger at {url}. Make one with: mapl ledger create {url} "
    "--dataset NAME --epsilon E --delta D"
)
_WAIT_SECONDS = 60  # for other writers
_PAGE = 10_000  # rows read in one go

_SELECT = sa.select(ENTRIES)
_LAST_TWO = _SELECT.order_by(ENTRIES.c.seq.desc()).limit(2)
_LAST = sa.select(ENTRIES.c.mac).order_by(ENTRIES.c.seq.desc()).limit(1)
_LAST_OF = (
    _SELECT.where(ENTRIES.c.dataset == sa.bindparam("name"))
    .order_by(ENTRIES.c.number.desc())
    .limit(1)
)
_REQUESTED = _SELECT.where(
    ENTRIES.c.dataset == sa.bindparam("name"),
    ENTRIES.c.request == sa.bindparam("wanted"),
)
_MAC_OF = sa.select(ENTRIES.c.mac).where(ENTRIES.c.seq == sa.bindparam("wanted"))
_INSERT = sa.insert(ENTRIES)

Row = dict[str, Any]

# SQLite's connections, and locks on files, must not pass a fork: they are closed before
# it, and opened again where they are needed.
_OPEN: WeakSet[Journal] = WeakSet()
_HELD: list[Journal] = []


def _before_fork() -> None:
    for journal in list(_OPEN):
        if journal._lock.acquire(timeout=_WAIT_SECONDS):
            journal._forget()
            _HELD.append(journal)


def _after_fork() -> None:
    while _HELD:
        _HELD.pop()._lock.release()


os.register_at_fork(
    before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork
)


def state_folder() -> Path:
    """Where keys and marks are: $MAPL_STATE, else mapl in the user's state folder."""
    if given := os.environ.get("MAPL_STATE"):
        return Path(given)
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base) / "mapl"


class Journal:
    """An open journal.

    Parameters
    ----------
    url : str
        ``sqlite:///path`` or ``postgresql://user@host/database``.
    create : bool
        Make one if there is none.
    """

    def __init__(self, url: str, *, create: bool = False) -> None:
        self._target, self._path = _parsed(url)
        self.url = self._target.render_as_string() if self._target.password else url
        self._compiled: dict[int, tuple[str, Any, Any]] = {}
        self._lock = threading.Lock()
        self._last: Row | None = None
        self._checked = False
        _OPEN.add(self)
        if self._path is not None and not create and not self._path.exists():
            raise LedgerError(_NONE.format(url=self.url))
        if create:
            self._create()
        with self.transaction():
            pass  # opening alone checks everything since the mark

    # Opening ----------------------------------------------------------------------

    def _create(self) -> None:
        """Make the key, then the tables; two who do so at once make one journal."""
        folder = state_folder()
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            lock = os.open(folder / "create.lock", os.O_CREAT | os.O_RDWR, 0o600)
        except OSError as error:
            raise LedgerError(
                f"The state folder {folder} cannot be written ({error.strerror}). Set "
                "MAPL_STATE to a folder of this machine that lasts."
            ) from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if self._path is not None:
                _refuse_network(self._path.parent)
            with Turn(self) as turn:
                connection = turn.connection
                if sa.inspect(connection).has_table("mapl_meta"):
                    return
                self._refuse_replacement(folder)
                name = secrets.token_hex(16)
                self._write_key(folder / f"{name}.key")
                _TABLES.create_all(connection)
                for statement in _APPEND_ONLY[connection.dialect.name]:
                    connection.exec_driver_sql(statement)
                rows = [("version", str(VERSION)), ("id", name)]
                connection.execute(
                    sa.insert(_META), [{"name": n, "value": v} for n, v in rows]
                )
        finally:
            os.close(lock)

    def _refuse_replacement(self, folder: Path) -> None:
        """A ledger that was here and is gone must not begin again."""
        for path in folder.glob("*.key"):
            mark = path.with_suffix(".mark")
            if json.loads(path.read_text())["place"] == self._place and mark.exists():
                raise LedgerCorruptedError(
                    f"There was a ledger at {self.url} and it is gone. Put it back; a "
                    "new one would forget what was spent. If its data are gone too, "
                    f"remove {path} and {mark}."
                )

    @property
    def _place(self) -> str:
        return self._target.render_as_string(hide_password=True)

    def _write_key(self, path: Path) -> None:
        """Write the key whole or not at all, to the disk."""
        part = path.with_suffix(".part")
        descriptor = os.open(part, os.O_CREAT | os.O_WRONLY, 0o600)
        with os.fdopen(descriptor, "w") as file:
            json.dump({"key": secrets.token_hex(32), "place": self._place}, file)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
        folder = os.open(path.parent, os.O_RDONLY)
        os.fsync(folder)
        os.close(folder)

    @cached_property
    def _connection(self) -> sa.Connection:
        """One connection, held open: transactions are begun and ended by hand."""
        named: dict[str, Any] = {"timeout": _WAIT_SECONDS} if self._path else {}
        engine = sa.create_engine(
            self._target, connect_args=named, isolation_level="AUTOCOMMIT"
        )
        durable = _durable_sqlite if self._path else _durable_postgresql
        sa.event.listen(engine, "connect", durable)
        return engine.connect()

    def execute(self, statement: Any, **named: Any) -> Any:
        """Run a statement whose SQL was made once and for all; return a cursor."""
        if isinstance(statement, str):
            return self._driver.execute(statement)
        if (compiled := self._compiled.get(id(statement))) is None:
            made = statement.compile(dialect=self._connection.dialect)
            compiled = made.string, made.params, made.positiontup
            self._compiled[id(statement)] = compiled
        sql, given, order = compiled
        if len(named) < len(given):
            named = given | named
        values = [named[name] for name in order] if order else named
        return self._driver.execute(sql, values)

    @cached_property
    def _driver(self) -> Any:
        """The driver's own connection: what is run for each charge goes there."""
        return self._connection.connection.driver_connection

    def transaction(self) -> Transaction:
        """Alone with the last rows; leaves with the mark raised to what was appended.

        An answer must not leave before this has ended.
        """
        return Transaction(self)

    def _raise_mark(self, last: Row) -> None:
        """Raise the mark; where it is higher already, its row must be in this copy."""
        mark = self._mark
        mark.raise_to(last["seq"], last["mac"])
        if mark.mac != last["mac"]:
            found = self.execute(_MAC_OF, wanted=mark.seq).fetchone()
            if found is None or found[0] != mark.mac:
                raise LedgerCorruptedError(
                    f"{self.url} is one of two copies that were written to: row "
                    f"{mark.seq} is in another. Keep the one that has spent more. "
                    "Nothing was released."
                )

    def _check_version(self, connection: sa.Connection) -> None:
        if not sa.inspect(connection).has_table("mapl_meta"):
            raise LedgerError(_NONE.format(url=self.url))
        found = connection.execute(sa.select(_META.c.name, _META.c.value))
        meta = {str(name): str(value) for name, value in found}
        version = int(meta["version"]) if meta.get("version", "").isdigit() else 0
        if version < 1 or "id" not in meta:
            raise LedgerCorruptedError(f"{self.url} has no version: it is damaged.")
        if version > VERSION:
            raise LedgerError(
                f"The ledger at {self.url} was written by a newer mapl (schema "
                f"{version}, this one knows {VERSION}). Upgrade mapl."
            )
        for step in range(version, VERSION):
            for statement in MIGRATIONS[step]:
                connection.exec_driver_sql(statement)
        if version < VERSION:
            connection.execute(
                sa.update(_META)
                .where(_META.c.name == "version")
                .values(value=str(VERSION))
            )
        self.id = meta["id"]

    @cached_property
    def _key(self) -> bytes:
        path = state_folder() / f"{self.id}.key"
        try:
            return bytes.fromhex(json.loads(path.read_text())["key"])
        except (OSError, ValueError, KeyError) as error:
            raise LedgerError(
                f"The key of the ledger at {self.url} is not on this machine. Copy "
                f"{path} from where the ledger was created (MAPL_STATE names the "
                "folder). Without it rows can neither be checked nor added."
            ) from error

    @cached_property
    def _mark(self) -> Mark:
        return Mark(state_folder() / f"{self.id}.mark")

    def keyed(self, content: bytes) -> str:
        """Return a digest that nobody without the key can make or look up."""
        return blake2b(
            content, digest_size=32, key=self._key, person=b"content"
        ).hexdigest()

    def mac(self, row: Row, before: bytes) -> bytes:
        """Return the digest that chains a row to the one before it."""
        cells = [row[name] for name in _CHAINED]
        cells.append(sha256(row["blob"]).hexdigest())
        # ascii() of integers and strings: no two lists look the same
        content = before + ascii(cells).encode()
        return blake2b(content, digest_size=32, key=self._key, person=b"row").digest()

    def verify(self) -> int:
        """Read every row and check the whole chain; return how many there are."""
        with self.transaction() as transaction:
            follow = Follower(self)
            total = transaction.last["seq"] if transaction.last else 0
            with Progress("Checking rows", total) as progress:
                while rows := transaction.page(follow.seq):
                    for row in rows:
                        follow(row)
                    progress.advance(len(rows))
            if self._path is not None:
                found = transaction.connection.exec_driver_sql("PRAGMA integrity_check")
                if (said := found.scalar()) != "ok":
                    raise LedgerCorruptedError(f"{self.url} is damaged: {said}.")
            return follow.seq

    def close(self) -> None:
        """Give the connection back; it is opened anew when it is needed."""
        with self._lock:
            self._forget()

    def _forget(self) -> None:
        self._last, self._checked = None, False
        self.__dict__.pop("_driver", None)
        if mark := self.__dict__.pop("_mark", None):
            mark.close()
        if connection := self.__dict__.pop("_connection", None):
            with suppress(Exception):
                connection.close()
                connection.engine.dispose()

    def __del__(self) -> None:
        if "_lock" in self.__dict__:
            self._forget()

    def __repr__(self) -> str:
        return f"Journal({self.url!r})"


class Turn:
    """One thread at a time, from BEGIN to COMMIT. After any failure all is rolled back,
    and opened and checked anew; what the database refuses is told as a LedgerError.
    """

    # Not a generator's context: this is entered for each charge.

    def __init__(self, journal: Journal) -> None:
        self.journal = journal

    def __enter__(self) -> Self:
        self.journal._lock.acquire()
        try:
            self._begin()
        except BaseException as error:
            self._give_up(error)
            raise
        return self

    def __exit__(self, kind: object, error: BaseException | None, at: object) -> None:
        if error is None:
            try:
                self._commit()
            except BaseException as refused:
                self._give_up(refused)
                raise
            self.journal._lock.release()
        else:
            self._give_up(error)

    @property
    def connection(self) -> sa.Connection:
        """The connection that this turn is on."""
        return self.journal._connection

    def _begin(self) -> None:
        self.journal.execute("BEGIN IMMEDIATE" if self.journal._path else "BEGIN")

    def _commit(self) -> None:
        self.journal.execute("COMMIT")

    def _give_up(self, error: BaseException) -> None:
        journal = self.journal
        with suppress(Exception):
            journal.execute("ROLLBACK")
        journal._forget()
        journal._lock.release()
        if not isinstance(error, _REFUSALS):
            return
        # The first line only, and no cause: PostgreSQL goes on to show the row.
        reason = str(getattr(error, "orig", None) or error).strip()
        reason = reason.partition("\n")[0]
        corrupted = isinstance(error, UnicodeDecodeError) or any(
            sign in reason for sign in ("malformed", "not a database")
        )
        raise (LedgerCorruptedError if corrupted else LedgerError)(
            f"The ledger at {journal.url} did not take it: {reason}. Nothing was "
            "released. Mend that and run the same again: what was committed is "
            "found, and costs nothing twice."
        ) from None


class Transaction(Turn):
    """One writer's turn: rows are read and checked, and appended."""

    def _begin(self) -> None:
        super()._begin()
        journal = self.journal
        if not journal._checked:
            journal._check_version(self.connection)
        if journal._path is None:
            journal.execute("LOCK TABLE mapl_entries IN EXCLUSIVE MODE")
        self.last = self._checked_end()

    def _commit(self) -> None:
        super()._commit()
        journal, last = self.journal, self.last
        if last is not None and last["seq"] > journal._mark.seq:
            journal._raise_mark(last)
        journal._checked, journal._last = True, last

    def last_of(self, dataset: str) -> Row | None:
        """Return the last row of a data set."""
        if self.last is not None and self.last["dataset"] == dataset:
            return self.last
        return self._one(_LAST_OF, name=dataset)

    def requested(self, dataset: str, request: str) -> Row | None:
        """Return the row of a request."""
        return self._one(_REQUESTED, name=dataset, wanted=request)

    def append(self, row: Row) -> Row:
        """Add a row; it is there once the transaction has ended."""
        before = self.last["mac"] if self.last else _GENESIS
        row = {**row, "seq": self.last["seq"] + 1 if self.last else 1}
        row["mac"] = self.journal.mac(row, before)
        self.journal.execute(_INSERT, **row)
        self.last = row
        return row

    def count(self, dataset: str, kind: str) -> int:
        """Return how many rows of a kind a data set has."""
        query = sa.select(sa.func.count()).where(
            ENTRIES.c.dataset == dataset, ENTRIES.c.kind == kind
        )
        return int(self.connection.execute(query).scalar_one())

    def refuse_gaps(self, since: int = 1) -> None:
        """Refuse a journal that lacks a row between this one and its last."""
        query = sa.select(sa.func.count(), sa.func.max(ENTRIES.c.seq))
        found = self.connection.execute(query.where(ENTRIES.c.seq >= since)).one()
        if found[0] != (found[1] or since - 1) - since + 1:
            raise LedgerCorruptedError(
                f"Rows of {self.journal.url} are missing. Restore the newest backup "
                "that verifies: mapl ledger verify."
            )

    def last_begun(self) -> list[Row]:
        """Return the job of each data set that was begun last."""
        newest = (
            sa.select(sa.func.max(ENTRIES.c.seq))
            .where(ENTRIES.c.kind == "begin")
            .group_by(ENTRIES.c.dataset)
        )
        return self.rows(ENTRIES.c.seq.in_(newest))

    def rows(self, *where: Any, after: int = 0) -> list[Row]:
        """Return at most a page of rows in order, each checked."""
        return [self._checked(row) for row in self.page(after, *where)]

    def page(self, after: int, *where: Any) -> list[Row]:
        """Return at most a page of rows in order, not checked."""
        query = _SELECT.where(ENTRIES.c.seq > after, *where)
        found = self.connection.execute(query.order_by(ENTRIES.c.seq).limit(_PAGE))
        return [self._row(row) for row in found]

    def _one(self, query: Any, **named: Any) -> Row | None:
        row = self.journal.execute(query, **named).fetchone()
        if row is None:
            return None
        return self._checked(self._row(row))

    def _row(self, values: Iterable[Any]) -> Row:
        """Name the cells; one of another type than was written shows damage."""
        row = dict(zip(_TYPES, values, strict=True))
        if not all(isinstance(row[name], kind) for name, kind in _TYPES.items()):
            raise LedgerCorruptedError(f"{self.journal.url} is damaged.")
        return row

    def _checked(self, row: Row, before: bytes | None = None) -> Row:
        if before is None:
            before = self._mac_of(row["seq"] - 1)
        if self.journal.mac(row, before) != row["mac"]:
            raise LedgerCorruptedError(
                f"Row {row['seq']} of {self.journal.url} is not what was written. "
                "Restore the newest backup that verifies: mapl ledger verify."
            )
        return row

    def _mac_of(self, seq: int) -> bytes:
        found = self.journal.execute(_MAC_OF, wanted=seq).fetchone()
        return found[0] if found and isinstance(found[0], bytes) else _GENESIS

    def _checked_end(self) -> Row | None:
        """Check the newest row, and on opening all since the mark."""
        known = self.journal._last
        if known is not None:
            newest = self.journal.execute(_LAST).fetchone()
            if newest is not None and newest[0] == known["mac"]:
                return known  # nobody has written since
        ends = [self._row(row) for row in self.connection.execute(_LAST_TWO)]
        last = ends[0] if ends else None
        mark = self.journal._mark
        if not self.journal._checked:
            mark.read()
        if mark.seq and (last is None or last["seq"] < mark.seq):
            have = last["seq"] if last else 0
            raise LedgerCorruptedError(
                f"{self.journal.url} is an older copy: it ends at row {have}, this "
                f"machine has seen row {mark.seq}. Restore the newest copy; what was "
                "spent since is not forgotten."
            )
        if last is None:
            return None
        self._checked(last, ends[1]["mac"] if len(ends) > 1 else _GENESIS)
        if not self.journal._checked:
            self.refuse_gaps()
            if last["seq"] > mark.seq:
                self._check_since(mark)
        mark.check(last)
        return last

    def _check_since(self, mark: Mark) -> None:
        """Check the row at the mark and all that follow."""
        follow = Follower(self.journal, start=max(mark.seq - 1, 0))
        if follow.seq:
            follow.mac = self._mac_of(follow.seq)
        while rows := self.page(follow.seq):
            for row in rows:
                follow(row)
                mark.check(row)


class Follower:
    """Checks row after row: no gap, the chain, and totals that add up."""

    def __init__(self, journal: Journal, start: int = 0) -> None:
        self.journal, self.seq, self.mac = journal, start, _GENESIS
        self.totals: dict[str, tuple[int, ...]] = {}
        self.whole = start == 0

    def __call__(self, row: Row) -> None:
        """Take the next row."""
        name, totals = row["dataset"], self._totals(row)
        known = self.totals.get(name, (0, 0, 0) if self.whole else None)
        adds_up = known is None or totals == (
            known[0] + 1,
            known[1] + row["loss"],
            known[2] + row["delta"],
        )
        if (
            row["seq"] != self.seq + 1
            or self.journal.mac(row, self.mac) != row["mac"]
            or not adds_up
        ):
            raise LedgerCorruptedError(
                f"{self.journal.url} is damaged at row {self.seq + 1}: rows are "
                "missing or not what was written. Restore the newest backup that "
                "verifies."
            )
        self.seq, self.mac, self.totals[name] = row["seq"], bytes(row["mac"]), totals

    @staticmethod
    def _totals(row: Row) -> tuple[int, ...]:
        return row["number"], row["loss_spent"], row["delta_spent"]


class Mark:
    """How far this machine has seen the journal: a file of two slots.

    The slots are written in turn, so that a torn write leaves the other one. The mark
    never goes back.
    """

    _SLOT = 64  # number, mac, and half a digest of both

    def __init__(self, path: Path) -> None:
        self.path, self.seq, self.mac = path, 0, _GENESIS
        try:
            self._file = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
        except OSError as error:
            raise LedgerError(
                f"The mark {path} cannot be opened ({error.strerror}). Nothing was "
                "released."
            ) from error

    def read(self) -> None:
        """Take the highest mark that is whole; none of them whole is an error."""
        both = os.pread(self._file, 2 * self._SLOT, 0)
        slots = [both[: self._SLOT], both[self._SLOT :]]
        whole = [s for s in slots if len(s) == self._SLOT and s[40:] == _half(s[:40])]
        if any(slots) and not whole:
            raise LedgerCorruptedError(
                f"The mark {self.path} is damaged: an old copy of the ledger could no "
                "longer be told. Check the ledger, then remove the mark."
            )
        for slot in whole:
            number = int.from_bytes(slot[:8])
            if number > self.seq:
                self.seq, self.mac = number, slot[8:40]

    def raise_to(self, seq: int, mac: bytes) -> None:
        """Write a higher mark, to the disk; or read the one that is there."""
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX)
            try:
                self.read()
                if seq > self.seq:
                    body = seq.to_bytes(8) + mac
                    at = seq % 2 * self._SLOT
                    slot = body + _half(body)
                    os.pwritev(self._file, [slot], at, os.RWF_DSYNC)
                    self.seq, self.mac = seq, mac
            finally:
                fcntl.flock(self._file, fcntl.LOCK_UN)
        except OSError as error:
            raise LedgerError(
                f"The mark {self.path} cannot be written ({error.strerror}). What was "
                "charged is committed; nothing was released. Mend that and run the "
                "same again: it costs nothing twice."
            ) from error

    def check(self, row: Row) -> None:
        """Refuse a row that is another than the one seen before."""
        if row["seq"] == self.seq and row["mac"] != self.mac:
            raise LedgerCorruptedError(
                f"Row {self.seq} is another than this machine has seen: two copies of "
                "one ledger were written to. Keep the one that has spent more."
            )

    def close(self) -> None:
        """Give the file back."""
        os.close(self._file)


def _half(body: bytes) -> bytes:
    return sha256(body).digest()[:24]


def _parsed(url: str) -> tuple[sa.URL, Path | None]:
    try:
        target = sa.make_url(url)
    except sa.exc.ArgumentError:
        target = sa.URL.create("unknown")
    kind = target.get_backend_name() if target.drivername != "unknown" else ""
    if kind == "sqlite" and target.database and target.database != ":memory:":
        path = Path(target.database).absolute()
        return target.set(drivername="sqlite", database=str(path)), path
    if kind == "postgresql":
        return target.set(drivername="postgresql+psycopg"), None
    shown = target.render_as_string() if target.password else url
    raise LedgerError(
        f"ledger must be a URL such as sqlite:///budget.db or "
        f"postgresql://user@host/database, got {shown!r}."
    )


def _refuse_network(folder: Path) -> None:
    """SQLite's locks do not hold on network file systems."""
    if not folder.is_dir():
        raise LedgerError(f"The folder {folder} does not exist.")
    if not _MOUNTS.exists():
        return
    where, kind = "", ""
    for line in _MOUNTS.read_text().splitlines():
        point, type_ = line.split()[1:3]
        inside = folder.resolve().is_relative_to(point.replace("\\040", " "))
        if inside and len(point) >= len(where):
            where, kind = point, type_
    if kind in _NETWORK:
        raise LedgerError(
            f"{folder} is on a network file system ({kind}), where SQLite's locks do "
            "not hold. Use a local disk, or PostgreSQL."
        )


def _durable_sqlite(connection: Any, record: object) -> None:
    """Write-ahead log, synced at each commit: asked for, and asserted."""
    cursor = connection.cursor()
    mode = cursor.execute("PRAGMA journal_mode=WAL").fetchone()[0]
    cursor.execute("PRAGMA synchronous=FULL")
    level = cursor.execute("PRAGMA synchronous").fetchone()[0]
    cursor.execute("PRAGMA cell_size_check=ON")
    cursor.close()
    if (mode, level) != ("wal", 2):
        raise LedgerError(
            f"SQLite does not write durably here (journal {mode}, synchronous {level})."
        )


def _durable_postgresql(connection: Any, record: object) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SET synchronous_commit TO on")
        cursor.execute(f"SET lock_timeout TO '{_WAIT_SECONDS}s'")
        cursor.execute("SHOW fsync")
        (fsync,) = cursor.fetchone()
    connection.commit()
    if fsync != "on":
        raise LedgerError("PostgreSQL does not write durably here (fsync is off).")
