"""One writer at a time: rows are read and checked, and appended."""

import re
import sqlite3
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, Self

import psycopg
import sqlalchemy as sa

from mapl.errors import LedgerCorruptedError, LedgerError
from mapl.ledger import tables
from mapl.ledger.files import GENESIS, HighWaterMark
from mapl.ledger.store import NO_LEDGER, Row, Store
from mapl.ledger.tables import (
    ENTRIES,
    INSERT,
    LAST_LIKE,
    LAST_MAC,
    LAST_OF_DATASET,
    LAST_TWO,
    MAC_OF,
    META,
    NUMBERS_SINCE,
    OF_REQUEST,
    ROWS_SINCE,
    SELECT,
    TYPES,
)
from mapl.ledger.verify import ChainVerifier

_REFUSALS = (sa.exc.SQLAlchemyError, sqlite3.Error, psycopg.Error, UnicodeDecodeError)
_PAGE = 10_000  # rows read at a time


class WriteLock:
    """One thread at a time, from BEGIN to COMMIT.

    After a failure everything is rolled back, closed, and checked again on the next
    use. What the database refuses becomes a LedgerError.
    """

    # A class, not a generator: this is entered for each charge.

    def __init__(self, store: Store) -> None:
        self.store = store

    def __enter__(self) -> Self:
        self.store.lock.acquire()
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
            self.store.lock.release()
        else:
            self._give_up(error)

    @property
    def connection(self) -> sa.Connection:
        """The connection that is locked."""
        return self.store.connection

    def _begin(self) -> None:
        self.store.execute("BEGIN IMMEDIATE" if self.store.path else "BEGIN")

    def _commit(self) -> None:
        self.store.execute("COMMIT")

    def _give_up(self, error: BaseException) -> None:
        """Roll back, close, release the lock; then explain what the database
        refused.
        """
        store = self.store
        with suppress(Exception):
            store.execute("ROLLBACK")
        store.reset()
        store.lock.release()
        if not isinstance(error, _REFUSALS):
            return
        # Only the first line, and no cause: PostgreSQL goes on to show the row.
        reason = str(getattr(error, "orig", None) or error).strip()
        reason = reason.partition("\n")[0]
        corrupted = isinstance(error, UnicodeDecodeError) or any(
            sign in reason for sign in ("malformed", "not a database")
        )
        raise (LedgerCorruptedError if corrupted else LedgerError)(
            f"The ledger at {store.url} failed: {reason}. Nothing was "
            "released. Fix the cause and rerun; committed charges are reused."
        ) from None


class Transaction(WriteLock):
    """A write lock with the last row checked; ends with the mark raised.

    An answer must not leave before this has ended.
    """

    def _begin(self) -> None:
        """Check the version, then lock the table, then check the last row.

        In this order: the version's tables must exist before they are locked, and the
        last row is the last one only under the lock.
        """
        super()._begin()
        store = self.store
        store.refuse_other_file()
        if not store.checked:
            self._check_version()
        if store.path is None:
            store.execute("LOCK TABLE mapl_entries IN EXCLUSIVE MODE")
        self.last = self._checked_last()

    def _commit(self) -> None:
        """Commit, then raise the mark: with a mark above its last row, a ledger that
        crashed in between would be taken for an old copy.
        """
        super()._commit()
        store, last = self.store, self.last
        if last is not None and last["seq"] > store.high_water_mark.seq:
            self._raise_mark(last)
        store.checked, store.last = True, last

    def last_of(self, dataset: str) -> Row | None:
        """Return the last row of a data set, None if it has no budget."""
        if self.last is not None and self.last["dataset"] == dataset:
            return self.last
        return self._first(LAST_OF_DATASET, name=dataset)

    def budget_of(self, dataset: str) -> Row:
        """Return the last row of a data set that must have a budget."""
        row = self.last_of(dataset)
        if row is None:
            url = self.store.url
            raise LedgerError(
                f"Data set {dataset!r} has no budget in {url}. Give it one: mapl "
                f"ledger create {url} --dataset {dataset} --epsilon E --delta D"
            )
        return row

    def requested(self, dataset: str, request: str) -> Row | None:
        """Return the row of a request."""
        return self._first(OF_REQUEST, name=dataset, wanted=request)

    def append(self, row: Row) -> Row:
        """Add a row; it is there once the transaction has ended."""
        before = self.last["mac"] if self.last else GENESIS
        row = {**row, "seq": self.last["seq"] + 1 if self.last else 1}
        row["mac"] = self.store.mac(row, before)
        self.store.execute(INSERT, **row)
        self.last = row
        return row

    def count(self, dataset: str, kind: str) -> int:
        """Return how many rows of a kind a data set has."""
        query = sa.select(sa.func.count()).where(
            ENTRIES.c.dataset == dataset, ENTRIES.c.kind == kind
        )
        return int(self.connection.execute(query).scalar_one())

    def latest(self, dataset: str, prefix: str) -> Row | None:
        """Return the newest row whose request begins like this."""
        return self._first(LAST_LIKE, name=dataset, pattern=f"{prefix}%")

    def newest(self, dataset: str, kind: str, n: int) -> list[Row]:
        """Return the last rows of a kind that a data set has, newest first."""
        query = SELECT.where(ENTRIES.c.dataset == dataset, ENTRIES.c.kind == kind)
        found = query.order_by(ENTRIES.c.number.desc()).limit(n)
        return [self._checked(self._row(r)) for r in self.connection.execute(found)]

    def count_replies(self, dataset: str, prefix: str) -> int:
        """Return how many replies have a request that begins like this."""
        query = sa.select(sa.func.count()).where(
            ENTRIES.c.dataset == dataset,
            ENTRIES.c.kind == "reply",
            ENTRIES.c.request.like(f"{prefix}%"),
        )
        return int(self.connection.execute(query).scalar_one())

    def refuse_gaps(self, dataset: str | None = None, *, since: int = 1) -> None:
        """Refuse a ledger, or a data set, that lacks a row since this number."""
        if dataset is None:
            found = self.store.execute(ROWS_SINCE, since=since).fetchone()
        else:
            given = {"name": dataset, "since": since}
            found = self.store.execute(NUMBERS_SINCE, **given).fetchone()
        if found[0] != (found[1] or since - 1) - since + 1:
            raise LedgerCorruptedError(
                f"Rows of {self.store.url} are missing. Restore the newest backup "
                "that verifies: mapl ledger verify."
            )

    def check_integrity(self) -> None:
        """Let SQLite check its own pages."""
        if self.store.path is not None:
            found = self.connection.exec_driver_sql("PRAGMA integrity_check").scalar()
            if found != "ok":
                raise LedgerCorruptedError(f"{self.store.url} is damaged: {found}.")

    def last_begun(self) -> list[Row]:
        """Return the newest begin row of each data set."""
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
        query = SELECT.where(ENTRIES.c.seq > after, *where)
        found = self.connection.execute(query.order_by(ENTRIES.c.seq).limit(_PAGE))
        return [self._row(row) for row in found]

    def _first(self, query: Any, **params: Any) -> Row | None:
        row = self.store.execute(query, **params).fetchone()
        if row is None:
            return None
        return self._checked(self._row(row))

    def _row(self, values: Iterable[Any]) -> Row:
        """Return the cells by name; a cell of another type means damage."""
        row = dict(zip(TYPES, values, strict=True))
        if not all(isinstance(row[name], kind) for name, kind in TYPES.items()):
            raise LedgerCorruptedError(f"{self.store.url} is damaged.")
        return row

    def _checked(self, row: Row, before: bytes | None = None) -> Row:
        """Return a row whose digest holds, given that of the row before it."""
        if before is None:
            before = self._mac_of(row["seq"] - 1)
        if self.store.mac(row, before) != row["mac"]:
            raise LedgerCorruptedError(
                f"Row {row['seq']} of {self.store.url} is not what was written. "
                "Restore the newest backup that verifies: mapl ledger verify."
            )
        return row

    def _mac_of(self, seq: int) -> bytes:
        found = self.store.execute(MAC_OF, wanted=seq).fetchone()
        return found[0] if found and isinstance(found[0], bytes) else GENESIS

    def _checked_last(self) -> Row | None:
        """Check the last row, and on opening all rows since the mark."""
        known = self.store.last
        if known is not None:
            newest = self.store.execute(LAST_MAC).fetchone()
            if newest is not None and newest[0] == known["mac"]:
                return known  # nobody has written since
        ends = [self._row(row) for row in self.connection.execute(LAST_TWO)]
        last = ends[0] if ends else None
        mark = self.store.high_water_mark
        if not self.store.checked:
            mark.read()
        if mark.seq and (last is None or last["seq"] < mark.seq):
            have = last["seq"] if last else 0
            raise LedgerCorruptedError(
                f"{self.store.url} is an older copy: it ends at row {have}, this "
                f"machine has seen row {mark.seq}. Restore the newest copy; what was "
                "spent since is not forgotten."
            )
        if last is None:
            return None
        self._checked(last, ends[1]["mac"] if len(ends) > 1 else GENESIS)
        if not self.store.checked:
            self.refuse_gaps()
            if last["seq"] > mark.seq:
                self._check_since(mark)
        mark.check(last)
        return last

    def _check_since(self, mark: HighWaterMark) -> None:
        """Check the row at the mark and all that follow."""
        verifier = ChainVerifier(self.store, start=max(mark.seq - 1, 0))
        if verifier.seq:
            verifier.mac = self._mac_of(verifier.seq)
        while rows := self.page(verifier.seq):
            for row in rows:
                verifier.check(row)
                mark.check(row)

    def _check_version(self) -> None:
        """Read version and id of the ledger; bring old tables up to date."""
        url, connection = self.store.url, self.connection
        if not sa.inspect(connection).has_table("mapl_meta"):
            raise LedgerError(NO_LEDGER.format(url=url))
        if set(sa.inspect(connection).get_view_names()) & {"mapl_meta", "mapl_entries"}:
            raise LedgerCorruptedError(f"{url} is no ledger: its tables are views.")
        found = connection.execute(sa.select(META.c.name, META.c.value))
        meta = {str(name): str(value) for name, value in found}
        given = meta.get("version", "")
        version = int(given) if re.fullmatch("[0-9]{1,6}", given) else 0
        # The id is part of the names of files.
        if version < 1 or not re.fullmatch("[0-9a-f]{32}", meta.get("id", "")):
            raise LedgerCorruptedError(f"{url} has no version: it is damaged.")
        if version > tables.VERSION:
            raise LedgerError(
                f"The ledger at {url} was written by a newer mapl (schema {version}, "
                f"this version knows {tables.VERSION}). Upgrade mapl."
            )
        for step in range(version, tables.VERSION):
            for statement in tables.MIGRATIONS[step]:
                connection.exec_driver_sql(statement)
        if version < tables.VERSION:
            connection.execute(
                sa.update(META)
                .where(META.c.name == "version")
                .values(value=str(tables.VERSION))
            )
        self.store.id = meta["id"]

    def _raise_mark(self, last: Row) -> None:
        """Raise the mark; where it is higher already, its row must be in this copy."""
        mark = self.store.high_water_mark
        mark.raise_to(last["seq"], last["mac"])
        if mark.mac != last["mac"]:
            found = self.store.execute(MAC_OF, wanted=mark.seq).fetchone()
            if found is None or found[0] != mark.mac:
                raise LedgerCorruptedError(
                    f"{self.store.url} is one of two copies that were written to: row "
                    f"{mark.seq} is in the other. Keep the one that has spent more. "
                    "Nothing was released."
                )
