"""Budgets in memory: a filter, and one that every fit inside is charged to."""

import copy
import math
import multiprocessing
import os
import pickle
import platform
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import ExitStack, suppress
from fractions import Fraction
from functools import lru_cache
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pytest
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from mapl import Budget, Ledger, PrivateClassifier
from mapl.errors import (
    BudgetExceededError,
    LedgerError,
    MaplError,
    MechanismStateError,
    ParameterError,
)
from mapl.ledger import budget as budgets
from mapl.ledger.budget import nobody_pays, open_budgets
from mapl.ledger.rules import Charge, Filter
from mapl.privacy import accounting
from mapl.privacy.calibration import least_sigma
from mapl.privacy.events import Event, GaussianEvent, StableReleaseEvent

# The rule, exactly ------------------------------------------------------------------

Laws = tuple["np.ndarray[Any, Any]", "np.ndarray[Any, Any]"]
Admits = Callable[[Event], bool]
EPSILON, DELTA = 1.0, 1e-5
SIGMAS = [Fraction(n, 20) for n in range(60, 1200)]  # from the dearest
LEAKS = [DELTA * n / 200 for n in range(200, 0, -1)]
POINTS = np.arange(-400, 402)
SCALE = 10**4  # of releases that say next to nothing unless they leak


@lru_cache
def gaussian_laws(sigma: Fraction) -> Laws:
    laws = [np.exp(-((POINTS - a) ** 2) / (2 * float(sigma) ** 2)) for a in (0, 1)]
    return laws[0] / laws[0].sum(), laws[1] / laws[1].sum()


def divergence(laws: Laws, gamma: Any) -> Any:
    """Sup P(S) - gamma Q(S), for many gammas."""
    p, q = laws
    return np.maximum(p - np.asarray(gamma)[..., None] * q, 0).sum(axis=-1)


def leaky_event(leak: float) -> StableReleaseEvent:
    """A value that neighbours disagree on, which comes out with this probability."""
    threshold = math.ceil(-SCALE * math.log(2 * leak))
    return StableReleaseEvent(noise_scale=Fraction(SCALE), threshold=threshold)


def leaky_divergence(event: StableReleaseEvent, gamma: Any) -> Any:
    ratio = math.exp(-1 / SCALE)
    leak = ratio ** (event.threshold + 1) / (1 + ratio)  # P(noise > threshold)
    return leak + (1 - leak) * np.maximum(1 - gamma, 0)


def largest(admits: Admits, events: list[Any]) -> Any:
    """The dearest event that is admitted, of some from dear to cheap."""
    low, high = 0, len(events)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if admits(events[middle]) else (middle + 1, high)
    return events[low] if low < len(events) else None


def reached(admitted_after: Callable[[Event], Admits], sigma: Fraction) -> float:
    """What an adversary reaches who chooses the second release by the first one's
    outcome: among the dearest Gaussian and the dearest leak that the rule admits.
    """
    admits = admitted_after(GaussianEvent(sigma=sigma, steps=1))
    p, _ = gaussian_laws(sigma)
    gamma = np.exp(EPSILON + (2 * POINTS - 1) / (2 * float(sigma) ** 2))
    choices = [np.maximum(1 - gamma, 0)]
    noisy = largest(admits, [GaussianEvent(sigma=s, steps=1) for s in SIGMAS])
    if noisy is not None:
        choices.append(divergence(gaussian_laws(noisy.sigma), gamma))
    leaky = largest(admits, [leaky_event(leak) for leak in LEAKS])
    if leaky is not None:
        choices.append(leaky_divergence(leaky, gamma))
    return float((p * np.max(choices, axis=0)).sum())


def by_composition(first: Event) -> Admits:
    """What 0.1.0 asked: whether what came out, composed, is within the limits."""

    def admits(event: Event) -> bool:
        return accounting.delta([first, event], epsilon=EPSILON) <= DELTA

    return admits


def charged(kept: Filter, *events: Event) -> Filter:
    for event in events:
        price = kept.price(event)
        assert price is not None
        kept = kept.with_([Charge(event, price)])
    return kept


def by_filter(first: Event) -> Admits:
    kept = charged(Filter.of(epsilon=EPSILON, delta=DELTA), first)

    def admits(event: Event) -> bool:
        try:
            kept.price(event)
        except BudgetExceededError:
            return False
        return True

    return admits


@pytest.mark.parametrize("sigma", [Fraction(9, 2), Fraction(8)])
def test_choosing_by_the_outcome_gains_nothing(sigma: Fraction) -> None:
    found = reached(by_filter, sigma)
    assert 0.5 * DELTA < found <= DELTA


def test_composing_what_came_out_is_no_filter() -> None:
    """The exact check finds the rule that budgets had: it is exceeded."""
    assert reached(by_composition, Fraction(9, 2)) > 1.3 * DELTA


def test_the_first_release_may_take_all() -> None:
    sigma = least_sigma(epsilon=EPSILON, delta=DELTA, steps=1)
    empty = Filter.of(epsilon=EPSILON, delta=DELTA)
    with pytest.raises(BudgetExceededError, match="this release needs"):
        empty.price(GaussianEvent(sigma=sigma, steps=2))
    kept = charged(empty, GaussianEvent(sigma=sigma, steps=1))
    assert kept.is_spent
    assert 0.99 * EPSILON < kept.epsilon_spent <= EPSILON
    assert (empty.remaining, kept.remaining) == (EPSILON, 0)
    with pytest.raises(BudgetExceededError, match="the first release left nothing"):
        kept.price(GaussianEvent(sigma=Fraction(10**6), steps=1))


def test_the_first_release_decides_what_is_kept_for_leaks() -> None:
    """A release that needs nearly all of delta leaves what is left of epsilon."""
    leaky = leaky_event(0.97 * DELTA)
    noisy = GaussianEvent(sigma=Fraction(8), steps=1)
    kept = charged(Filter.of(epsilon=EPSILON, delta=DELTA), leaky, noisy)
    assert 0 < kept.remaining < EPSILON
    with pytest.raises(BudgetExceededError, match="of delta is spent for leaks"):
        kept.price(leaky)
    usual = charged(Filter.of(epsilon=EPSILON, delta=DELTA), noisy)
    with pytest.raises(BudgetExceededError, match="of delta is spent for leaks"):
        usual.price(leaky)


# Who pays ---------------------------------------------------------------------------

RNG = np.random.default_rng(0)
X, POINTS_ASKED = RNG.normal(size=(400, 2)), RNG.normal(size=(60, 2))
Y = (X[:, 0] > 0).astype(int)


def model(**kwargs: Any) -> PrivateClassifier:
    return PrivateClassifier(epsilon=1, classes=[0, 1], **kwargs)


def fits(n: int = 0, made: Any = None) -> bool:
    """Fit, in whatever process; whether the budget paid for it."""
    del n
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            (made or model()).fit(X, Y, X_public=POINTS_ASKED)
        except BudgetExceededError:
            return False
    return True


def fits_within(n: int = 0) -> bool:
    del n
    with Budget(epsilon=5, delta=1e-5) as inner:
        paid = fits()
        assert (len(inner.events) > 0) or not paid
    return paid


def in_loky(function: Any) -> list[bool]:
    return list(joblib.Parallel(2)(joblib.delayed(function)(i) for i in range(3)))


def in_threads(function: Any) -> list[bool]:
    tasks = [joblib.delayed(function)(i) for i in range(3)]
    return list(joblib.Parallel(2, backend="threading")(tasks))


def in_pool(pool: Executor) -> Callable[[Any], list[bool]]:
    def run(function: Any) -> list[bool]:
        with pool:
            return list(pool.map(function, range(3)))

    return run


def in_executor(function: Any) -> list[bool]:
    import asyncio

    async def all_of_them() -> list[bool]:
        loop = asyncio.get_running_loop()
        tasks = [loop.run_in_executor(None, function, i) for i in range(3)]
        return list(await asyncio.gather(*tasks))

    return asyncio.run(all_of_them())


def by_shell(function: Any) -> list[bool]:
    """Grandchildren, which inherit nothing of Python's."""
    code = f"import test_budget as t; print(t.{function.__name__}())"
    command = ["sh", "-c", '"$0" -c "$1"; true', sys.executable, code]
    own = os.environ | {"PYTHONPATH": str(Path(__file__).parent)}
    done = [
        subprocess.run(command, env=own, capture_output=True, text=True, check=True)
        for _ in range(3)
    ]
    return [each.stdout.strip() == "True" for each in done]


def processes(method: str) -> Callable[[Any], list[bool]]:
    def run(function: Any) -> list[bool]:
        context = multiprocessing.get_context(method)
        return in_pool(ProcessPoolExecutor(2, mp_context=context))(function)

    return run


PLACES: dict[str, Callable[[Any], list[bool]]] = {
    "one after the other": lambda function: [function() for _ in range(3)],
    "threads": in_threads,
    "an executor": in_executor,
    "loky": in_loky,
    "spawned processes": processes("spawn"),
    "the fork server": processes("forkserver"),
    "a shell": by_shell,
}


@pytest.fixture(scope="module")
def old_workers() -> Iterator[Executor]:
    """Processes that are older than any budget."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(2, mp_context=context) as pool:
        list(pool.map(abs, range(4)))
        yield pool


@pytest.mark.parametrize("name", PLACES)
@pytest.mark.parametrize("function", [fits, fits_within])
def test_a_fit_is_charged_wherever_it_runs(name: str, function: Any) -> None:
    if function is fits_within and name in ("the fork server", "a shell"):
        pytest.skip("as in spawned processes")
    with Budget(epsilon=1.05, delta=1e-5) as budget:
        assert sum(PLACES[name](function)) == 1
        assert len(budget.events) == 1
        assert 0.9 < budget.epsilon_spent <= 1.05
    assert len(budget.events) == 1
    assert fits()
    assert len(budget.events) == 1


def test_a_fit_is_charged_in_a_process_that_is_older(old_workers: Executor) -> None:
    with Budget(epsilon=1.05, delta=1e-5) as budget:
        assert sum(old_workers.map(fits, range(3))) == 1
        assert len(budget.events) == 1
    assert sum(old_workers.map(fits, range(2))) == 2


@pytest.mark.filterwarnings("ignore:What fits this model several times")
def test_cross_validation_is_charged() -> None:
    with Budget(epsilon=2.5, delta=1e-5) as budget:
        pipeline = make_pipeline(StandardScaler(), LogisticRegression())
        cross_val_score(pipeline, X, Y, n_jobs=2)
        with pytest.raises(BudgetExceededError):
            cross_val_score(
                *(model(), X, Y),
                cv=8,
                n_jobs=2,
                params={"X_public": POINTS_ASKED},
                error_score="raise",
            )
    assert 1 < len(budget.events) < 8
    assert budget.epsilon_spent <= 2.5


def test_all_open_budgets_pay() -> None:
    sizes = (9.0, 1.05, 7.0)
    with ExitStack() as stack:
        opened = [stack.enter_context(Budget(epsilon=e, delta=1e-5)) for e in sizes]
        assert fits()
        assert not fits()
        assert [len(budget.events) for budget in opened] == [1, 1, 1]
        opened[0].charge(GaussianEvent(sigma=Fraction(10**4), steps=1))
        assert [len(budget.events) for budget in opened] == [2, 2, 2]
        with nobody_pays():
            assert fits()
    assert [len(budget.events) for budget in opened] == [2, 2, 2]


def test_a_fit_with_a_ledger_is_charged_to_both(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/ledger.db"
    ledger = Ledger(url, create=True)
    ledger.create("d", epsilon=20, delta=1e-4)
    own = {"ledger": url, "dataset": "d", "random_state": 0}
    with Budget(epsilon=1.05, delta=1e-5) as budget:
        assert fits(made=model(**own))
        spent = ledger.balance("d")
        assert fits(made=model(**own))  # the same answers again
        assert len(budget.events) == 1
        assert not fits(made=model(**own | {"random_state": 1}))
        assert ledger.balance("d") == spent
    with Budget(epsilon=1.05, delta=1e-5) as other:
        assert fits(made=model(**own))
    assert len(other.events) == 1
    assert ledger.balance("d") == spent


def test_a_budget_may_be_opened_again() -> None:
    budget = Budget(epsilon=2.2, delta=1e-5)
    with budget, budget:
        assert fits()
    assert fits()
    with budget:
        assert len(budget.events) == 1
        assert in_loky(fits).count(True) >= 1
    before = budget.epsilon_spent
    with budget:
        assert not fits()
    assert budget.epsilon_spent == before <= 2.2
    assert budget.remaining() == pytest.approx(2.2 - before)
    for copied in (copy.deepcopy, pickle.dumps):
        with pytest.raises(MechanismStateError, match="cannot be copied"):
            copied(budget)


def elsewhere(budget: Budget, patch: pytest.MonkeyPatch) -> None:
    """Make a budget look as it does where it cannot be found by ancestors."""
    assert budget._place is not None
    place = budget._place.with_name(budget._place.name.replace("-", "-9", 1))
    budget._place.rename(place)
    budget._place = place
    patch.setattr(budgets, "_entered", [])
    patch.setattr(budgets, "_opened_here", set())
    assert open_budgets() == []


def private_of(made: Any) -> Any:
    """The private classifier in a pipeline or a search."""
    if isinstance(made, GridSearchCV):
        return made.estimator
    return made[-1] if hasattr(made, "steps") else made


@pytest.mark.parametrize(
    "make",
    [
        lambda: model(),
        lambda: make_pipeline(StandardScaler(), model()),
        lambda: GridSearchCV(model(), {"class_weight": [None]}, cv=2),
    ],
)
def test_a_classifier_that_is_sent_away_names_its_budgets(
    make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To a cluster, say, whose processes come from elsewhere."""
    with Budget(epsilon=1.05, delta=1e-5) as budget:
        with monkeypatch.context() as patch:
            elsewhere(budget, patch)
            patch.setattr(budgets, "_entered", [budget])
            data = pickle.dumps(make())
            patch.setattr(budgets, "_entered", [])
            sent = pickle.loads(data)
            again = pickle.loads(pickle.dumps(clone(sent)))
            inner = private_of(again)
            assert inner.carried_budgets == [f"{platform.node()}:{budget._place}"]
            assert fits(made=inner)
            assert not fits(made=inner)
            assert not fits(made=clone(inner))
        assert len(budget.events) == 1
        budgets._opened_here.add(str(budget._place))
        known = pickle.loads(data)
        assert "carried_budgets" not in vars(private_of(known))
    copies = copy.deepcopy(inner), pickle.loads(pickle.dumps(inner))
    assert all(fits(made=each) for each in copies)  # this process opened it
    with pytest.raises(LedgerError, match="Make a new one: sklearn"):
        inner.fit(X, Y, X_public=POINTS_ASKED)
    assert fits(made=clone(inner))
    inner.carried_budgets = ["another machine:/tmp/mapl-budgets-0/1-1-0"]
    for refused in (inner, clone(inner)):
        with pytest.raises(LedgerError, match="on another machine"):
            refused.fit(X, Y, X_public=POINTS_ASKED)


def test_a_fit_that_starts_inside_is_charged_though_it_reads_for_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The block may end before the records are read."""
    started, ended, found = threading.Event(), threading.Event(), []
    read = PrivateClassifier._read

    def slowly(*args: Any) -> Any:
        started.set()
        assert ended.wait(20)
        return read(*args)

    monkeypatch.setattr(PrivateClassifier, "_read", slowly)
    with Budget(epsilon=0.5, delta=1e-5) as budget:
        thread = threading.Thread(target=lambda: found.append(fits()))
        thread.start()
        assert started.wait(20)
    ended.set()
    thread.join()
    assert found == [False]
    assert budget.events == []


def test_a_killed_process_leaves_no_open_budget() -> None:
    code = (
        "import os, signal, mapl; mapl.Budget(epsilon=1, delta=1e-5).__enter__(); "
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    with subprocess.Popen([sys.executable, "-c", code]) as killed:
        assert killed.wait() == -signal.SIGKILL
    assert list(budgets._folder().glob(f"{killed.pid}-*"))
    assert open_budgets() == []
    assert not list(budgets._folder().glob(f"{killed.pid}-*"))


SMALL = [GaussianEvent(sigma=Fraction(10**4 + i), steps=1) for i in range(9)]


def joined(budget: Budget) -> Budget:
    """The budget as another process sees it."""
    assert budget._place is not None
    return Budget._joined(budget._place)


def test_a_charge_that_a_kill_cut_off_was_never_made() -> None:
    with Budget(epsilon=2, delta=1e-5) as budget:
        budget.charge(SMALL[0])
        assert budget._place is not None
        with open(budget._place / "charges", "ab") as file:
            file.write(b'{"event": {"kind"')
        assert budget.events == SMALL[:1]
        budget.charge(SMALL[1])
        assert joined(budget).events == budget.events == SMALL[:2]


def test_a_charge_that_cannot_be_written_whole_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with Budget(epsilon=2, delta=1e-5) as budget:
        budget.charge(SMALL[0])
        write = os.pwrite
        for short in (
            lambda file, data, at: write(file, data[:20], at),
            lambda *_: write(-1, b"", 0),
        ):
            with monkeypatch.context() as patch:
                patch.setattr(os, "pwrite", short)
                with pytest.raises(LedgerError, match="is the disk full"):
                    budget.charge(SMALL[1])
            assert joined(budget).events == budget.events == SMALL[:1]
        budget.charge(SMALL[1])
        assert joined(budget).events == SMALL[:2]
        assert budget._place is not None
        os.truncate(budget._place / "charges", 10)
        with pytest.raises(LedgerError, match="was changed"):
            budget.charge(SMALL[2])
        with pytest.raises(LedgerError, match="was changed"):
            budget.__exit__()
    assert open_budgets() == []


def test_an_interruption_loses_no_charge(monkeypatch: pytest.MonkeyPatch) -> None:
    with Budget(epsilon=2, delta=1e-5) as budget:
        other = joined(budget)
        for event in SMALL:
            other.charge(event)
        read = budgets._charge_of
        for n in range(len(SMALL)):
            left = [n]

            def interrupted(line: bytes, left: Any = left) -> Any:
                left[0] -= 1
                if left[0] < 0:
                    raise KeyboardInterrupt
                return read(line)

            with monkeypatch.context() as patch:
                patch.setattr(budgets, "_charge_of", interrupted)
                with pytest.raises(KeyboardInterrupt):
                    _ = budget.events
        assert budget.events == SMALL
        odd = GaussianEvent(sigma=Fraction(10**90 + 1, 10**85), steps=1)
        with pytest.raises(MaplError):
            other.charge(odd)
        assert joined(budget).events == budget.events == SMALL


def test_a_charge_that_waits_while_a_budget_closes_is_refused() -> None:
    budget = Budget(epsilon=2, delta=1e-5)
    with budget:
        other, found = joined(budget), []

        def charge() -> None:
            try:
                other.charge(SMALL[0])
            except LedgerError as error:
                found.append("closed in the meantime" in str(error))

        with budget._charges():  # as `_close` holds them
            thread = threading.Thread(target=charge)
            thread.start()
            time.sleep(0.1)
            assert budget._place is not None
            (budget._place / "charges").unlink()
        thread.join()
        assert found == [True]
        with pytest.raises(LedgerError, match="closed in the meantime"):
            budget.__exit__()
    assert open_budgets() == []
    with budget:
        assert budget.events == []
        assert fits()
    assert len(budget.events) == 1


def test_one_request_to_two_data_sets_is_charged_twice(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/ledger.db"
    ledger = Ledger(url, create=True)
    for name in "abc":
        ledger.create(name, epsilon=20, delta=1e-4)
    with Budget(epsilon=1.6, delta=1e-5) as budget:
        made = [model(ledger=url, dataset=name, random_state=0) for name in "abc"]
        assert [fits(made=each) for each in made].count(True) == len(budget.events) == 2
        assert fits(made=made[0])
        assert len(budget.events) == 2
    with budget:  # open again, all know what was requested
        assert fits(made=made[0])
        other = joined(budget)
        assert other.events == budget.events
        requests = {charge.request for charge in other._known.filter.charged}
        assert len(requests - {""}) == len(budget.events) == 2


def test_all_budgets_are_charged_or_none() -> None:
    with Budget(epsilon=9, delta=1e-5) as outer, Budget(epsilon=0.1, delta=1e-5):
        event = GaussianEvent(sigma=Fraction(4), steps=1)
        with pytest.raises(BudgetExceededError):
            budgets.charge_all(open_budgets(), event)
        assert outer.events == []


def test_what_cannot_be_looked_up_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(*_: Any, **__: Any) -> Any:
        raise OSError(24, "Too many open files")

    with Budget(epsilon=1.05, delta=1e-5) as budget:
        with monkeypatch.context() as patch:
            patch.setattr(budgets, "_entered", [])
            patch.setattr(os, "open", refuses)
            with pytest.raises(LedgerError, match="cannot be found out"):
                open_budgets()
        budgets._folder().chmod(0o755)
        try:
            found = by_shell(fits)
        finally:
            budgets._folder().chmod(0o700)
        assert found.count(True) == len(budget.events) == 1
        (budgets._folder() / "²-x").mkdir(exist_ok=True)
        assert not fits()
        (budgets._folder() / "²-x").rmdir()
    other = tmp_path / "other"
    other.mkdir()
    monkeypatch.setattr(budgets, "_folder", lambda: other)
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    assert open_budgets() == []  # a stranger's folder holds none of ours


def test_a_process_that_was_forked_charges_and_leaves_quietly() -> None:
    with Budget(epsilon=1.05, delta=1e-5) as budget:
        child = os.fork()
        if not child:  # pragma: no cover - in the child
            code = 1
            with suppress(BaseException):
                os.setsid()
                code = 0 if fits() and not fits() else 2
                budget.__exit__()
            os._exit(code)
        assert os.waitpid(child, 0)[1] == 0
        assert len(budget.events) == 1


def test_what_a_process_inherits_when_it_is_forked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In this process: what the child of a fork does, and what it leaves alone."""
    with Budget(epsilon=1.05, delta=1e-5) as budget:
        place = budget._place
        with monkeypatch.context() as patch:
            patch.setattr(budgets, "_entered", [budget])
            patch.setattr(budgets, "_opened_here", {str(place)})
            patch.setattr(budgets, "_inherited", [])
            budgets._after_fork()
            assert (budgets._entered, budgets._opened_here) == ([], set())
            assert budgets._inherited == [place]
            (found,) = open_budgets()
            assert found._place == place
            patch.setattr(type(budget._guard), "is_own", False)
            budget.__exit__()  # the child's: the budget stays open
        assert open_budgets() == [budget]


def test_a_charge_that_reads_otherwise_is_refused() -> None:
    class Odd(GaussianEvent):
        pass

    event = Odd(sigma=Fraction(9), steps=1)
    with pytest.raises(LedgerError, match="cannot be written down"):
        budgets._line(Charge(event, (1, 1), ""))


def test_what_fits_can_be_asked_without_a_charge() -> None:
    budget = Budget(epsilon=1.05, delta=1e-5)
    event = GaussianEvent(sigma=Fraction(4), steps=1)
    budget.check(event)
    assert budget.events == []
    with pytest.raises(BudgetExceededError):
        budget.check(GaussianEvent(sigma=Fraction(1), steps=9))


def test_a_budget_needs_a_place_and_locks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    for folder in (shared, tmp_path / "no" / "folder"):
        monkeypatch.setattr(budgets, "_folder", lambda folder=folder: folder)
        budget, before = Budget(epsilon=1, delta=1e-5), len(os.listdir("/proc/self/fd"))
        with pytest.raises(LedgerError, match="a folder of yours alone"):
            budget.__enter__()
        assert len(os.listdir("/proc/self/fd")) == before
        assert budget._times_open == 0
    assert open_budgets() == []
    monkeypatch.setattr(budgets, "_folder", lambda: tmp_path / "own")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", full)
        before = len(os.listdir("/proc/self/fd"))
        with pytest.raises(LedgerError, match="No space left"):
            Budget(epsilon=1, delta=1e-5).__enter__()
        assert len(os.listdir("/proc/self/fd")) == before
    assert list((tmp_path / "own").iterdir()) == []
    with Budget(epsilon=1, delta=1e-5) as budget:
        assert budget._place is not None
        with monkeypatch.context() as patch:  # as another process sees it
            patch.setattr(budgets, "_entered", [])
            patch.setattr(budgets, "_inherited", [budget._place])
            assert [found._place for found in open_budgets()] == [budget._place]
        budgets._entered.remove(budget)  # as after an interruption
    left = tmp_path / "own" / f"{os.getpid()}-1-{'0' * 16}"
    left.mkdir()
    (left / budgets._OPEN).touch()
    assert open_budgets() == []
    assert not left.exists()
    with Budget(epsilon=1, delta=1e-5) as budget:
        back = pickle.loads(pickle.dumps(PrivateClassifier()))
        assert open_budgets(back.carried_budgets) == [budget]
        monkeypatch.setattr(budgets, "_ancestors", lambda: {os.getpid()})
        assert open_budgets() == [budget]
    monkeypatch.setattr(budgets, "fcntl", None)
    with pytest.raises(LedgerError, match="file locks"), Budget(epsilon=1, delta=1e-5):
        pass
    with pytest.raises(ParameterError, match="epsilon must be from 1e-6 to 1e6"):
        Budget(epsilon=1e9, delta=1e-5)


def test_parents_are_found_without_proc(monkeypatch: pytest.MonkeyPatch) -> None:
    found = budgets._ancestors()
    assert os.getppid() in found
    assert budgets._parent_of(2**30) == 0
    assert budgets._namespace() != "0"
    monkeypatch.setattr(budgets, "_PROC", Path("/nowhere"))
    assert budgets._namespace() == "0"
    done = subprocess.CompletedProcess([], 0, stdout=b" 7\n")
    monkeypatch.setattr(budgets.subprocess, "run", lambda *_, **__: done)
    assert budgets._parent_of(5) == 7
    assert budgets._ancestors() == {os.getppid(), 7}
