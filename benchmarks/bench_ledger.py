"""The ledger's speed: durable charges a second, commits a batch, time to open.

    python benchmarks/bench_ledger.py [--charges 2000] [--rows 1000000] [--json]

The bare loop inserts the same row into the same table of SQLite with the same
durability, and syncs one small file; it computes, checks and chains nothing. Loops
of 20 take turns, so that a busy machine slows both; their medians are compared.
"""

import argparse
import json
import os
import sqlite3
import tempfile
import time
from fractions import Fraction
from hashlib import sha256
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import sqlalchemy as sa

from mapl import ChargedDissent, Ledger
from mapl.ledger.tables import ENTRIES
from mapl.ledger.transaction import Transaction
from mapl.privacy.events import GaussianEvent
from mapl.release.labeler import Labeler

EVENT = GaussianEvent(sigma=Fraction(400), steps=10)


def new_ledger(folder: Path, name: str) -> Ledger:
    ledger = Ledger(f"sqlite:///{folder}/{name}.db", create=True)
    ledger.create("people", epsilon=1e5, delta=0.9)
    return ledger


class Bare:
    """The same insert, and nothing else."""

    def __init__(self, folder: Path, like: Path) -> None:
        self.connection = sqlite3.connect(folder / "bare.db", isolation_level=None)
        self.connection.execute("PRAGMA journal_mode=WAL")
        self.connection.execute("PRAGMA synchronous=FULL")
        with sqlite3.connect(like) as other:
            (schema,) = other.execute(
                "SELECT sql FROM sqlite_master WHERE name = 'mapl_entries'"
            ).fetchone()
            self.row = list(
                other.execute("SELECT * FROM mapl_entries WHERE seq = 2").fetchone()
            )
        self.connection.execute(schema)
        self.mark = os.open(folder / "bare.mark", os.O_CREAT | os.O_RDWR)
        marks = ", ".join("?" * len(self.row))
        self.insert = f"INSERT INTO mapl_entries VALUES ({marks})"
        self.seq = 0

    def charge(self) -> None:
        """Insert, commit, sync."""
        self.seq += 1
        names = [column.name for column in ENTRIES.columns]
        row = dict(zip(names, self.row, strict=True))
        request = sha256(b"%d" % self.seq).hexdigest()
        row |= {"seq": self.seq, "number": self.seq, "request": request}
        self.connection.execute("BEGIN IMMEDIATE")
        self.connection.execute(self.insert, list(row.values()))
        self.connection.execute("COMMIT")
        os.pwrite(self.mark, bytes(64), self.seq % 2 * 64)
        os.fdatasync(self.mark)


def charges(folder: Path, n: int) -> dict[str, Any]:
    ledger = new_ledger(folder, "speed")
    ledger.job("people", b"first", delta=1e-9).charge(EVENT)
    bare = Bare(folder, folder / "speed.db")
    ours, theirs = [], []
    for start in range(0, n, 20):
        begin = time.perf_counter()
        for i in range(start, start + 20):
            ledger.job("people", b"%d" % i, delta=1e-9).charge(EVENT)
        middle = time.perf_counter()
        for _ in range(20):
            bare.charge()
        ours.append((middle - begin) / 20)
        theirs.append((time.perf_counter() - middle) / 20)
    return {
        "charges": n,
        "charges_a_second": round(1 / median(ours)),
        "bare_sqlite_and_one_sync_a_second": round(1 / median(theirs)),
        "ratio": round(median(theirs) / median(ours), 2),
    }


def commits_of_a_batch(folder: Path, n_queries: int) -> dict[str, Any]:
    """Count the commits that a batch of queries needs once its mechanism is open."""
    ledger = new_ledger(folder, "batch")
    votes = np.random.default_rng(0).integers(0, 2, (250, n_queries)).astype(np.int8)
    job = ledger.job("people", b"batch", delta=1e-6)
    labeler = Labeler(votes, n_classes=2, account=job)
    mechanism = ChargedDissent(
        sigma=4000, dissents=n_queries, n_teachers=250, n_classes=2
    )
    labeler.open(mechanism)
    before = len(list(ledger.history()))
    start = time.perf_counter()
    labeler.shares(np.arange(n_queries), np.zeros(n_queries, dtype=np.int64))
    return {
        "queries": n_queries,
        "commits": len(list(ledger.history())) - before,
        "seconds": round(time.perf_counter() - start, 3),
    }


def opening(folder: Path, n_rows: int) -> dict[str, Any]:
    """Time the opening of a ledger with many rows, and a full verification."""
    ledger = new_ledger(folder, "long")
    job = ledger.job("people", b"x", delta=1e-9)
    job.charge(EVENT)
    step = 0
    while step < n_rows:
        with Transaction(ledger.store) as transaction:
            last = transaction.last
            assert last is not None
            for _ in range(min(50_000, n_rows - step)):
                step += 1
                row = {**last, "number": last["number"] + 1, "request": f"r{step}"}
                row |= {"kind": "ask", "loss": 0, "delta": 0}
                last = transaction.append(row)
    ledger.close()
    start = time.perf_counter()
    again = Ledger(ledger.url)
    opened = time.perf_counter() - start
    start = time.perf_counter()
    rows = again.verify()
    return {
        "rows": rows,
        "open_seconds": round(opened, 3),
        "verify_seconds": round(time.perf_counter() - start, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--charges", type=int, default=2000)
    parser.add_argument("--rows", type=int, default=10**6)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["MAPL_STATE"] = str(folder / "state")
        result = {
            "sqlite": sqlite3.sqlite_version,
            "sqlalchemy": sa.__version__,
            "charge": charges(folder, options.charges),
            "batch": commits_of_a_batch(folder, 10_000),
            "opening": opening(folder, options.rows),
        }
    if options.json:
        print(json.dumps(result, indent=2))
    else:
        for part, values in result.items():
            print(f"{part:12} {values}")


if __name__ == "__main__":
    main()
