"""One process at a time, across a machine or, with PostgreSQL, across several.

A running mechanism has one state: two processes that start from the same one would
spend it twice. A process that dies gives its turn back.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from hashlib import sha256

import sqlalchemy as sa

from mapl.errors import LedgerError
from mapl.ledger.files import locked, state_folder
from mapl.ledger.store import Store

_SECONDS = 30  # that a turn is waited for


@contextmanager
def turn(store: Store, name: str) -> Iterator[None]:
    """Wait for a turn, and hold it."""
    if store.path is not None:
        with _file_turn(name[:32]):
            yield
        return
    number = int.from_bytes(sha256(name.encode()).digest()[:8], signed=True)
    engine = sa.create_engine(store.target, poolclass=sa.NullPool)
    with ExitStack() as held:
        try:
            connection = held.enter_context(engine.connect())
            connection.execute(sa.text(f"SET lock_timeout TO '{_SECONDS}s'"))
            connection.execute(sa.text("SELECT pg_advisory_lock(:n)"), {"n": number})
        except sa.exc.SQLAlchemyError:
            raise _refused() from None
        yield  # the turn is given back when the connection ends


@contextmanager
def _file_turn(name: str) -> Iterator[None]:
    folder = state_folder() / "turns"
    with ExitStack() as held:
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            place = os.open(folder / name, os.O_CREAT | os.O_RDWR, 0o600)
            held.callback(os.close, place)
            held.enter_context(locked(place, seconds=_SECONDS))
        except OSError:
            raise _refused() from None
        yield


def _refused() -> LedgerError:
    return LedgerError(
        f"No turn to ask this panel within {_SECONDS} seconds: another process holds "
        "it, or the state folder or database cannot be used. Nothing was released."
    )
