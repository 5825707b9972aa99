"""Processes killed with -9, at random and at every point that matters.

What must hold: every answer that left is in the ledger; what is spent never falls and
never exceeds the limit; who asks again is answered, pays once and is message the same.
``make stress`` runs this with MAPL_KILLS=2000.
"""

import os
import random
import re
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from fractions import Fraction
from hashlib import sha256
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mapl import (
    Ledger,
    LedgerError,
    MechanismStateError,
    accounting,
)
from mapl.errors import BudgetExceededError
from mapl.ledger import files
from mapl.ledger import store as store_module
from mapl.ledger.transaction import Transaction
from mapl.methods import votes
from mapl.privacy import noisy_counts
from mapl.privacy.charged_dissent import ChargedDissent
from mapl.privacy.noisy_max import NoisyMax
from mapl.release.labeler import Labeler, _pack, _unpack

FORK = get_context("fork")
KILLS = int(os.environ.get("MAPL_KILLS", "40"))
N_TEACHERS, N_POINTS, N_STEPS = 12, 9, 3
VOTES = np.random.default_rng(0).integers(0, 2, (N_TEACHERS, N_POINTS)).astype(np.int8)


def job(ledger: Ledger, name: bytes, log: Path | None = None) -> list[str]:
    """Ask three times; write each answer to the log the moment it is out."""
    budget = ledger.job("people", name, delta=1e-6)
    labeler = Labeler(VOTES, n_classes=2, account=budget)
    mechanism = ChargedDissent(
        sigma=Fraction(200), dissents=20, n_teachers=N_TEACHERS, n_classes=2
    )
    budget.begin(1)
    labeler.open(mechanism)
    out = []
    for step in range(1, N_STEPS + 1):
        answer = labeler.shares(np.arange(N_POINTS), np.full(N_POINTS, step % 2))
        out.append(f"{name.decode()} {step} {sha256(answer.shares).hexdigest()}")
        if log is not None:
            with log.open("a") as file:
                file.write(out[-1] + "\n")
    out.append(str(mechanism.state()["left"]))
    return out


def left_in_ledger(ledger: Ledger, name: bytes) -> list[str]:
    """The answers of a job as the ledger has them."""
    budget = ledger.job("people", name, delta=1e-6)
    found = []
    for step in range(1, N_STEPS + 1):
        asked = budget.stored_step(step)
        if asked is not None and asked.reply is not None:
            digest = sha256(_unpack(asked.reply) / N_TEACHERS).hexdigest()
            found.append(f"{name.decode()} {step} {digest}")
    return found


def spawn(action: Callable[[], Any]) -> Any:
    child = FORK.Process(target=action)
    child.start()
    return child


def new(url: str, jobs: int) -> Ledger:
    ledger = Ledger(url, create=True)
    probe = ChargedDissent(sigma=Fraction(200), dissents=20, n_teachers=1, n_classes=2)
    price = accounting.epsilon([probe.event], delta=1e-6)
    ledger.create("people", epsilon=(jobs + 0.5) * price, delta=0.5)
    return ledger


@pytest.fixture
def die_at(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Kill this process when it passes a commit, a mark or a draw, before or after,
    for the nth time.
    """
    passed = 0

    def arm(n: int) -> None:
        nonlocal passed
        passed = 0

        def here() -> None:
            nonlocal passed
            passed += 1
            if passed == n:
                os.kill(os.getpid(), signal.SIGKILL)

        def watched(function: Any, counts: Callable[..., bool]) -> Any:
            def run(*args: Any, **kwargs: Any) -> Any:
                if not counts(*args):
                    return function(*args, **kwargs)
                here()
                result = function(*args, **kwargs)
                here()
                return result

            return run

        commit = watched(store_module.Store.execute, lambda _, sql: sql is COMMIT)
        monkeypatch.setattr(store_module.Store, "execute", _only_commits(commit))
        mark = watched(files.HighWaterMark.raise_to, lambda *_: True)
        monkeypatch.setattr(files.HighWaterMark, "raise_to", mark)
        draw = watched(noisy_counts.discrete_gaussian, lambda *_: True)
        monkeypatch.setattr(noisy_counts, "discrete_gaussian", draw)

    return arm


COMMIT = "COMMIT"
_EXECUTE = store_module.Store.execute


def _only_commits(watched: Any) -> Any:
    def execute(self: Any, statement: Any, **kwargs: Any) -> Any:
        if isinstance(statement, str) and statement == COMMIT:
            return watched(self, COMMIT)
        return _EXECUTE(self, statement, **kwargs)

    return execute


def test_killed_at_every_point_a_job_goes_on_and_pays_once(
    url: str, die_at: Callable[[int], None], tmp_path: Path
) -> None:
    ledger = new(url, jobs=10_000)
    truth = job(ledger, b"undisturbed")[-1]
    point, killed = 0, 0
    while True:
        point += 1
        name, log = b"job%d" % point, tmp_path / f"log{point}"

        def disturbed(point: int = point, name: bytes = name, log: Path = log) -> None:
            die_at(point)
            job(Ledger(url), name, log)

        child = spawn(disturbed)
        child.join()
        before = ledger.balance("people")
        message = log.read_text().splitlines() if log.exists() else []
        kept = left_in_ledger(ledger, name)
        assert message == kept[: len(message)]  # what left is in the ledger
        again = job(Ledger(url), name)
        assert again[: len(kept)] == kept  # and is message again as it was
        assert again[-1] == truth  # no dissent was paid twice
        after = ledger.balance("people")
        assert after.releases == point + 1
        assert before.epsilon_spent <= after.epsilon_spent
        if child.exitcode == 0:
            break
        assert child.exitcode == -signal.SIGKILL
        killed += 1
    assert killed >= 20  # commits, marks and draws of a charge and three steps
    assert ledger.verify() == 1 + (point + 1) * (2 + 2 * N_STEPS)


def test_killed_at_random_nothing_that_left_is_missing(
    url: str, tmp_path: Path
) -> None:
    ledger = new(url, jobs=25)
    rng = random.Random(7)
    log = tmp_path / "log"
    log.touch()

    def work(worker: int) -> None:
        own = Ledger(url)
        order = random.Random(os.getpid()).sample(range(40), 40)
        for number in order:
            try:
                job(own, b"job%d" % number, log)
            except BudgetExceededError:
                continue

    workers: list[Any] = []
    spent, killed, start = 0.0, 0, time.monotonic()
    each = KILLS // 2  # for each database
    while killed < each:
        workers = [w for w in workers if w.is_alive()]
        workers += [spawn(lambda: work(0)) for _ in range(3 - len(workers))]
        time.sleep(rng.uniform(0.005, 0.06))
        with suppress(ProcessLookupError):  # it has just finished
            os.kill(rng.choice(workers).pid, signal.SIGKILL)
        killed += 1
        balance = ledger.balance("people")
        assert spent <= balance.epsilon_spent <= balance.epsilon_limit
        spent = balance.epsilon_spent
    for worker in workers:
        worker.join()
    assert time.monotonic() - start < 60 + KILLS
    work(0)
    kept = {
        line
        for number in range(40)
        for line in left_in_ledger(ledger, b"job%d" % number)
    }
    # A kill may tear a line that crosses a page of the log file.
    whole = re.compile(r"job\d+ \d [0-9a-f]{64}")
    message = {line for line in log.read_text().splitlines() if whole.fullmatch(line)}
    assert len(message) > 25
    assert message <= kept
    assert len(kept) == 25 * N_STEPS  # all that fits was answered, and no more
    assert ledger.balance("people").releases == 25
    ledger.verify()


def test_two_processes_that_run_one_job_get_one_answer(
    url: str, tmp_path: Path
) -> None:
    ledger = new(url, jobs=1)
    log = tmp_path / "log"
    crowd = [spawn(lambda: job(Ledger(url), b"one", log)) for _ in range(6)]
    for child in crowd:
        child.join()
    assert [child.exitcode for child in crowd] == [0] * 6
    lines = log.read_text().splitlines()
    assert len(lines) == 6 * N_STEPS
    assert set(lines) == set(left_in_ledger(ledger, b"one"))
    assert ledger.balance("people").releases == 1


def test_a_learner_that_was_killed_goes_on(
    url: str, die_at: Callable[[int], None]
) -> None:
    from test_ledger import learner, records

    ledger = Ledger(url, create=True)
    ledger.create("people", epsilon=1, delta=1e-4)
    X, y, pool = records()
    for point in (3, 9, 12, 15):

        def disturbed(point: int = point) -> None:
            die_at(point)
            learner(url).fit(X, y, X_public=pool)

        child = spawn(disturbed)
        child.join()
        assert child.exitcode == -signal.SIGKILL
    model = learner(url).fit(X, y, X_public=pool)
    assert model.predict(X).shape == y.shape
    assert ledger.balance("people").releases == 1
    kinds = [row["kind"] for row in ledger.history()]
    rounds = kinds.count("reply")
    assert kinds == ["create", "begin", "charge"] + ["ask", "reply"] * rounds
    ledger.verify()


def test_a_step_without_a_reply_is_drawn_again(url: str) -> None:
    ledger = new(url, jobs=9)
    rows = np.arange(N_POINTS)

    def ask() -> Any:
        budget = ledger.job("people", b"max", delta=1e-6)
        labeler = Labeler(VOTES, n_classes=2, account=budget)
        labeler.open(NoisyMax(sigma=100, n_queries=N_POINTS, n_classes=2))
        return labeler

    ask().account.commit_question(1, {}, _pack(rows))  # and then it was killed
    first = ask().labels(rows)
    assert set(first) <= {0, 1}
    np.testing.assert_array_equal(ask().labels(rows), first)
    assert ledger.balance("people").releases == 1


def test_two_runs_of_one_fit_use_one_partition(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever of them is answered, each record sits in one and the same chunk."""
    from test_ledger import learner, records

    ledger = Ledger(url, create=True)
    ledger.create("people", epsilon=1, delta=1e-4)
    X, y, pool = records()
    log = tmp_path / "salts"
    collect_votes = votes.collect_votes

    def spy(*args: Any, random_state: int, **kwargs: Any) -> Any:
        with log.open("a") as file:
            file.write(f"{random_state}\n")
        return collect_votes(*args, random_state=random_state, **kwargs)

    monkeypatch.setattr(votes, "collect_votes", spy)
    crowd = [spawn(lambda: learner(url).fit(X, y, X_public=pool)) for _ in range(3)]
    for child in crowd:
        child.join()
    salts = log.read_text().split()
    assert len(salts) == 3
    assert len(set(salts)) == 1
    assert ledger.balance("people").releases == 1


def test_after_a_step_that_failed_a_labeler_is_done(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = new(url, jobs=9)
    budget = ledger.job("people", b"a", delta=1e-6)
    labeler = Labeler(VOTES, n_classes=2, account=budget)
    mechanism = ChargedDissent(
        sigma=Fraction(200), dissents=20, n_teachers=N_TEACHERS, n_classes=2
    )
    labeler.open(mechanism)
    with pytest.raises(MechanismStateError, match="has an open mechanism already"):
        labeler.open(mechanism)
    rows = np.arange(N_POINTS)
    with monkeypatch.context() as patch:
        patch.setattr(budget, "commit_question", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            labeler.shares(rows, rows * 0)
    with pytest.raises(MechanismStateError, match="Make a new labeler"):
        labeler.shares(rows, rows * 0)
    other = Labeler(VOTES, n_classes=2, account=ledger.job("people", b"b", delta=1e-6))
    other.open(NoisyMax(sigma=100, n_queries=2 * N_POINTS, n_classes=2))
    other.labels(rows)
    with pytest.raises(MechanismStateError, match="one batch only"):
        other.labels(rows)


def test_an_interrupted_journal_can_be_used_again(url: str) -> None:
    ledger = new(url, jobs=2)
    with pytest.raises(KeyboardInterrupt), Transaction(ledger.store):
        raise KeyboardInterrupt
    with (
        pytest.raises(LedgerError, match=r"ledger at .* failed"),
        Transaction(ledger.store) as transaction,
    ):
        transaction.store.execute("SELECT nonsense FROM nowhere")
    assert len(job(ledger, b"a")) == N_STEPS + 1
