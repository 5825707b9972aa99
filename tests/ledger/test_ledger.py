"""The ledger's contract, on SQLite and on PostgreSQL, and what may befall its files."""

import copy
import json
import os
import pickle
import random
import resource
import shutil
import signal
import sqlite3
import tempfile
import traceback
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from fractions import Fraction
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import psycopg
import pytest
import sqlalchemy as sa
from click.testing import CliRunner
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from sklearn.compose import make_column_transformer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder
from sklearn.tree import DecisionTreeClassifier

from kills import run_and_kill
from mapl import (
    BudgetExceededError,
    Ledger,
    LedgerCorruptedError,
    LedgerError,
    MechanismStateError,
    ParameterError,
    PrivacyWarning,
    PrivateClassifier,
    accounting,
)
from mapl.cli import main
from mapl.ledger import files, rules, tables
from mapl.ledger import job as job_module
from mapl.ledger import store as store_module
from mapl.ledger.job import StoredStep
from mapl.ledger.transaction import Transaction, WriteLock
from mapl.methods import votes
from mapl.privacy.events import Event, GaussianEvent, SparseVectorEvent
from mapl.student.rounds import Rounds
from mapl.teachers import training, voting

EVENT = GaussianEvent(sigma=Fraction(40), steps=100)
FORK = get_context("fork")


def made(url: str, *, epsilon: float = 3, delta: float = 1e-4, **kwargs: Any) -> Ledger:
    ledger = Ledger(url, create=True)
    ledger.create("people", epsilon=epsilon, delta=delta, **kwargs)
    return ledger


def charge(ledger: Ledger, content: bytes, event: Event = EVENT) -> None:
    ledger.job("people", content, delta=1e-5).charge(event)


def outcome(action: Callable[[], Any]) -> Any:
    try:
        return action()
    except LedgerError as error:
        return error


def in_a_child(action: Callable[[], Any]) -> Any:
    """Return what an action returns in a forked process."""
    here, there = FORK.Pipe(duplex=False)

    def run() -> None:
        there.send(outcome(action))

    child = FORK.Process(target=run)
    child.start()
    there.close()  # so that a child that dies is not waited for
    result = here.recv()
    child.join()
    return result


# The contract -----------------------------------------------------------------------


def test_a_budget_is_charged_until_it_is_spent(url: str) -> None:
    ledger = made(url)
    for content in (b"a", b"b", b"c"):
        charge(ledger, content)
    with pytest.raises(BudgetExceededError, match=r"2\.77.* of epsilon 3 is spent"):
        charge(ledger, b"d")
    balance = ledger.balance("people")
    price = accounting.epsilon([EVENT], delta=1e-5)
    assert 3 * price <= balance.epsilon_spent <= 3 * price + 3e-6 <= 3
    assert (balance.delta_spent, balance.releases) == (3e-5, 3)
    assert ledger.balances() == [balance]
    assert ledger.verify() == 4
    ledger.close()
    assert Ledger(url).balance("people") == balance


def test_ten_releases_of_a_tenth_of_delta_fit(url: str) -> None:
    ledger = made(url, epsilon=100)
    for i in range(10):
        charge(ledger, b"%d" % i)
    with pytest.raises(BudgetExceededError, match=r"of delta 0\.0001 is spent"):
        charge(ledger, b"more")


def test_the_same_request_costs_nothing_again(url: str) -> None:
    ledger = made(url, epsilon=1)
    charge(ledger, b"a")
    charge(ledger, b"a")
    charge(Ledger(url), b"a")
    assert ledger.balance("people").releases == 1
    with pytest.raises(LedgerError, match="another mechanism"):
        charge(ledger, b"a", replace(EVENT, steps=50))


def test_check_refuses_what_charge_would_and_charges_nothing(url: str) -> None:
    ledger = made(url, epsilon=1)
    job = ledger.job("people", b"a", delta=1e-5)
    job.check(EVENT)
    assert ledger.balance("people").releases == 0
    job.charge(EVENT)
    job.check(EVENT)  # has been paid
    with pytest.raises(BudgetExceededError):
        ledger.job("people", b"b", delta=1e-5).check(EVENT)


def test_the_first_reply_stays(url: str) -> None:
    job = made(url).job("people", b"a", delta=1e-5)
    job.begin(7)
    assert job.seed == 7
    job.charge(EVENT)
    assert job.stored_step(1) is None
    job.commit_question(1, {"left": [1, 2]}, b"question")
    asked = job.stored_step(1)
    assert asked is not None
    assert (asked.question, asked.reply) == (b"question", None)
    again = Ledger(url).job("people", b"a", delta=1e-5)
    assert again.commit_reply(1, {"left": [0, 2]}, b"one") == (
        {"left": [0, 2]},
        b"one",
    )
    assert job.commit_reply(1, {"left": [1, 1]}, b"two") == ({"left": [0, 2]}, b"one")
    asked = job.stored_step(1)
    assert asked is not None
    assert (asked.state, asked.reply) == ({"left": [0, 2]}, b"one")
    again.begin(8)
    assert again.seed == 7  # whoever runs it uses this one
    with pytest.raises(LedgerError, match="asked something else"):
        again.commit_question(1, {}, b"another question")
    with pytest.raises(MechanismStateError, match="has an open mechanism already"):
        job.charge(EVENT)


def test_sixteen_processes_get_exactly_the_budget(url: str) -> None:
    price = accounting.epsilon([EVENT], delta=1e-5)
    ledger = made(url, epsilon=20.5 * price, delta=1e-2)
    granted = FORK.Value("i", 0)

    def work(me: int) -> None:
        own = Ledger(url)
        for i in range(4):
            try:
                charge(own, b"%d %d" % (me, i))
            except BudgetExceededError:
                continue
            with granted.get_lock():
                granted.value += 1

    crowd = [FORK.Process(target=work, args=(me,)) for me in range(16)]
    for process in crowd:
        process.start()
    for process in crowd:
        process.join()
    assert [process.exitcode for process in crowd] == [0] * 16
    balance = ledger.balance("people")
    assert granted.value == balance.releases == 20
    assert balance.epsilon_spent <= balance.epsilon_limit
    assert ledger.verify() == 21


def test_forks_copies_and_pickles_share_one_budget(url: str) -> None:
    ledger = made(url, epsilon=1)

    def in_the_child() -> Any:
        charge(ledger, b"child")
        return ledger.balance("people").releases

    assert in_a_child(in_the_child) == 1
    with pytest.raises(BudgetExceededError):
        charge(ledger, b"parent")
    for action in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(LedgerError, match="Pass its URL"):
            action(ledger)


def test_bad_names_and_limits_are_refused(url: str) -> None:
    ledger = made(url)
    with pytest.raises(LedgerError, match=r"has a budget in .* already"):
        ledger.create("people", epsilon=9, delta=1e-5)
    with pytest.raises(
        LedgerError, match=r"'others' has no budget .* --dataset others"
    ):
        ledger.balance("others")
    with pytest.raises(ParameterError, match="must be a name"):
        ledger.create(" ", epsilon=1, delta=1e-5)
    with pytest.raises(ParameterError, match="rule must be one of 'basic', 'gaussian'"):
        ledger.create("a", epsilon=1, delta=1e-5, rule="none")
    for epsilon in (1e-7, 1e30):
        with pytest.raises(ParameterError, match="from 1e-6 to 1e6"):
            ledger.create("a", epsilon=epsilon, delta=1e-5)
    assert repr(ledger) == f"Ledger({url!r})"
    assert repr(ledger.store) == f"Store({url!r})"


def test_a_release_without_privacy_is_too_much_for_any_budget(url: str) -> None:
    ledger = made(url, epsilon=1e5, delta=0.5)
    ledger.create("more", epsilon=1e3, delta=0.5, rule="gaussian")
    for name in ("people", "more"):
        with pytest.raises(BudgetExceededError, match="needs infinite"):
            ledger.job(name, b"x", delta=1e-5).charge(replace(EVENT, seeded=True))


def test_gaussian_prices_add_up_in_squares(url: str) -> None:
    ledger = made(url, epsilon=2.1, delta=1e-5, rule="gaussian")
    one = 0.0
    for i in range(4):
        charge(ledger, b"%d" % i)
        balance = ledger.balance("people")
        one = one or balance.epsilon_spent
    assert 0.93 < one < 0.95
    assert balance.delta_spent == 1e-5
    truth = accounting.epsilon([EVENT] * 4, delta=0.9e-5)
    assert truth <= balance.epsilon_spent < 1.01 * truth
    leaky = SparseVectorEvent(
        noise_scale=Fraction(100),
        threshold=900,
        threshold_noise_scale=Fraction(0),
        redrawn=False,
        cutoff=1,
    )
    with pytest.raises(BudgetExceededError, match="of leaks 1e-06 is spent"):
        charge(ledger, b"leaky", leaky)
    with pytest.raises(BudgetExceededError, match="squared Gaussian shift"):
        charge(ledger, b"large", replace(EVENT, steps=400))


def test_history_shows_no_request_reply_or_state(url: str) -> None:
    ledger = made(url)
    ledger.create("others", epsilon=1, delta=1e-5)
    job = ledger.job("people", b"secret", delta=1e-5, what="a study")
    job.begin(424242, data="d1ge57")
    job.charge(EVENT)
    job.commit_question(1, {"left": [313131]}, b"question")
    job.commit_reply(1, {"left": [313131]}, b"re-ply")
    rows = list(ledger.history("people"))
    kinds = ["create", "begin", "charge", "ask", "reply"]
    assert [row["kind"] for row in rows] == kinds
    # A time of another row would tell how long training took.
    assert [row["kind"] for row in rows if "at" in row] == ["create", "charge"]
    assert rows[2]["what"] == "a study"
    assert rows[2]["event"] == EVENT.to_json()
    text = json.dumps(list(ledger.history()))
    assert len(list(ledger.history())) == 6
    for hidden in ("424242", "d1ge57", "313131", "question", "re-ply", job._request):
        assert hidden not in text


def test_the_schema_itself_refuses_changes_and_overdrafts(url: str) -> None:
    ledger = made(url)
    charge(ledger, b"a")
    with WriteLock(ledger.store) as lock:
        row = dict(
            lock.connection.execute(sa.select(tables.ENTRIES)).mappings().all()[1]
        )
    for statement in (
        "UPDATE mapl_entries SET loss_spent = 0",
        "DELETE FROM mapl_entries",
    ):
        with pytest.raises(LedgerError, match="append-only"):
            run_sql(ledger, statement)
    changes: list[dict[str, Any]] = [
        {"loss_spent": row["loss_limit"] + 1},
        {"delta_spent": row["delta_limit"] + 1},
        {"loss": -1},
        {"number": 1},
        {"kind": "refund"},
    ]
    for change in changes:
        bad = row | {"seq": 3, "number": 3, "request": "x", "sealed": "s3cret"} | change
        with pytest.raises(LedgerError, match=r"ledger at .* failed") as raised:
            insert(ledger, bad)
        assert "s3cret" not in "".join(traceback.format_exception(raised.value))
    insert(ledger, row | {"seq": 3, "number": 3, "request": "x"})  # but has no mac
    with pytest.raises(LedgerCorruptedError):
        Ledger(url)


def run_sql(ledger: Ledger, statement: str) -> None:
    with WriteLock(ledger.store):
        ledger.store.execute(statement)


def insert(ledger: Ledger, row: dict[str, Any]) -> None:
    with WriteLock(ledger.store) as lock:
        lock.connection.execute(sa.insert(tables.ENTRIES), row)


@pytest.mark.parametrize("column", [c.name for c in tables.ENTRIES.columns])
def test_a_changed_cell_is_found(url: str, column: str) -> None:
    ledger = made(url)
    for content in (b"a", b"b"):
        charge(ledger, content)
    if url.startswith("sqlite"):
        run_sql(ledger, "DROP TRIGGER mapl_no_update")
    else:
        run_sql(ledger, "DROP TRIGGER mapl_append_only ON mapl_entries")
    other: dict[type, Any] = {int: 2, str: "basic ", bytes: b"other"}
    for seq in (1, 2, 3):
        with WriteLock(ledger.store) as lock:
            table = tables.ENTRIES
            cell = table.c[column]
            old = lock.connection.execute(
                sa.select(cell).where(table.c.seq == seq)
            ).scalar()
            new = old + 40 if isinstance(old, int) else other[type(old)]
            new = "ask" if column == "kind" else new
            change = sa.update(table).where(table.c.seq == seq)
            try:
                lock.connection.execute(change.values({column: new}))
            except sa.exc.IntegrityError:
                return  # not even that is possible
        with pytest.raises(LedgerCorruptedError):
            Ledger(url).verify()
        with WriteLock(ledger.store) as lock:
            back = sa.update(table).where(cell == new).values({column: old})
            lock.connection.execute(back)
        assert Ledger(url).verify() == 3


def test_a_cell_of_another_type_is_found(tmp_path: Path) -> None:
    ledger = made(f"sqlite:///{tmp_path}/budget.db")
    charge(ledger, b"a")
    run_sql(ledger, "DROP TRIGGER mapl_no_update")
    run_sql(ledger, "UPDATE mapl_entries SET sealed = x'00' WHERE seq = 2")
    with pytest.raises(LedgerCorruptedError, match="is damaged"):
        Ledger(ledger.url)


def test_a_missing_row_in_the_middle_is_found(url: str) -> None:
    ledger = made(url)
    for content in (b"a", b"b", b"c"):
        charge(ledger, content)
    name = "mapl_no_delete" if url.startswith("sqlite") else "mapl_append_only"
    where = "" if url.startswith("sqlite") else " ON mapl_entries"
    run_sql(ledger, f"DROP TRIGGER {name}{where}")
    run_sql(ledger, "DELETE FROM mapl_entries WHERE seq = 2")
    with pytest.raises(LedgerCorruptedError, match="are missing"):
        Ledger(url)


def test_a_lost_reply_is_not_drawn_again(url: str) -> None:
    ledger = made(url)
    job = ledger.job("people", b"a", delta=1e-5)
    job.charge(EVENT)
    for step in (1, 2):
        job.commit_question(step, {}, b"question")
        job.commit_reply(step, {}, b"reply")
    name = "mapl_no_delete" if url.startswith("sqlite") else "mapl_append_only"
    where = "" if url.startswith("sqlite") else " ON mapl_entries"
    run_sql(ledger, f"DROP TRIGGER {name}{where}")
    run_sql(ledger, "DELETE FROM mapl_entries WHERE seq = 4")
    with pytest.raises(LedgerCorruptedError, match="are missing"):
        job.stored_step(1)


def test_a_password_is_not_shown() -> None:
    with pytest.raises(LedgerError) as raised:
        Ledger("postgresql://me:secret@localhost:1/nothing")
    assert "secret" not in str(raised.value)
    assert "***" in str(raised.value)
    with pytest.raises(LedgerError, match="must be a URL") as raised:
        Ledger("mysql://me:secret@localhost/nothing")
    assert "secret" not in str(raised.value)


def test_a_newer_schema_is_refused_and_an_older_one_migrates(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    charge(made(url), b"a")
    monkeypatch.setattr(tables, "VERSION", 2)
    statement = "INSERT INTO mapl_meta VALUES ('note', 'migrated')"
    monkeypatch.setattr(tables, "MIGRATIONS", {1: [statement]})
    ledger = Ledger(url)
    charge(ledger, b"b")
    assert ledger.verify() == 3
    with WriteLock(ledger.store) as lock:
        meta = [tuple(row) for row in lock.connection.execute(sa.select(tables.META))]
    assert ("note", "migrated") in meta
    assert ("version", "2") in meta
    monkeypatch.setattr(tables, "VERSION", 1)
    with pytest.raises(
        LedgerError, match=r"newer mapl \(schema 2, this version knows 1\)"
    ):
        Ledger(url)


def test_a_user_without_a_name_can_charge(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nameless() -> str:
        raise KeyError("uid not found")

    job_module._who.cache_clear()
    monkeypatch.setattr(job_module.getpass, "getuser", nameless)
    (row,) = made(url).history()
    assert row["who"].startswith("?@")
    job_module._who.cache_clear()


def test_a_second_data_set_goes_into_the_same_ledger(url: str) -> None:
    made(url)
    again = Ledger(url, create=True)
    again.create("others", epsilon=1, delta=1e-5)
    assert [balance.name for balance in again.balances()] == ["people", "others"]


def test_no_clock_decides_anything(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = made(url)
    for year in ("2036", "2016"):
        stamp = {"who": "me", "at": f"{year}-01-01"}
        monkeypatch.setattr(job_module, "who_and_when", lambda stamp=stamp: stamp)
        charge(ledger, year.encode())
    reopened = Ledger(url)
    assert reopened.balance("people").releases == 2
    assert [row["at"][:4] for row in reopened.history()][1:] == ["2036", "2016"]


def test_a_receipt_is_checked_against_the_rows(url: str) -> None:
    ledger = made(url)
    job = ledger.job("people", b"a", delta=1e-5)
    job.charge(EVENT)
    receipt = job.receipt()
    ledger.check_receipt(receipt, [EVENT])
    for bad, events in (
        (receipt | {"id": "0"}, [EVENT]),
        (receipt | {"rows": [1]}, [EVENT]),
        (receipt | {"rows": []}, []),
        (receipt | {"dataset": "others"}, [EVENT]),
        (receipt, [replace(EVENT, steps=1)]),
    ):
        with pytest.raises(LedgerError, match="no such rows"):
            ledger.check_receipt(bad, events)


def test_a_ledger_needs_its_key_and_a_proper_url(url: str, state: Path) -> None:
    made(url)
    (key,) = state.glob("*.key")
    assert key.stat().st_mode & 0o777 == 0o600
    kept = key.read_text()
    for text in ("", "{}"):
        key.write_text(text)
        with pytest.raises(LedgerError, match=r"key of the ledger .* Copy .*\.key"):
            Ledger(url)
    key.write_text(kept)
    Ledger(url)
    for wrong in ("budget.db", "mysql://a/b", "sqlite://", "sqlite:///:memory:", "://"):
        with pytest.raises(LedgerError, match="must be a URL such as sqlite:///"):
            Ledger(wrong)


def test_opening_a_missing_ledger_fails(url: str) -> None:
    with pytest.raises(LedgerError, match=r"no ledger .* mapl ledger create"):
        Ledger(url)


# PostgreSQL alone -------------------------------------------------------------------


def test_a_server_that_does_not_sync_is_refused(postgres: Any) -> None:
    uri = postgres.get_uri()
    with psycopg.connect(uri, autocommit=True) as connection:
        connection.execute("ALTER SYSTEM SET fsync = off")
        connection.execute("SELECT pg_reload_conf()")
        try:
            for _ in range(100):  # the server reloads when it gets to it
                if "fsync is off" in str(error := outcome(lambda: Ledger(uri))):
                    break
            assert "fsync is off" in str(error)
        finally:
            connection.execute("ALTER SYSTEM RESET fsync")
            connection.execute("SELECT pg_reload_conf()")


def test_a_lost_connection_loses_nothing(
    postgres: Any, url: str, request: pytest.FixtureRequest
) -> None:
    if url.startswith("sqlite"):
        return
    ledger = made(url)
    with psycopg.connect(postgres.get_uri(), autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname LIKE 'ledger%%'"
        )
    with pytest.raises(LedgerError, match="committed charges are reused"):
        charge(ledger, b"a")
    charge(ledger, b"a")
    assert ledger.balance("people").releases == 1


# SQLite alone: what may befall a file -----------------------------------------------


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A ledger with two charges, closed."""
    ledger = made(f"sqlite:///{tmp_path}/budget.db")
    for content in (b"a", b"b"):
        charge(ledger, content)
    ledger.close()
    return tmp_path / "budget.db"


def reading(path: Path) -> Any:
    """What a reader is message: everything, or an error."""

    def read() -> Any:
        ledger = Ledger(f"sqlite:///{path}")
        try:
            return ledger.balances(), list(ledger.history()), ledger.verify()
        finally:
            ledger.close()

    return outcome(read)


def test_a_flipped_byte_is_found_or_changes_nothing(file: Path) -> None:
    whole, truth = file.read_bytes(), reading(file)
    positions = range(0, len(whole), 4096)
    rng = random.Random(1)
    found = 0
    for page in positions:
        used = [i for i in range(page, page + 4096) if whole[i]]
        for position in {page, *rng.sample(used, min(24, len(used)))}:
            damaged = bytearray(whole)
            damaged[position] ^= 1 << rng.randrange(8)
            file.write_bytes(damaged)
            result = reading(file)
            assert result == truth or isinstance(result, LedgerError)
            found += isinstance(result, LedgerError)
            for beside in ("-wal", "-shm"):
                Path(f"{file}{beside}").unlink(missing_ok=True)
    assert found > 20


def test_an_old_copy_is_found(file: Path, tmp_path: Path) -> None:
    old = shutil.copy(file, tmp_path / "old")
    ledger = Ledger(f"sqlite:///{file}")
    charge(ledger, b"c")
    ledger.close()
    shutil.copy(old, file)
    assert "it ends at row 3, this machine has seen row 4" in str(reading(file))


def test_two_copies_never_double_a_budget(tmp_path: Path) -> None:
    file = tmp_path / "budget.db"
    ledger = made(f"sqlite:///{file}", epsilon=99)
    for content in (b"a", b"b"):
        charge(ledger, content)
    ledger.close()
    twin = Path(shutil.copy(file, tmp_path / "twin.db"))
    first, second = Ledger(f"sqlite:///{file}"), Ledger(f"sqlite:///{twin}")
    charge(first, b"c")
    with pytest.raises(LedgerCorruptedError, match="one of two copies"):
        charge(second, b"d")
    for content in (b"d", b"e"):
        with pytest.raises(LedgerCorruptedError):
            charge(second, content)  # it does not forget the alarm
    charge(first, b"d")
    third = Ledger(f"sqlite:///{file}")
    charge(first, b"e")
    charge(third, b"f")
    with Transaction(third.store) as transaction:
        (row,) = transaction.rows(tables.ENTRIES.c.seq == 4)
    transaction._raise_mark(row)  # it is higher already, and its row is here
    assert isinstance(reading(twin), LedgerCorruptedError)
    assert reading(file)[0][0].releases == 6


@pytest.mark.parametrize("gone", [Path.unlink, lambda file: file.write_bytes(b"")])
def test_a_ledger_that_is_gone_does_not_begin_again(file: Path, gone: Any) -> None:
    gone(file)
    with pytest.raises(LedgerCorruptedError, match=r"was a ledger .* and it is gone"):
        Ledger(f"sqlite:///{file}", create=True)


def test_a_ledger_whose_creation_was_killed_can_be_created(
    tmp_path: Path, state: Path
) -> None:
    url = f"sqlite:///{tmp_path}/budget.db"
    ledger = Ledger(url, create=True)  # no data set yet: nothing was ever written
    ledger.close()
    (tmp_path / "budget.db").unlink()
    (mark,) = state.glob("*.mark")
    mark.unlink()
    assert made(url).verify() == 1


@pytest.mark.parametrize("part", ["", "-wal"])
def test_a_truncated_file_is_found(file: Path, part: str) -> None:
    ledger = Ledger(f"sqlite:///{file}")
    charge(ledger, b"c")  # lies in the write-ahead log as long as the ledger is open
    target = Path(f"{file}{part}")
    aside = {
        p.name: p.read_bytes() for p in file.parent.iterdir() if "budget" in p.name
    }
    ledger.close()
    for name, content in aside.items():
        if not name.endswith("-shm"):
            (file.parent / name).write_bytes(content)
    target.write_bytes(aside[target.name][: len(aside[target.name]) // 2])
    result = reading(file)
    if not part:  # the log may have it all
        assert isinstance(result, LedgerError) or result[0][0].releases == 3
    else:
        assert isinstance(result, LedgerCorruptedError)


def test_marks_survive_a_torn_write_and_refuse_more(file: Path, state: Path) -> None:
    (mark,) = state.glob("*.mark")
    whole = mark.read_bytes()
    assert len(whole) == 128
    truth = reading(file)
    for slot in (0, 1):
        torn = bytearray(whole)
        torn[64 * slot + 3] ^= 1
        mark.write_bytes(torn)
        assert reading(file) == truth
        mark.write_bytes(whole)
    mark.write_bytes(bytes(128))
    assert "mark" in str(reading(file))
    assert isinstance(reading(file), LedgerCorruptedError)
    mark.write_bytes(whole[:64] + files._checksum(b"")[:24] * 2)
    mark.unlink()
    mark.mkdir()
    assert "cannot be opened" in str(reading(file))


@pytest.mark.parametrize("numbers", [(1, 2, 3), (3, 4, 6), (2, 4, 6), (1, 3, 5, 8)])
def test_a_torn_write_leaves_the_mark_before(
    tmp_path: Path, numbers: tuple[int, ...]
) -> None:
    """However far the mark rises: several rows may be committed together."""
    path = tmp_path / "a.mark"
    mark = files.HighWaterMark(path)
    for number in numbers:
        mark.raise_to(number, bytes([number]) * 32)
    whole = path.read_bytes()
    at = whole.index(numbers[-1].to_bytes(8))
    path.write_bytes(whole[: at + 3] + b"\xff" + whole[at + 4 :])
    found = files.HighWaterMark(path)
    found.read()
    assert (found.seq, found.mac) == (numbers[-2], bytes([numbers[-2]]) * 32)


def test_a_row_that_another_copy_wrote_is_found(file: Path, state: Path) -> None:
    (mark,) = state.glob("*.mark")
    seen = files.HighWaterMark(mark)
    seen.read()
    body = seen.seq.to_bytes(8) + bytes(32)
    mark.write_bytes((body + files._checksum(body)) * 2)
    assert "two copies of one ledger" in str(reading(file))


def test_a_full_disk_loses_nothing(file: Path) -> None:
    truth = reading(file)
    ledger = Ledger(f"sqlite:///{file}")
    ledger.store.execute("PRAGMA max_page_count = 1")
    job = ledger.job("people", b"c", delta=1e-5)
    with pytest.raises(LedgerError, match=r"disk is full.*Nothing was released"):
        job.begin(1, data="x" * 100_000)
    ledger.close()
    assert reading(file) == truth


def test_an_error_of_the_disk_loses_nothing(file: Path, state: Path) -> None:
    truth = reading(file)

    def limited() -> Any:
        _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        ledger = Ledger(f"sqlite:///{file}")
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
        return outcome(
            lambda: ledger.job("people", b"c", delta=1e-5).begin(1, data="x" * 100_000)
        )

    assert "Nothing was released" in str(in_a_child(limited))
    assert reading(file) == truth

    def no_mark() -> Any:
        ledger = Ledger(f"sqlite:///{file}")
        (mark,) = state.glob("*.mark")
        os.close(ledger.store.high_water_mark._file)
        ledger.store.high_water_mark._file = os.open(mark, os.O_RDONLY)
        return outcome(lambda: charge(ledger, b"c"))

    assert "mark" in str(no_mark())
    charge(Ledger(f"sqlite:///{file}"), b"c")  # was committed: costs nothing twice
    assert reading(file)[0][0].releases == 3


@pytest.mark.skipif(os.geteuid() != 0, reason="plays another user")
def test_a_file_that_cannot_be_written_is_refused(file: Path, state: Path) -> None:
    parents = file.relative_to(tempfile.gettempdir()).parents
    above = [tempfile.gettempdir() / path for path in parents][:-1]
    for path in (*file.parent.rglob("*"), *above):
        path.chmod(0o755 if path.is_dir() else 0o644)
    state.chmod(0o777)
    for path in state.iterdir():
        path.chmod(0o666)

    def as_nobody() -> Any:
        os.seteuid(65534)
        return outcome(lambda: charge(Ledger(f"sqlite:///{file}"), b"c"))

    assert " failed: " in str(in_a_child(as_nobody))


def test_sqlite_without_a_durable_journal_is_refused() -> None:
    with pytest.raises(LedgerError, match="does not write durably"):
        store_module._durable_sqlite(sqlite3.connect(":memory:"), None)


def test_network_file_systems_and_missing_folders_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(LedgerError, match="does not exist"):
        made(f"sqlite:///{tmp_path}/nowhere/budget.db")
    mounts = Path("/proc/mounts").read_text().splitlines()
    monkeypatch.setattr(files, "_NETWORK", {line.split()[2] for line in mounts})
    with pytest.raises(LedgerError, match=r"network file system .* PostgreSQL"):
        made(f"sqlite:///{tmp_path}/budget.db")
    monkeypatch.setattr(files, "_MOUNTS", tmp_path / "no such list")
    made(f"sqlite:///{tmp_path}/budget.db")


def test_a_state_folder_that_cannot_be_made_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "taken").write_text("")
    monkeypatch.setenv("MAPL_STATE", str(tmp_path / "taken"))
    with pytest.raises(LedgerError, match="Set MAPL_STATE"):
        made(f"sqlite:///{tmp_path}/budget.db")
    monkeypatch.delenv("MAPL_STATE")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert files.state_folder() == tmp_path / "mapl"
    monkeypatch.delenv("XDG_STATE_HOME")
    assert files.state_folder() == Path.home() / ".local/state/mapl"


def test_a_ledger_without_a_version_is_damaged(file: Path) -> None:
    with sqlite3.connect(file) as connection:
        connection.execute("DELETE FROM mapl_meta")
    assert "has no version" in str(reading(file))


def test_damage_that_only_sqlite_sees_is_reported(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with sqlite3.connect(file) as connection:  # an index that lacks its rows
        connection.execute("PRAGMA writable_schema = ON")
        connection.execute(
            "UPDATE sqlite_master SET rootpage = (SELECT rootpage FROM sqlite_master "
            "WHERE name = 'sqlite_autoindex_mapl_meta_1') "
            "WHERE name = 'sqlite_autoindex_mapl_entries_2'"
        )
    assert isinstance(reading(file), LedgerError)


def test_rows_after_the_mark_are_checked_on_opening(file: Path, state: Path) -> None:
    """A crash between commit and mark leaves the mark behind: it catches up."""
    (mark,) = state.glob("*.mark")
    old = mark.read_bytes()
    ledger = Ledger(f"sqlite:///{file}")
    for content in (b"c", b"c"):
        charge(ledger, content)
    ledger.close()
    mark.write_bytes(old)
    truth = reading(file)
    assert truth[0][0].releases == 3
    assert mark.read_bytes() != old
    mark.unlink()
    assert reading(file) == truth


# Any order of things ----------------------------------------------------------------


class AnyOrder(RuleBasedStateMachine):
    """A ledger against a dictionary."""

    events = (EVENT, replace(EVENT, steps=10), replace(EVENT, steps=30))

    @initialize()
    def start(self) -> None:
        import tempfile

        self.folder = tempfile.mkdtemp(prefix="mapl-any-")
        os.environ["MAPL_STATE"] = f"{self.folder}/state"
        self.url = f"sqlite:///{self.folder}/budget.db"
        self.ledger = Ledger(self.url, create=True)
        self.limits: dict[str, int] = {}
        self.paid: dict[str, dict[bytes, int]] = {}

    @rule(name=st.sampled_from("ab"), micros=st.integers(100_000, 3_000_000))
    def create(self, name: str, micros: int) -> None:
        if name in self.limits:
            with pytest.raises(LedgerError):
                self.ledger.create(name, epsilon=1, delta=0.5)
            return
        self.ledger.create(name, epsilon=micros / 1e6, delta=0.5)
        self.limits[name], self.paid[name] = micros, {}

    @rule(
        name=st.sampled_from("abc"),
        content=st.sampled_from([b"1", b"2", b"3", b"4"]),
        which=st.integers(0, 2),
    )
    def charge(self, name: str, content: bytes, which: int) -> None:
        event = self.events[which]
        price, _ = rules.RULES["basic"].price(event, delta=1e-5)
        job = self.ledger.job(name, content + b"%d" % which, delta=1e-5)
        if name not in self.limits:
            with pytest.raises(LedgerError, match="has no budget"):
                job.charge(event)
            return
        paid, key = self.paid[name], content + b"%d" % which
        if key not in paid and sum(paid.values()) + price > self.limits[name]:
            with pytest.raises(BudgetExceededError):
                job.charge(event)
            return
        job.charge(event)
        paid[key] = price

    @rule()
    def reopen(self) -> None:
        self.ledger.close()
        self.ledger = Ledger(self.url)

    @rule()
    def go_on_in_a_child(self) -> None:
        assert in_a_child(lambda: len(self.ledger.balances())) == len(self.limits)

    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "ledger"):
            return
        balances = {s.name: s for s in self.ledger.balances()}
        assert set(balances) == set(self.limits)
        for name, balance in balances.items():
            spent = sum(self.paid[name].values())
            assert round(balance.epsilon_spent * 1e6) == spent <= self.limits[name]
        rows = sum(1 + len(paid) for paid in self.paid.values())
        assert self.ledger.verify() == rows

    def teardown(self) -> None:
        if hasattr(self, "ledger"):
            self.ledger.close()
            shutil.rmtree(self.folder)


AnyOrder.TestCase.settings = settings(
    max_examples=15, stateful_step_count=15, deadline=None
)
TestAnyOrder = AnyOrder.TestCase


# The learner ------------------------------------------------------------------------


def records(n: int = 1200) -> tuple[Any, Any, Any]:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n + 300, 4))
    return X[:n], (X[:n, 0] > 0).astype(int), X[n:]


def learner(url: str, estimator: Any = None, **kwargs: Any) -> PrivateClassifier:
    defaults: dict[str, Any] = {"epsilon": 0.9, "n_teachers": 20, "classes": [0, 1]}
    estimator = estimator or LogisticRegression()
    defaults |= {"method": "votes", "ledger": url, "dataset": "people"}
    return PrivateClassifier(estimator, **defaults | kwargs)


@pytest.mark.parametrize("method", ["moments", "both"])
def test_sums_are_charged_once_however_often_they_are_asked_for(
    url: str, method: str
) -> None:
    made(url, epsilon=1)
    X, y, pool = records()
    first = learner(url, method=method).fit(X, y, X_public=pool)
    again = learner(url, method=method).fit(X, y, X_public=pool)
    np.testing.assert_array_equal(first.soft_labels_, again.soft_labels_)
    assert (first.paid_before_, again.paid_before_) == (False, True)
    tree = DecisionTreeClassifier()
    free = learner(url, method=method, student=tree, class_weight="balanced")
    free.fit(X, y, X_public=pool)
    assert isinstance(free.student_, DecisionTreeClassifier)
    assert Ledger(url).balance("people").releases == 1
    Ledger(url).check_receipt(first.certificate_["ledger"], first.events_)
    with pytest.raises(BudgetExceededError):
        learner(url, method=method, n_records=1200).fit(X, y, X_public=pool)


@pytest.mark.parametrize("step", range(1, 8))
def test_sums_that_were_killed_go_on(url: str, step: int) -> None:
    """Killed when a step is asked, or when its reply is there but not yet stored."""
    made(url, epsilon=1)
    X, y, pool = records(400)
    model = learner(url, method="both")
    for name in ("commit_question", "commit_reply"):
        code = run_and_kill(lambda: model.fit(X, y, X_public=pool), name, step)
        assert code in (-signal.SIGKILL, 0)  # there may be fewer steps
    model = learner(url, method="both").fit(X, y, X_public=pool)
    again = learner(url, method="both").fit(X, y, X_public=pool)
    np.testing.assert_array_equal(model.soft_labels_, again.soft_labels_)
    assert model.paid_before_
    assert Ledger(url).balance("people").releases == 1


@pytest.mark.parametrize("mechanism", ["dissent", "noisy-max"])
def test_a_fit_is_charged_once_however_often_it_is_asked_for(
    url: str, mechanism: str
) -> None:
    made(url, epsilon=1)
    X, y, pool = records()
    first = learner(url, mechanism=mechanism).fit(X, y, X_public=pool)
    again = learner(url, mechanism=mechanism, n_jobs=2).fit(X, y, X_public=pool)
    np.testing.assert_array_equal(first.public_labels_, again.public_labels_)
    assert (first.paid_before_, again.paid_before_) == (False, True)
    other = DecisionTreeClassifier()
    free = learner(url, mechanism=mechanism, student=other).fit(X, y, X_public=pool)
    np.testing.assert_array_equal(first.public_labels_, free.public_labels_)
    balance = Ledger(url).balance("people")
    assert balance.releases == 1
    assert first.certificate_["ledger"] == again.certificate_["ledger"]
    Ledger(url).check_receipt(first.certificate_["ledger"], first.events_)
    with pytest.raises(BudgetExceededError):
        learner(url, mechanism=mechanism, random_state=1).fit(X, y, X_public=pool)


def test_mixed_up_data_sets_are_warned_about(
    url: str,
) -> None:
    ledger = made(url, epsilon=9)
    ledger.create("twins", epsilon=9, delta=1e-4)
    X, y, pool = records()
    first = learner(url).fit(X, y, X_public=pool)
    with pytest.warns(PrivacyWarning, match="begun with other records"):
        stale = learner(url).fit(X[1:], y[1:], X_public=pool)
    np.testing.assert_array_equal(first.soft_labels_, stale.soft_labels_)
    with pytest.warns(PrivacyWarning, match="not those of the last release"):
        learner(url, random_state=1).fit(X[1:], y[1:], X_public=pool)
    with pytest.warns(PrivacyWarning, match="another name"):
        learner(url).set_params(dataset="twins").fit(X[1:], y[1:], X_public=pool)
    assert ledger.balance("people").releases == 2


def killed_after_training(url: str) -> Any:
    """Kill a fit of twenty trees before anything is released; return its data."""
    made(url, epsilon=9)
    X, y, pool = records()

    def run() -> None:
        votes._release = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)
        learner(url, DecisionTreeClassifier()).fit(X, y, X_public=pool)

    child = FORK.Process(target=run)
    child.start()
    child.join()
    assert child.exitcode == -signal.SIGKILL
    return X, y, pool


def failing(*_: Any, **__: Any) -> Any:
    raise AssertionError


def test_a_resumed_fit_reuses_finished_teachers(
    url: str, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    X, y, pool = killed_after_training(url)
    (folder,) = (state / "teachers").iterdir()
    assert folder.stat().st_mode & 0o777 == 0o700
    files_ = list(folder.iterdir())
    assert len(files_) == 20
    for path in files_:
        assert path.stat().st_mode & 0o777 == 0o600
        assert b"NUMPY" not in path.read_bytes()  # encrypted
    with monkeypatch.context() as patch:
        patch.setattr("mapl.teachers.voting.train", failing)  # not one more
        learner(url, DecisionTreeClassifier()).fit(X, y, X_public=pool)
    assert list((state / "teachers").iterdir()) == []


def test_checkpoints_of_killed_fits_can_be_removed(url: str, state: Path) -> None:
    killed_after_training(url)
    result = CliRunner().invoke(main, ["clean", "--json"])
    assert json.loads(result.stdout)["jobs"] == 1
    assert list((state / "teachers").iterdir()) == []


def test_a_killed_fit_does_not_go_on_with_other_groups(url: str) -> None:
    """The teachers paid for what they were: with other chunks they would pay twice."""
    made(url, epsilon=9)
    X, y, pool = records()
    owners = np.arange(len(X)) % 100

    def run() -> None:
        take = Rounds.take

        def once(self: Any, batch: Any) -> None:
            take(self, batch)
            os.kill(os.getpid(), signal.SIGKILL)

        Rounds.take = once  # type: ignore[method-assign]
        learner(url).fit(X, y, X_public=pool, groups=owners)

    child = FORK.Process(target=run)
    child.start()
    child.join()
    with (
        pytest.warns(PrivacyWarning, match="other records or groups"),
        pytest.raises(LedgerError, match="cannot go on with these"),
    ):
        learner(url).fit(X, y, X_public=pool, groups=owners[::-1].copy())
    learner(url).fit(X, y, X_public=pool, groups=[str(i) for i in owners])


def test_the_state_of_a_mechanism_is_encrypted(url: str, tmp_path: Path) -> None:
    ledger = made(url, epsilon=9)
    X, y, pool = records()
    learner(url).fit(X, y, X_public=pool)
    with Transaction(ledger.store) as transaction:
        rows = [r for r in transaction.page(0) if r["kind"] in ("begin", "reply")]
    assert len(rows) > 1
    for row in rows:
        assert row["sealed"].startswith("aesgcm1:")
    other = rows[0] | {"request": "another place"}
    job = ledger.job("people", b"x", delta=1e-5)
    with pytest.raises(LedgerCorruptedError, match="cannot be decrypted"):
        job._state_of(other)
    if url.startswith("sqlite"):
        raw = b"".join(path.read_bytes() for path in tmp_path.glob("budget.db*"))
        assert b'"left"' not in raw
        for path in tmp_path.glob("budget.db*"):
            assert path.stat().st_mode & 0o777 == 0o600


def test_rows_of_an_earlier_version_can_be_read(url: str) -> None:
    ledger = made(url)
    assert ledger.store.cipher.open('{"left": [1]}', "x") == '{"left": [1]}'


def test_a_key_can_come_from_outside(
    url: str, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MAPL_KEY", "short")
    with pytest.raises(LedgerError, match="at least 32 characters"):
        made(url)
    monkeypatch.setenv("MAPL_KEY", "0123456789abcdef" * 4)
    ledger = made(url)
    charge(ledger, b"a")
    (path,) = state.glob("*.key")
    assert json.loads(path.read_text())["key"] is None
    path.unlink()  # as on another machine
    assert Ledger(url).verify() == 2
    monkeypatch.setenv("MAPL_KEY", "another key, which is long enough, too")
    with pytest.raises(LedgerError):
        Ledger(url)
    monkeypatch.delenv("MAPL_KEY")
    with pytest.raises(LedgerError, match="or set MAPL_KEY"):
        Ledger(url)


def test_a_full_disk_costs_a_checkpoint_and_no_more(
    url: str, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(url, epsilon=9)
    X, y, pool = records()
    state.joinpath("teachers").write_text("a file where the folder should be")
    learner(url, DecisionTreeClassifier()).fit(X, y, X_public=pool)


def test_no_teacher_is_kept_once_every_answer_is_stored(url: str, state: Path) -> None:
    made(url, epsilon=9)
    X, _, pool = records()
    model = learner(url, DecisionTreeClassifier())
    model.set_params(mechanism="sparse-vector", epsilon=4, n_teachers=60)
    with pytest.raises(ParameterError, match="withheld every answer"):
        model.fit(X, np.arange(len(X)) % 2, X_public=pool)
    assert list((state / "teachers").iterdir()) == []


def test_no_teacher_is_kept_of_a_fit_that_is_refused(
    url: str, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it trains, another job spends the budget."""
    ledger = made(url, epsilon=1.5)
    X, y, pool = records()

    def train(*args: Any, **kwargs: Any) -> Any:
        charge(ledger, b"another job")
        return training.train(*args, **kwargs)

    monkeypatch.setattr(voting, "train", train)
    model = learner(url, DecisionTreeClassifier())
    with pytest.raises(BudgetExceededError):
        model.fit(X, y, X_public=pool)
    assert list((state / "teachers").iterdir()) == []
    model.set_params(random_state=5)
    with pytest.raises(BudgetExceededError):  # before anything is trained
        model.fit(X, y, X_public=pool)
    assert list((state / "teachers").iterdir()) == []


def test_no_teacher_is_kept_of_a_fit_that_is_interrupted(
    url: str, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(url, epsilon=9)
    X, y, pool = records()

    def interrupt(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(votes, "_release", interrupt)
    with pytest.raises(KeyboardInterrupt):
        learner(url, DecisionTreeClassifier()).fit(X, y, X_public=pool)
    assert list((state / "teachers").iterdir()) == []


def test_a_damaged_checkpoint_is_trained_again(
    url: str, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    X, y, pool = killed_after_training(url)
    for path in (state / "teachers").rglob("*"):
        if path.is_file():
            path.write_bytes(b"damaged")
    trained: list[int] = []
    train = voting.train

    def counted(learner: Any, X: Any, codes: Any, chunks: Any, **kwargs: Any) -> Any:
        trained.append(len(chunks))
        return train(learner, X, codes, chunks, **kwargs)

    monkeypatch.setattr(voting, "train", counted)
    learner(url, DecisionTreeClassifier()).fit(X, y, X_public=pool)
    assert sum(trained) == 20


def test_a_stored_answer_reveals_nothing_about_records(url: str) -> None:
    """With one record more or less the ledger does the same: no row, no price."""
    ledger = made(url, epsilon=9)
    X, y, pool = records()
    rows = []
    for some in (slice(None), slice(1, None), slice(None)):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", PrivacyWarning)
            model = learner(url).fit(X[some], y[some], X_public=pool)
        rows.append((model.soft_labels_.tobytes(), len(list(ledger.history()))))
    assert len(set(rows)) == 1


def test_a_job_does_not_go_on_with_other_records(url: str) -> None:
    job = made(url).job("people", b"a", delta=1e-5)
    job.begin(7, data="these")
    job.charge(EVENT)
    job.commit_question(1, {}, b"question")
    again = Ledger(url).job("people", b"a", delta=1e-5)
    with pytest.warns(PrivacyWarning, match="begun with other records"):
        again.begin(7, data="those")
    again.charge(EVENT)
    with pytest.raises(LedgerError, match="cannot go on with these"):
        again.stored_step(1)
    job.commit_reply(1, {}, b"reply")
    asked = again.stored_step(1)
    assert asked is not None
    assert asked.reply == b"reply"


def test_a_job_begun_with_other_records_is_refused_before_it_is_charged(
    url: str,
) -> None:
    ledger = made(url)
    ledger.job("people", b"a", delta=1e-5).begin(7, data="these")
    again = Ledger(url).job("people", b"a", delta=1e-5)
    again.begin(7, data="those", quiet=True)  # and no warning compares records
    for act in (again.check, again.charge):
        with pytest.raises(LedgerError, match="cannot go on with these"):
            act(EVENT)
    assert ledger.balance("people").releases == 0


def test_a_state_is_not_shown() -> None:
    step = StoredStep({"left": [3, 0, 5]}, b"", None)
    assert "left" not in repr(step)


def test_names_and_limits_of_numpy_are_stored_as_plain_ones(url: str) -> None:
    ledger = made(url)
    for name in np.unique(["b", "a"]):
        limits = {"epsilon": np.float32(1), "delta": np.float64(1e-5)}
        ledger.create(name, **limits, rule=np.str_("gaussian"))
    with pytest.raises(ParameterError, match="valid Unicode"):
        ledger.create("a\ud800", epsilon=1, delta=1e-5)
    with pytest.raises(LedgerError, match="no such rows"):
        ledger.check_receipt({"id": ledger.id, "rows": None}, [EVENT])
    ledger.close()
    assert [b.name for b in Ledger(url).balances()] == ["people", "a", "b"]


def test_a_stranger_ledger_names_no_file_and_has_no_views(
    tmp_path: Path, state: Path
) -> None:
    url = f"sqlite:///{tmp_path}/budget.db"
    made(url).close()
    with sqlite3.connect(tmp_path / "budget.db") as connection:
        connection.execute("UPDATE mapl_meta SET value = '/tmp/x' WHERE name = 'id'")
    with pytest.raises(LedgerCorruptedError, match="has no version"):
        Ledger(url)
    assert not Path("/tmp/x.mark").exists()
    with sqlite3.connect(tmp_path / "view.db") as connection:
        connection.execute("CREATE VIEW mapl_meta(name, value) AS SELECT 'a', 1")
    with pytest.raises(LedgerError):
        Ledger(f"sqlite:///{tmp_path}/view.db")
    with sqlite3.connect(tmp_path / "both.db") as connection:
        connection.execute("CREATE TABLE mapl_meta(name, value)")
        connection.execute("CREATE VIEW mapl_entries AS SELECT 1")
    with pytest.raises(LedgerCorruptedError, match="its tables are views"):
        Ledger(f"sqlite:///{tmp_path}/both.db")


def test_the_same_fit_is_the_same_job_and_another_pool_is_not(url: str) -> None:
    ledger = made(url, epsilon=9)
    X, y, pool = records()
    learner(url, random_state=1).fit(X, y, X_public=pool)
    assert learner(url, random_state=np.int64(1)).fit(X, y, X_public=pool).paid_before_
    coder = make_pipeline(
        make_column_transformer((OneHotEncoder(), ["c"]), remainder="passthrough"),
        LogisticRegression(),
    )
    for names in (["a", "b"], ["p", "q"]):  # the same codes, other categories
        c = pd.Categorical.from_codes(np.arange(len(X)) % 2, names)
        frame = pd.DataFrame({"c": c, "x": X[:, 0]})
        fitted = learner(url, coder, random_state=1, on_invalid="drop")
        fitted.fit(frame, y, X_public=frame[:300])
        assert not fitted.paid_before_
    assert ledger.balance("people").releases == 3


def test_threads_share_a_ledger(url: str) -> None:
    ledger = made(url, epsilon=1e4, delta=0.5)

    def work(me: int) -> None:
        for i in range(10):
            charge(ledger, b"%d %d" % (me, i))

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(work, range(6)))
    assert ledger.balance("people").releases == 60
    assert Ledger(url).verify() == 61


def test_a_fork_does_not_deadlock(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = made(url)
    monkeypatch.setattr(store_module, "_WAIT_SECONDS", 0.01)
    with ledger.store.lock:  # somebody is in the middle of something
        assert in_a_child(lambda: 1) == 1
    charge(ledger, b"a")


def test_a_fork_in_the_middle_loses_nothing(url: str) -> None:
    """The parent closes its connection; the child goes on, and so does the parent."""
    ledger = made(url, epsilon=1e4, delta=0.5)
    go = FORK.Event()

    def in_the_child() -> None:
        charge(ledger, b"child 1")
        go.wait()
        charge(Ledger(url), b"child 2")
        charge(ledger, b"child 3")

    charge(ledger, b"parent 1")
    child = FORK.Process(target=in_the_child)
    child.start()
    charge(ledger, b"parent 2")
    ledger.close()
    go.set()
    child.join()
    charge(ledger, b"parent 3")
    assert Ledger(url).verify() == 7


def test_a_learner_without_a_pickle_pays_each_time(url: str) -> None:
    class Local(LogisticRegression):
        """Defined here, so that pickle does not find it."""

    made(url, epsilon=9)
    X, y, pool = records()
    for _ in range(2):
        model = learner(url, n_jobs=1).set_params(estimator=Local())
        model.fit(X, y, X_public=pool, groups=np.arange(len(X)))
    assert Ledger(url).balance("people").releases == 2


def test_a_system_without_file_locks_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "fcntl", None)  # as on Windows
    with pytest.raises(LedgerError, match="needs the file locks of Linux or macOS"):
        made(f"sqlite:///{tmp_path}/budget.db")


def test_a_system_without_synchronous_writes_syncs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "RWF_DSYNC")  # as on macOS
    synced: list[Any] = []
    monkeypatch.setattr(files.fcntl, "F_FULLFSYNC", 51, raising=False)
    monkeypatch.setattr(files.fcntl, "fcntl", lambda *call: synced.append(call[1]))
    ledger = made(f"sqlite:///{tmp_path}/budget.db")
    before = len(synced)
    charge(ledger, b"a")
    assert synced[before:] == [51]
    assert Ledger(f"sqlite:///{tmp_path}/budget.db").balance("people").releases == 1
