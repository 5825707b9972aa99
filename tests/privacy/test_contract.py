"""What holds for every mechanism; what holds for every event is in test_accounting."""

import copy
import json
import math
import multiprocessing
import pickle
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import mapl
from mapl import accounting
from mapl.errors import BudgetExceededError, MechanismStateError, ParameterError
from mapl.privacy.charged_dissent import ChargedDissent
from mapl.privacy.events import from_json
from mapl.privacy.linear_map import LinearMap
from mapl.privacy.moments import Block, Moments
from mapl.privacy.noise import SYSTEM, SeededSource, Source
from mapl.privacy.noisy_counts import NoisyCount
from mapl.privacy.noisy_max import ConfidentNoisyMax, NoisyMax
from mapl.privacy.sparse_vector import SparseVector
from mapl.privacy.stable_release import StableRelease
from mapl.privacy.votes import Votes

Make = Callable[[Source], Any]


def sparse(**more: Any) -> Make:
    sizes: dict[str, Any] = {"noise_scale": 50, "threshold": 900, "cutoff": 3}
    return lambda source: SparseVector(**sizes | more, source=source)


def confident(source: Source) -> ConfidentNoisyMax:
    return ConfidentNoisyMax(
        sigma=40,
        check_sigma=150,
        threshold=300,
        n_queries=9,
        n_answers=3,
        n_classes=3,
        source=source,
    )


RUNNING: dict[str, Make] = {
    "sparse vector": sparse(),
    "sparse vector, threshold noise once": sparse(threshold_noise_scale=40),
    "sparse vector, redrawn": sparse(threshold_noise_scale=40, redrawn=True),
    "noisy max": lambda source: NoisyMax(
        sigma=40, n_queries=9, n_classes=3, source=source
    ),
    "confident noisy max": confident,
    "charged dissent": lambda source: ChargedDissent(
        sigma=40, dissents=4, n_teachers=5, n_classes=3, source=source
    ),
    "noisy count": lambda source: NoisyCount(sigma=40, source=source),
    "moments": lambda source: Moments(
        squared_shift=Fraction(1, 100), coordinates=9, source=source
    ),
}
EVERY = RUNNING | {
    "stable release": lambda source: StableRelease(
        noise_scale=50, threshold=900, source=source
    )
}
OF_SUMS = ("noisy count", "moments")
OF_VOTES = {name: make for name, make in EVERY.items() if name not in OF_SUMS}
WITH_STATE = {n: m for n, m in RUNNING.items() if hasattr(m(SYSTEM), "state")}


def each(makers: dict[str, Make]) -> Any:
    return pytest.mark.parametrize("make", makers.values(), ids=makers)


def votes(n_queries: int, n_teachers: int = 5) -> Votes:
    predictions = np.ones((n_teachers, n_queries), dtype=np.int8)
    return Votes.from_predictions(predictions, n_classes=3)


def ask(mechanism: Any) -> Any:
    if isinstance(mechanism, NoisyCount):
        return mechanism.answer(7)
    if isinstance(mechanism, Moments):
        one, ones = LinearMap([np.ones((1, 1))]), np.ones((3, 1))
        block = Block(ones, one.lengths(one.block_lengths(ones)), ones)
        return mechanism.answer(
            [block], one, squared_length=1, part=Fraction(1, 9), columns=1
        )
    return mechanism.answer(votes(1))


def test_every_exported_mechanism_is_here() -> None:
    exported = {getattr(mapl, name) for name in mapl.__all__}
    mechanisms = {kind for kind in exported if hasattr(kind, "answer")}
    assert mechanisms <= {type(make(SYSTEM)) for make in EVERY.values()}
    assert len(mechanisms) == 5


@each(EVERY)
def test_its_event_has_a_price_and_survives_json(make: Make) -> None:
    event = make(SYSTEM).event
    assert 0 < accounting.epsilon([event], delta=1e-4) < math.inf
    assert from_json(json.loads(json.dumps(event.to_json()))) == event
    assert make(SYSTEM).event == event


@each(EVERY)
def test_seeded_noise_repeats_and_is_marked_as_worthless(make: Make) -> None:
    first, second = (make(SeededSource(7)) for _ in range(2))
    assert repr(ask(first)) == repr(ask(second))
    assert first.event.seeded
    assert accounting.epsilon([first.event], delta=1e-4) == math.inf
    if not isinstance(first, StableRelease):  # whose repr shows the source itself
        assert "NOT PRIVATE" in repr(first)
        assert "NOT PRIVATE" not in repr(make(SYSTEM))


@each(OF_VOTES)
def test_an_empty_batch_is_no_query(make: Make) -> None:
    mechanism = make(SYSTEM)
    answer = mechanism.answer(votes(0))
    assert np.size(getattr(answer, "labels", answer)) == 0
    assert getattr(mechanism, "n_asked", 0) == 0


@each({n: m for n, m in OF_VOTES.items() if "max" in n or "dissent" in n})
def test_votes_over_other_classes_are_refused_and_cost_nothing(make: Make) -> None:
    mechanism = make(SYSTEM)
    other = Votes.from_predictions(np.zeros((5, 1), dtype=np.int8), n_classes=2)
    with pytest.raises(ParameterError, match="must have n_classes = 3, got 2"):
        mechanism.answer(other)
    assert mechanism.n_asked == 0


@each({n: m for n, m in RUNNING.items() if "max" in n or "count" in n})
def test_more_than_was_paid_for_is_refused_and_releases_nothing(make: Make) -> None:
    mechanism = make(SYSTEM)
    for _ in range(getattr(mechanism, "n_queries", 1)):
        ask(mechanism)
    with pytest.raises(BudgetExceededError, match="Nothing was released"):
        ask(mechanism)


@each(RUNNING)
@pytest.mark.parametrize("twin", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_running_mechanism_cannot_be_copied(make: Make, twin: Any) -> None:
    with pytest.raises(MechanismStateError, match="budget would be spent twice"):
        twin(make(SYSTEM))


@each(RUNNING)
def test_another_process_releases_nothing(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    mechanism = make(SYSTEM)
    with monkeypatch.context() as patch:
        patch.setattr("os.getpid", lambda: -1)
        with pytest.raises(MechanismStateError, match="opened in another process"):
            ask(mechanism)
    ask(mechanism)  # and in its own process it goes on


def _ask_in_child(mechanism: Any, queue: Any) -> None:
    try:
        ask(mechanism)
    except MechanismStateError as error:
        queue.put(str(error))
    else:
        queue.put("released")


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_mechanism_releases_nothing() -> None:
    context = multiprocessing.get_context("fork")
    for make in RUNNING.values():
        queue = context.Queue()
        child = context.Process(target=_ask_in_child, args=(make(SYSTEM), queue))
        child.start()
        assert "opened in another process" in queue.get(timeout=60)
        child.join()


@each(WITH_STATE)
def test_state_is_json_and_resuming_never_gives_budget_back(make: Make) -> None:
    mechanism, fresh = make(SYSTEM), make(SYSTEM)
    unused = json.loads(json.dumps(fresh.state()))
    ask(mechanism)
    used = json.loads(json.dumps(mechanism.state()))
    assert used != unused
    mechanism.resume(unused)
    assert mechanism.state() == used
    fresh.resume(used)
    fresh.resume(used)
    for name in ("left", "asked"):
        assert fresh.state().get(name) == used.get(name)


@each(WITH_STATE)
def test_state_is_in_no_repr(make: Make) -> None:
    mechanism = make(SYSTEM)
    ask(mechanism)
    for name in ("left", "n_abstained", "drawn"):
        assert name not in repr(mechanism)
