"""A connection to a ledger's database, and the key that chains its rows.

SQLite for one machine, PostgreSQL for many. Each row carries a keyed digest of itself
and of the row before it, so that a changed byte, a missing row or a forged row is
noticed when it is read. The key lies outside the database, in the state folder.
"""

from __future__ import annotations

import json
import os
import threading
from contextlib import suppress
from functools import cached_property
from hashlib import blake2b, sha256
from pathlib import Path
from typing import Any
from weakref import WeakSet

import sqlalchemy as sa

from mapl.errors import LedgerError, hide_passwords
from mapl.ledger.files import HighWaterMark, given_key, state_folder
from mapl.ledger.secrecy import Cipher
from mapl.ledger.tables import CHAINED

Row = dict[str, Any]
NO_LEDGER = (
    "There is no ledger at {url}. Make one with: mapl ledger create {url} "
    "--dataset NAME --epsilon E --delta D"
)

_WAIT_SECONDS = 60  # for other writers
# SQLite's connections and file locks must not survive a fork: they are closed before
# it, and opened again when they are needed.
_OPEN: WeakSet[Store] = WeakSet()
_HELD: list[Store] = []


def _before_fork() -> None:
    for store in list(_OPEN):
        if store.lock.acquire(timeout=_WAIT_SECONDS):
            store.reset()
            _HELD.append(store)


def _after_fork() -> None:
    while _HELD:
        _HELD.pop().lock.release()


# Windows has no fork.
getattr(os, "register_at_fork", lambda **_: None)(
    before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork
)


class Store:
    """The database of a ledger, and its key.

    Parameters
    ----------
    url : str
        ``sqlite:///path`` or ``postgresql://user@host/database``.
    """

    def __init__(self, url: str) -> None:
        self._target, self.path = _parsed(url)
        self.url = url
        if self._target.password:
            self.url = self._target.render_as_string(hide_password=True)
        self.url = hide_passwords(self.url)
        self._compiled: dict[int, tuple[str, Any, Any]] = {}
        self.lock = threading.Lock()
        self.last: Row | None = None  # as this process left it
        self.checked = False  # everything since the mark, on opening
        self.id = ""  # read when a transaction begins
        _OPEN.add(self)

    @property
    def place(self) -> str:
        """Return the URL as a key file records it, without a password."""
        return hide_passwords(self._target.render_as_string(hide_password=True))

    @property
    def target(self) -> sa.URL:
        """What to connect to."""
        return self._target

    @cached_property
    def connection(self) -> sa.Connection:
        """One connection, held open; `WriteLock` begins and ends transactions."""
        options: dict[str, Any] = {"timeout": _WAIT_SECONDS} if self.path else {}
        engine = sa.create_engine(
            self._target, connect_args=options, isolation_level="AUTOCOMMIT"
        )
        durable = _durable_sqlite if self.path else _durable_postgresql
        sa.event.listen(engine, "connect", durable)
        found = engine.connect()
        self._file = self._identity()
        return found

    def _identity(self) -> tuple[int, int] | None:
        """Return what tells the file from another one of its name."""
        if self.path is None:
            return None
        file = self.path.stat()
        return file.st_dev, file.st_ino

    def refuse_other_file(self) -> None:
        """Refuse to write to a file that was deleted or replaced."""
        try:
            same = self._identity() == self._file
        except OSError:
            same = False
        if not same:
            raise LedgerError(
                f"The file of {self.url} was removed or replaced while it was in use. "
                "Put it back. Nothing was released."
            )

    def execute(self, statement: Any, **params: Any) -> Any:
        """Run a statement, whose SQL is compiled once; return a cursor."""
        if isinstance(statement, str):
            return self._driver.execute(statement)
        if (compiled := self._compiled.get(id(statement))) is None:
            sql = statement.compile(dialect=self.connection.dialect)
            compiled = sql.string, sql.params, sql.positiontup
            self._compiled[id(statement)] = compiled
        text, defaults, order = compiled
        if len(params) < len(defaults):
            params = defaults | params
        values = [params[name] for name in order] if order else params
        return self._driver.execute(text, values)

    @cached_property
    def _driver(self) -> Any:
        """The driver's own connection, for what is run at each charge."""
        return self.connection.connection.driver_connection

    @cached_property
    def _key(self) -> bytes:
        """The key that chains the rows, from the state folder or ``MAPL_KEY``."""
        path = state_folder() / f"{self.id}.key"
        try:
            stored = json.loads(path.read_text())["key"] if path.exists() else None
            return bytes.fromhex(stored) if stored else given_key(self.id)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise LedgerError(
                f"The key of the ledger at {self.url} is not on this machine. Copy "
                f"{path} from where the ledger was created (MAPL_STATE names the "
                "folder), or set MAPL_KEY if it was created with one. Without it rows "
                "can neither be checked nor added."
            ) from error

    @cached_property
    def cipher(self) -> Cipher:
        """Encrypts what is private in a row; needs ``id``."""
        return Cipher(self._key)

    @cached_property
    def high_water_mark(self) -> HighWaterMark:
        """How far this machine has seen the ledger; needs ``id``."""
        return HighWaterMark(state_folder() / f"{self.id}.mark")

    def keyed_digest(self, content: bytes) -> str:
        """Return a digest that nobody without the key can compute.

        Ledgers store it: with another formula, a request made before would be charged
        again.
        """
        return blake2b(
            content, digest_size=32, key=self._key, person=b"content"
        ).hexdigest()

    def mac(self, row: Row, before: bytes) -> bytes:
        """Return the digest that chains a row to the one before it."""
        cells = [row[name] for name in CHAINED]
        cells.append(sha256(row["blob"]).hexdigest())
        # ascii() of integers and strings: different lists never look the same
        content = before + ascii(cells).encode()
        return blake2b(content, digest_size=32, key=self._key, person=b"row").digest()

    def close(self) -> None:
        """Close the connection; it is opened again when it is needed."""
        with self.lock:
            self.reset()

    def reset(self) -> None:
        """Close everything, and check everything again on the next use."""
        self.last, self.checked = None, False
        self.__dict__.pop("_driver", None)
        if mark := self.__dict__.pop("high_water_mark", None):
            mark.close()
        if connection := self.__dict__.pop("connection", None):
            with suppress(Exception):
                connection.close()
                connection.engine.dispose()

    def __del__(self) -> None:
        if "lock" in self.__dict__:
            self.reset()

    def __repr__(self) -> str:
        return f"Store({self.url!r})"


def _parsed(url: str) -> tuple[sa.URL, Path | None]:
    """Return the URL for SQLAlchemy, and the path of an SQLite file."""
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
    raise LedgerError(
        f"ledger must be a URL such as sqlite:///budget.db or "
        f"postgresql://user@host/database, got {hide_passwords(url)!r}."
    )


def _durable_sqlite(connection: Any, record: object) -> None:
    """Write-ahead log, synced at each commit: set, and checked."""
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
    """Wait for the disk at each commit: set, and checked."""
    with connection.cursor() as cursor:
        cursor.execute("SET synchronous_commit TO on")
        cursor.execute(f"SET lock_timeout TO '{_WAIT_SECONDS}s'")
        cursor.execute("SHOW fsync")
        (fsync,) = cursor.fetchone()
    connection.commit()
    if fsync != "on":
        raise LedgerError("PostgreSQL does not write durably here (fsync is off).")
