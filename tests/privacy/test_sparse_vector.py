import math
import threading
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import mapl
from mapl import accounting
from mapl.errors import ParameterError
from mapl.privacy.noise import SeededSource
from mapl.privacy.sparse_vector import SparseVector
from mapl.privacy.stable_release import StableRelease, check_neighbours
from mapl.privacy.votes import ABSTAIN, Votes

SHAKY, SURE = 0, 10**6  # distances far below and far above every threshold


def stable() -> StableRelease:
    return StableRelease.for_budget(epsilon=1, delta=1e-9)


def without_noise() -> SparseVector:
    return SparseVector(noise_scale=5, threshold=200, cutoff=3)


def once() -> SparseVector:
    return SparseVector(noise_scale=5, threshold=300, cutoff=3, threshold_noise_scale=4)


def redrawn() -> SparseVector:
    return SparseVector(
        noise_scale=5, threshold=300, cutoff=3, threshold_noise_scale=4, redrawn=True
    )


SPARSE = [without_noise, once, redrawn]
MECHANISMS: list[Callable[[], Any]] = [stable, *SPARSE]
each_mechanism = pytest.mark.parametrize("make", MECHANISMS)
each_sparse = pytest.mark.parametrize("make", SPARSE)


# Every mechanism ------------------------------------------------------------------


@each_mechanism
def test_sure_values_are_released_and_shaky_ones_withheld(make: Any) -> None:
    answer = make().release(np.array([7, 8, 9]), [SURE, SHAKY, SURE])
    assert answer.labels.tolist() == [7, ABSTAIN, 9]
    assert answer.labels.dtype == np.int64
    assert answer.answered.tolist() == [True, False, True]
    assert answer.n_asked == 3


@each_mechanism
def test_votes_are_answered_with_their_winner(make: Any) -> None:
    predictions = np.array([[1, 0]] * 2000 + [[1, 1]] * 2000)
    answer = make().answer(Votes.from_predictions(predictions, n_classes=2))
    assert answer.labels.tolist() == [1, ABSTAIN]


@each_mechanism
def test_any_value_can_be_released(make: Any) -> None:
    answer = make().release(["yes", "no"], [SURE, SHAKY])
    assert answer.labels.tolist() == ["yes", ABSTAIN]
    unsigned = make().release(np.array([7, 8], dtype=np.uint8), [SURE, SHAKY])
    assert unsigned.labels.tolist() == [7, ABSTAIN]


@each_mechanism
@pytest.mark.parametrize("withheld", [1, 1.5, None, "x", [1, 2], np.datetime64("2020")])
def test_a_withheld_value_does_not_show_in_the_type_of_the_others(
    make: Any, withheld: Any
) -> None:
    labels = make().release([0, withheld], [SURE, SHAKY]).labels
    assert labels.dtype == object
    assert type(labels[0]) is int
    assert labels.base is None


@each_mechanism
def test_an_empty_batch_is_no_query(make: Any) -> None:
    answer = make().release([], [])
    assert answer.n_asked == 0
    assert answer.labels.size == 0


@each_mechanism
@pytest.mark.parametrize(
    ("values", "distances", "message"),
    [
        ([1, 2], [3], r"one entry a query, got 2 values and distances of shape \(1,\)"),
        ([1], 3, "one entry a query"),
        ([1], [2.5], r"distances must be integers, got float64. Round them down"),
        ([1], [-5], r"distances must be >= 0 and at most 2\*\*62"),
        ([1], np.array([2**63], dtype=np.uint64), "distances must be >= 0"),
    ],
)
def test_bad_queries_are_refused_and_cost_nothing(
    make: Any, values: Any, distances: Any, message: str
) -> None:
    mechanism = make()
    with pytest.raises(ParameterError, match=message) as caught:
        mechanism.release(values, distances)
    assert "5" not in str(caught.value).replace("2.5", "")
    assert getattr(mechanism, "n_abstained", 0) == 0


@each_mechanism
def test_seeded_mechanisms_repeat_and_are_marked_as_worthless(make: Any) -> None:
    event = make().event
    source = SeededSource(3)
    if isinstance(make(), StableRelease):
        mechanism: Any = replace(make(), source=source)
    else:
        mechanism = SparseVector.from_event(event, source=source)
        assert "NOT PRIVATE" in repr(mechanism)
    assert mechanism.event.seeded
    assert accounting.epsilon([mechanism.event], delta=1e-5) == math.inf
    assert not event.seeded


# Calibration ----------------------------------------------------------------------

BUDGETS = [(1.0, 1e-5), (0.1, 1e-9), (8.0, 1e-6), (0.5, 0.05)]


@pytest.mark.parametrize(("epsilon", "delta"), BUDGETS)
def test_stable_release_for_budget_is_certified_and_least(
    epsilon: float, delta: float
) -> None:
    mechanism = StableRelease.for_budget(epsilon=epsilon, delta=delta)
    assert accounting.delta([mechanism.event], epsilon=epsilon) <= delta
    lower = replace(mechanism.event, threshold=mechanism.threshold - 1)
    assert accounting.delta([lower], epsilon=epsilon) > delta
    paper = math.log(1 / delta) / epsilon  # Theorem 2.4
    assert mechanism.threshold <= math.ceil(paper)


@pytest.mark.parametrize("restartable", [False, True])
@pytest.mark.parametrize("cutoff", [1, 7, 30, 400])
@pytest.mark.parametrize(("epsilon", "delta"), BUDGETS)
def test_sparse_vector_for_budget_is_certified_and_least(
    epsilon: float, delta: float, cutoff: int, restartable: bool
) -> None:
    mechanism = SparseVector.for_budget(
        epsilon=epsilon, delta=delta, cutoff=cutoff, restartable=restartable
    )
    event = mechanism.event
    assert accounting.delta([event], epsilon=epsilon) <= delta
    assert accounting.epsilon([event], delta=delta) <= epsilon * (1 + 1e-6)
    if event.threshold > 0:
        lower = replace(event, threshold=event.threshold - 1)
        assert accounting.delta([lower], epsilon=epsilon) > delta
    if restartable:
        assert mechanism.threshold_noise_scale == 0


def test_search_passes_over_noise_that_is_too_little() -> None:
    """Started at half the least noise, it finds the same as from the least."""
    from mapl.privacy.calibration import _least_on_grid

    best = SparseVector.for_budget(epsilon=1, delta=1e-5, cutoff=30).event

    def make(scale: Fraction) -> Any:
        return replace(best, noise_scale=scale, threshold=2**60)

    found = _least_on_grid(make, best.noise_scale / 2, 1.0, 1e-5)
    assert found.threshold == best.threshold


@pytest.mark.parametrize(
    ("cutoff", "flips"), [(1, 38), (10, 294), (100, 1016), (1000, 3348)]
)
def test_thresholds_have_not_become_worse(cutoff: int, flips: int) -> None:
    """In votes that may flip. The paper's margins are 2101 at 10 and 7555 at 100."""
    mechanism = SparseVector.for_budget(epsilon=1, delta=1e-5, cutoff=cutoff)
    assert mechanism.threshold <= flips


def test_redrawn_thresholds_are_never_the_best() -> None:
    """Why `for_budget` does not try them, over cutoffs where they come nearest."""
    epsilon, delta = 1.0, 1e-5
    for cutoff in (2, 8, 12, 16, 24, 60):
        best = SparseVector.for_budget(epsilon=epsilon, delta=delta, cutoff=cutoff)
        redrawn = least_redrawn_threshold(epsilon, delta, cutoff)
        assert redrawn > best.threshold


def least_redrawn_threshold(epsilon: float, delta: float, cutoff: int) -> int:
    from mapl.privacy.calibration import least_threshold
    from mapl.privacy.curves import pure_composition_curve

    best = 2**60
    for share in (0.5, 0.8, 0.95):  # of delta, for the pattern

        def enough(loss: float, share: float = share) -> bool:
            curve = pure_composition_curve(loss, cutoff)
            return bool(curve(np.array([epsilon]))[0] <= share * delta)

        low, high = epsilon / cutoff, epsilon
        for _ in range(30):
            middle = (low + high) / 2
            low, high = (middle, high) if enough(middle) else (low, middle)
        for part in np.linspace(0.4, 0.95, 12):  # of a segment's loss, for the query
            event = replace(
                redrawn().event,
                noise_scale=Fraction(2 / (part * low)),
                threshold_noise_scale=Fraction(1 / ((1 - part) * low)),
                cutoff=cutoff,
            )
            best = min(best, least_threshold(event, leak=(1 - share) * delta))
    return best


def test_published_constants_are_those_of_the_paper() -> None:
    """Lambda = sqrt(32 T ln(2/delta))/epsilon = 62.4976, w = 2 lambda ln(2m/delta)."""
    mechanism = SparseVector.published(epsilon=1, delta=1e-5, cutoff=10, n_queries=100)
    assert mechanism.threshold_noise_scale == 63
    assert mechanism.noise_scale == 125
    assert mechanism.threshold == 2102  # 2101.26 rounded up
    assert mechanism.event.redrawn
    assert mechanism.event.sensitivity == 2
    hundred = SparseVector.published(epsilon=1, delta=1e-5, cutoff=100, n_queries=1000)
    assert hundred.threshold == 7556
    assert accounting.epsilon([hundred.event], delta=1e-5) == pytest.approx(
        0.7252, abs=1e-3
    )


def test_published_mechanism_looks_at_the_margin_less_one() -> None:
    """Both mechanisms see the same votes; the distance is half the margin."""
    votes = Votes.from_predictions(np.array([[1]] * 700 + [[0]] * 300), n_classes=2)
    assert votes.margin_distance.tolist() == [399]
    assert votes.distance.tolist() == [199]
    mechanism = SparseVector.published(epsilon=50, delta=0.01, cutoff=1, n_queries=1)
    assert mechanism.threshold < 50
    assert mechanism.answer(votes).labels.tolist() == [1]


def test_the_margin_needs_an_instability_of_1() -> None:
    published = SparseVector.published(epsilon=1, delta=1e-5, cutoff=1, n_queries=1)
    careless = SparseVector.from_event(replace(published.event, instability=0))
    votes = Votes.from_predictions([[1]], n_classes=2)
    with pytest.raises(ParameterError, match="instability must be >= 1 for votes"):
        careless.answer(votes)


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"epsilon": -1.0}, r"epsilon must be a finite number > 0, got -1.0."),
        ({"epsilon": 0}, "epsilon must be a finite number > 0, got 0"),
        ({"epsilon": math.inf}, "epsilon must be a finite number > 0, got inf"),
        ({"epsilon": "1"}, "epsilon must be a finite number > 0, got '1'"),
        ({"epsilon": True}, "epsilon must be a finite number > 0, got True"),
        ({"delta": 0}, "delta must be > 0 and < 1, got 0"),
        ({"delta": 1.5}, "delta must be > 0 and < 1, got 1.5"),
        ({"cutoff": 2.5}, r"cutoff must be an integer >= 1, got 2.5."),
        ({"cutoff": 0}, "cutoff must be an integer >= 1, got 0"),
        ({"n_queries": 0}, "n_queries must be an integer >= 1, got 0"),
    ],
)
def test_bad_budgets_are_refused(kwargs: dict[str, Any], message: str) -> None:
    good = {"epsilon": 1.0, "delta": 1e-5, "cutoff": 5, "n_queries": 100}
    with pytest.raises(ParameterError, match=message):
        SparseVector.published(**{**good, **kwargs})
    if "n_queries" not in kwargs:
        del good["n_queries"]
        with pytest.raises(ParameterError, match=message):
            SparseVector.for_budget(**{**good, **kwargs})


# The stream -----------------------------------------------------------------------


@each_sparse
def test_sparse_vector_halts_after_exactly_cutoff_abstentions(make: Any) -> None:
    mechanism = make()
    answer = mechanism.release([1] * 8, [SURE, SHAKY, SURE, SHAKY, SHAKY, SURE, 9, 9])
    assert answer.answered.tolist() == [True, False, True] + [False] * 5
    assert answer.n_asked == 5
    assert mechanism.halted
    assert mechanism.n_abstained == mechanism.cutoff == 3
    later = mechanism.release([1, 1], [SURE, SURE])
    assert later.n_asked == 0
    assert later.labels.tolist() == [ABSTAIN, ABSTAIN]


@each_sparse
def test_batches_of_any_size_are_answered_as_one_by_one(make: Any) -> None:
    """The same noise, dealt out in the same order: the same answers."""
    rng = np.random.default_rng(0)
    distances = rng.choice(
        [0, 190, 210, 290, 310, 500], size=5000, p=[0.001] + [0.1998] * 5
    )
    noise = rng.laplace(0, 5, size=5000).astype(int)
    event = replace(make().event, cutoff=40)

    def run(sizes: list[int]) -> tuple[list[int], int, bool]:
        mechanism = SparseVector.from_event(event)
        thresholds = iter(np.random.default_rng(1).integers(-9, 10, size=99))
        position = 0

        def deal(scale: Any, size: int, *, source: Any) -> Any:
            if scale == event.threshold_noise_scale:
                return np.array([next(thresholds)])
            return noise[position : position + size]

        labels: list[int] = []
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("mapl.privacy.sparse_vector.discrete_laplace", deal)
            for size in sizes:
                batch = distances[position : position + size]
                labels += mechanism.release(
                    np.ones(batch.size, int), batch
                ).labels.tolist()
                position += size
        return labels, mechanism.n_abstained, mechanism.halted

    whole = run([5000])
    assert whole == run([1] * 5000) == run([3, 1000, 0, 1, 3996])
    assert whole[2]


@each_sparse
def test_threads_never_abstain_more_than_cutoff(make: Any) -> None:
    mechanism = SparseVector.from_event(replace(make().event, cutoff=50))
    withheld: list[int] = []

    def ask() -> None:
        for _ in range(20):
            answer = mechanism.release([1] * 3, [SHAKY] * 3)
            withheld.append(int((~answer.answered[: answer.n_asked]).sum()))

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(withheld) == mechanism.n_abstained == 50


def test_threshold_noise_is_drawn_once_or_after_each_abstention(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    drawn: list[Fraction] = []

    def spy(scale: Fraction, size: int, *, source: Any) -> Any:
        drawn.append(scale)
        return np.zeros(size, dtype=np.int64)

    monkeypatch.setattr("mapl.privacy.sparse_vector.discrete_laplace", spy)
    expected = {without_noise: 0, once: 1, redrawn: 3}
    for make, n in expected.items():
        drawn.clear()
        make().release([1] * 5, [SURE, SHAKY, SHAKY, SURE, SHAKY])
        assert drawn.count(Fraction(4)) == n


# State ----------------------------------------------------------------------------


def test_restart_is_free_counts_once_or_halts() -> None:
    expected = {without_noise: 1, redrawn: 2, once: 3}
    for make, n_abstained in expected.items():
        mechanism = make()
        # An answer after the abstention draws the next threshold, where there is one.
        mechanism.release([1, 1, 1], [SURE, SHAKY, SURE])
        resumed = SparseVector.from_event(mechanism.event)
        resumed.resume(mechanism.state())
        assert resumed.n_abstained == n_abstained
        assert resumed.event == mechanism.event


@each_sparse
def test_restart_before_the_first_query_is_free(make: Any) -> None:
    resumed = make()
    resumed.resume(make().state())
    assert resumed.n_abstained == 0
    assert not resumed.halted


def test_resumed_mechanism_never_passes_its_cutoff() -> None:
    mechanism = redrawn()
    mechanism.release([1] * 3, [SHAKY] * 3)
    resumed = SparseVector.from_event(mechanism.event)
    resumed.resume(mechanism.state())
    assert resumed.halted
    assert resumed.n_abstained == 3


@each_sparse
def test_hidden_threshold_is_in_no_repr_and_no_state(make: Any) -> None:
    mechanism = make()
    mechanism.release([1], [SURE])
    mechanism._threshold_noise = 123456
    assert "123456" not in repr(mechanism)
    assert "123456" not in repr(mechanism.state())


# What the caller promises ---------------------------------------------------------


def test_check_neighbours_accepts_what_votes_give() -> None:
    rng = np.random.default_rng(0)
    one = rng.integers(-1, 3, size=(9, 200))
    two = one.copy()
    two[4] = rng.integers(-1, 3, size=200)
    first, second = (Votes.from_predictions(v, n_classes=3) for v in (one, two))
    check_neighbours((first.winner, first.distance), (second.winner, second.distance))


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        (([1], [2]), ([1], [4]), "move by at most 1, query 0 moves by 2"),
        (([1, 1], [0, 1]), ([1, 2], [0, 1]), "0 for both where values differ, query 1"),
        (([1], [0]), ([1, 1], [0, 0]), "must hold the same queries"),
        (([[1, 2], [3, 4]], [1, 1]), ([[1, 2], [3, 5]], [1, 1]), "query 1 is not"),
    ],
)
def test_check_neighbours_says_what_is_wrong(
    first: Any, second: Any, message: str
) -> None:
    with pytest.raises(ParameterError, match=message):
        check_neighbours(first, second)


# The package ----------------------------------------------------------------------


def test_every_public_name_can_be_imported() -> None:
    for name in mapl.__all__:
        assert getattr(mapl, name) is not None
    assert set(mapl.__all__) < set(dir(mapl))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = mapl.nothing
