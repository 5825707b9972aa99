"""One process at a time, across a machine or, with PostgreSQL, across several.

A running mechanism has one state: two processes that start from the same one would
spend it twice. A process that dies gives its turn back.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256

import sqlalchemy as sa

from mapl.ledger.files import locked, state_folder
from mapl.ledger.store import Store


@contextmanager
def turn(store: Store, name: str) -> Iterator[None]:
    """Wait for a turn, and hold it."""
    if store.path is not None:
        folder = state_folder() / "turns"
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        place = os.open(folder / f"{name[:32]}", os.O_CREAT | os.O_RDWR, 0o600)
        try:
            with locked(place):
                yield
        finally:
            os.close(place)
        return
    number = int.from_bytes(sha256(name.encode()).digest()[:8], signed=True)
    engine = sa.create_engine(store.target, poolclass=sa.NullPool)
    with engine.connect() as connection:  # it is given back when this ends
        connection.execute(sa.text("SELECT pg_advisory_lock(:n)"), {"n": number})
        yield
