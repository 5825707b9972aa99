"""Sums of bounded integer vectors, and the curve that they share."""

import itertools
import math
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mapl import accounting
from mapl.errors import BudgetExceededError, ParameterError
from mapl.privacy import curves, moments
from mapl.privacy.curves import smoothed_gaussian_curve
from mapl.privacy.events import GaussianEvent, MomentsEvent, StableReleaseEvent
from mapl.privacy.linear_map import LENGTH_UNIT, LinearMap
from mapl.privacy.moments import (
    WEIGHT,
    Block,
    Moments,
    bounded_label_sum,
    bounded_sum,
)

EPSILONS = np.array([0.0, 0.05, 0.1, 0.3, 0.7, 1.0, 2.0, 4.0])

# The smoothing lemma ----------------------------------------------------------------


@lru_cache
def lattice(sigma: float) -> tuple[Any, Any]:
    reach = math.ceil(13 * sigma) + 20
    x = np.arange(-reach, reach + 1)
    mass = np.exp(-(x**2) / (2 * sigma**2))
    return x, mass / mass.sum()


def divergence(shifts: tuple[tuple[int, float], ...], epsilon: float) -> float:
    """Exact hockey-stick divergence of N_Z(0) and N_Z(d), one pair a coordinate.

    The loss is a sum of linear functions of the coordinates; all outputs are listed.
    """
    losses, masses = np.zeros(1), np.ones(1)
    for d, sigma in shifts:
        x, mass = lattice(sigma)
        loss = (d * d - 2 * d * x) / (2 * sigma**2)
        losses = (losses[:, None] + loss).reshape(-1)
        masses = (masses[:, None] * mass).reshape(-1)
        kept = masses > 1e-30
        losses, masses = losses[kept], masses[kept]
    return float((masses * np.maximum(0.0, -np.expm1(epsilon - losses))).sum())


def squared_shift(shifts: Any, smoothing: float = 2.0) -> float:
    return float(sum(d * d / (sigma**2 - smoothing**2) for d, sigma in shifts))


SHIFTS = [
    *(((d, sigma),) for d in (1, 2, 3, 6) for sigma in (2.04, 2.3, 3.0, 5.0)),
    *(((a, 2.5), (b, 3.0)) for a in (1, 2, 4) for b in (1, 3)),
    ((1, 2.04), (1, 2.04)),
    ((1, 2.1), (2, 2.5), (1, 4.0)),
]


@pytest.mark.parametrize("shifts", SHIFTS, ids=str)
def test_no_shift_on_the_lattice_exceeds_the_curve(shifts: Any) -> None:
    curve = smoothed_gaussian_curve(squared_shift(shifts), len(shifts))(EPSILONS)
    for epsilon, bound in zip(EPSILONS, curve, strict=True):
        assert divergence(shifts, float(epsilon)) <= bound


def test_the_check_catches_a_curve_without_smoothing() -> None:
    """T = 0: the lattice then has more in its steps than the Gaussian curve."""
    above = 0.0
    for shifts in SHIFTS:
        curve = smoothed_gaussian_curve(squared_shift(shifts, 0.0), len(shifts))
        exact = [divergence(shifts, float(e)) for e in EPSILONS]
        above = max(above, float((exact / curve(EPSILONS)).max()))
    assert above > 1.01


def worst_adaptive(left: float, rounds: int, epsilon: float) -> float:
    """Value iteration: the adversary chooses each shift with sight of what came."""
    best = max(0.0, -math.expm1(epsilon))
    if rounds == 0:
        return best
    for d, sigma in ((1, 2.3), (1, 3.0), (2, 3.0), (3, 4.0)):
        price = d * d / (sigma**2 - 4)
        if price > left + 1e-12:
            continue
        x, mass = lattice(sigma)
        kept = mass > 1e-9
        losses = (d * d - 2 * d * x[kept]) / (2 * sigma**2)
        values = [
            worst_adaptive(left - price, rounds - 1, float(epsilon - loss))
            for loss in losses
        ]
        best = max(best, float((mass[kept] * values).sum()))
    return best


@pytest.mark.parametrize("epsilon", [0.3, 1.0, 2.5])
def test_no_adaptive_choice_exceeds_the_curve(epsilon: float) -> None:
    budget = 1.2
    found = worst_adaptive(budget, 2, epsilon)
    bound = float(smoothed_gaussian_curve(budget, 2)(np.array([epsilon]))[0])
    assert 0.05 * bound < found <= bound


def test_many_coordinates_cost_next_to_nothing() -> None:
    few, many = (smoothed_gaussian_curve(0.5, n)(EPSILONS) for n in (1, 10**9))
    np.testing.assert_allclose(many, few, atol=1e-14)
    assert (many >= few).all()
    assert 2.1 * math.exp(-2 * math.pi**2 * curves.SMOOTHING**2) < curves._ETA


# Composition ------------------------------------------------------------------------

EVENT = MomentsEvent(squared_shift=Fraction(1, 10), coordinates=1000)


def test_renyi_divergence_of_moments_is_that_of_their_shift() -> None:
    assert accounting.renyi([EVENT], order=3) == pytest.approx(0.15)


def test_moments_beside_other_events_are_composed() -> None:
    stable = StableReleaseEvent(noise_scale=Fraction(2), threshold=40)
    both = accounting.epsilon([EVENT, stable], delta=1e-5)
    assert both > accounting.epsilon([EVENT], delta=1e-5)


def test_squared_shifts_add_up() -> None:
    twice = MomentsEvent(squared_shift=Fraction(1, 5), coordinates=2000)
    together = accounting.epsilon([EVENT, EVENT], delta=1e-5)
    assert together == pytest.approx(accounting.epsilon([twice], delta=1e-5), rel=1e-5)
    assert together < 1.5 * accounting.epsilon([EVENT], delta=1e-5)


def test_moments_and_votes_share_one_curve() -> None:
    votes = GaussianEvent(sigma=Fraction(100), steps=1000)
    both = accounting.epsilon([EVENT, votes], delta=1e-5)
    shift = Fraction(1, 10) + Fraction(1000, 100**2 - 4)
    one = MomentsEvent(squared_shift=shift, coordinates=2000)
    assert both <= accounting.epsilon([one], delta=1e-5) * (1 + 1e-6)
    small = GaussianEvent(sigma=Fraction(2), steps=1)  # too little noise to smooth
    apart = accounting.epsilon([EVENT, small], delta=1e-5)
    assert apart < accounting.epsilon([EVENT], delta=5e-6) + accounting.epsilon(
        [small], delta=5e-6
    )
    assert accounting.epsilon([small], delta=1e-5) < apart


# Contributions ----------------------------------------------------------------------

MAP = LinearMap([np.array([[3.0, -1.0], [2.0, 5.0]]), np.array([[7.0]])], [4, 2])


def image_of(cells: Any) -> list[int]:
    """Return M'u in Python's integers, each block times its weight."""
    a, b, c = (int(v) for v in cells)
    return [4 * (3 * a + 2 * b), 4 * (5 * b - a), 2 * 7 * c]


def squared(vector: Any) -> int:
    return sum(int(v) ** 2 for v in vector)


def naive(cells: Any, residuals: Any, squared_length: int) -> Any:
    """One record's contribution before the map, in Python's integers."""
    length = -(-squared(image_of(cells)) // LENGTH_UNIT)
    r = [int(v) for v in residuals]
    if length * squared(r) > squared_length:
        root = math.sqrt(squared_length / (length * squared(r)))
        factor = math.floor(root * (2**20 - 1))
        r = [math.trunc(v * factor / 2**20) for v in r]
        if length * squared(r) > squared_length:
            r = [0] * len(r)
    return np.outer([int(v) for v in cells], r).astype(np.int64)


vectors = st.lists(
    st.tuples(
        st.lists(st.integers(-2000, 2000), min_size=3, max_size=3),
        st.lists(st.integers(-9000, 9000), min_size=2, max_size=2),
    ),
    min_size=1,
    max_size=9,
)


def block_of(cells: Any, residuals: Any, sizes: Any = None) -> Block:
    cells = np.asarray(cells, dtype=np.float64)
    lengths = MAP.lengths(MAP.block_lengths(cells))
    residuals = np.asarray(residuals, dtype=np.float64)
    return Block(cells, lengths, residuals, None if sizes is None else np.array(sizes))


def block(rows: Any, sizes: Any = None) -> Block:
    return block_of([cells for cells, _ in rows], [r for _, r in rows], sizes)


def pushed_length(sums: Any) -> int:
    """Return the exact squared length of M' times sums."""
    columns = [image_of(column) for column in np.asarray(sums).T.tolist()]
    return sum(map(squared, columns))


@given(vectors, st.integers(1, 2**44), st.randoms())
@settings(max_examples=200, deadline=None)
def test_a_sum_is_that_of_its_records_and_none_is_too_long(
    rows: Any, squared_length: int, rng: Any
) -> None:
    alone = [bounded_sum(block([row]), MAP, squared_length) for row in rows]
    for row, found in zip(rows, alone, strict=True):
        assert pushed_length(found) <= squared_length * LENGTH_UNIT
        np.testing.assert_array_equal(found, naive(*row, squared_length))
        assert squared(MAP.push(found).reshape(-1)) == pushed_length(found)
    shuffled = list(rows)
    rng.shuffle(shuffled)
    together = bounded_sum(block(shuffled), MAP, squared_length)
    np.testing.assert_array_equal(together, sum(alone))


@given(vectors, st.integers(1, 2**44), st.integers(1, 4))
@settings(max_examples=200, deadline=None)
def test_a_persons_sum_is_not_too_long_either(
    rows: Any, squared_length: int, size: int
) -> None:
    sizes = [size] * (len(rows) // size)
    if len(rows) % size:
        sizes.append(len(rows) % size)
    whole = bounded_sum(block(rows, sizes), MAP, squared_length, grouped=True)
    start, total = 0, 0
    for n in sizes:
        own = block(rows[start : start + n], [n])
        found = bounded_sum(own, MAP, squared_length, grouped=True)
        assert pushed_length(found) <= WEIGHT**2 * squared_length * LENGTH_UNIT
        total, start = total + found, start + n
    np.testing.assert_array_equal(whole, total)


@given(vectors, st.integers(1, 2**44), st.integers(1, 4))
@settings(max_examples=100, deadline=None)
def test_lengths_of_a_persons_labels_add_up_to_the_bound(
    rows: Any, squared_length: int, size: int
) -> None:
    """However the labels of one person change, the sum moves by at most sqrt(2 S)."""
    rows = rows[:size]
    codes = np.eye(2) * 2048
    changes = [codes[[i % 2 for i in range(len(rows))]], codes[[0] * len(rows)]]
    found = [
        bounded_label_sum(
            block_of([c for c, _ in rows], change, [len(rows)]), squared_length
        )
        for change in changes
    ]
    assert pushed_length(found[0] - found[1]) <= 2 * squared_length * LENGTH_UNIT
    one_column = [
        bounded_label_sum(
            block_of([c for c, _ in rows], change[:, 1:], [len(rows)]), squared_length
        )
        for change in changes
    ]
    moved = pushed_length(one_column[0] - one_column[1])
    assert moved <= squared_length * LENGTH_UNIT


def test_the_check_catches_persons_that_are_shortened_record_by_record() -> None:
    """Rounding each record towards zero loses what cancels: the sum gets longer."""
    cells = np.array([[1000.0, 999.0, 0.0], [1000.0, 999.0, 0.0]])
    r = np.array([[102.0, 0.0], [-101.0, 0.0]])
    limit = pushed_length(cells.T @ r) * 0.95**2
    assert pushed_length(cells.T @ np.trunc(r * 0.95)) > limit
    allowed = int(limit) // LENGTH_UNIT
    own = bounded_sum(block_of(cells, r, [2]), MAP, allowed, grouped=True)
    assert pushed_length(own) <= WEIGHT**2 * int(limit)


@pytest.mark.parametrize(
    "bug",
    [
        lambda s, p: np.ceil(np.sqrt(s / p) * 2**20 * 1.01),  # rounding up
        lambda s, p: np.sqrt(np.float32(s) / p.astype(np.float32)) * 2**20 * 1.0001,
    ],
)
def test_the_check_catches_a_bound_that_is_not_checked_in_integers(bug: Any) -> None:
    rng = np.random.default_rng(0)
    above = 0
    for _ in range(200):
        phi, r = rng.integers(-4000, 4000, 3), rng.integers(-9000, 9000, 2)
        product = np.array([int(phi @ phi) * int(r @ r)])
        limit = int(product[0] * 0.7)
        factor = bug(limit, product)
        short = np.rint(r * factor / 2**20).astype(np.int64)
        above += int(phi @ phi) * int(short @ short) > limit
    assert above > 0


@pytest.mark.parametrize("bad", [np.nan, np.inf, 0.5, 2.0**17, 1e300])
def test_vectors_that_are_not_integers_or_too_long_count_nothing(bad: float) -> None:
    expected = bounded_sum(block_of([[3, 4, 0]], [[1, 0]]), MAP, 10**6)
    odd = block_of(
        [[3.0, 4.0, 0.0], [bad, 0.0, 0.0], [1.0, 0.0, 0.0]],
        [[1.0, 0.0], [1.0, 1.0], [bad, 0.0]],
    )
    np.testing.assert_array_equal(bounded_sum(odd, MAP, 10**6), expected)
    labels = block_of([[3.0, 4.0, 0.0], [bad, 0.0, 0.0]], [[1.0, 0.0], [1.0, 0.0]])
    np.testing.assert_array_equal(bounded_label_sum(labels, 10**6), expected)


def test_images_too_long_for_64_bits_count_nothing() -> None:
    """Their squares would overflow, and look short."""
    huge = LinearMap([np.eye(1), np.array([[2.0**20]])], [4, 4])
    cells = np.array([[1.0, 2.0**12], [1.0, 2.0]])
    lengths = huge.lengths(huge.block_lengths(cells))
    assert lengths.tolist() == [-1, -1]
    many = LinearMap([np.array([[2.0**10]])] * 70, [4] * 70)
    cells = np.full((1, 70), 2.0**10)
    assert many.lengths(many.block_lengths(cells)).tolist() == [-1]
    residuals = np.full((1, 1024), 2048.0)
    block = Block(cells, many.lengths(many.block_lengths(cells)), residuals)
    assert not bounded_sum(block, many, 2**20).any()


def test_a_map_of_anything_but_small_integers_is_refused() -> None:
    for wrong in (np.array([[0.5]]), np.array([[2.0**31]]), np.array([[np.nan]])):
        with pytest.raises(ParameterError, match="integers below"):
            LinearMap([wrong])
    with pytest.raises(ParameterError, match="from 0 to 4"):
        LinearMap([np.eye(1)], [5])


def test_blocks_of_weight_zero_are_absent() -> None:
    fewer = MAP.reweighted([4, 0])
    cells = np.array([[3.0, -2.0]])
    assert fewer.width == 2
    np.testing.assert_array_equal(fewer.image(cells), [image_of([3, -2, 0])[:2]])
    floats = MAP.push_floats(np.array([[3.0], [-2.0], [1.0]]))
    np.testing.assert_array_equal(floats[:, 0], image_of([3, -2, 1]))


def test_a_person_counts_with_at_most_so_many_records() -> None:
    n = moments.MOST_RECORDS_EACH
    rows = [([1, 0, 0], [1, 0])] * (n + 50)
    found = bounded_sum(block(rows, [n + 50]), MAP, 10**9, grouped=True)
    assert found[0, 0] == WEIGHT * n
    with pytest.raises(ParameterError, match="unit_sizes must say"):
        bounded_sum(block(rows), MAP, 10**9, grouped=True)


def test_blocks_of_any_size_give_the_same_integers() -> None:
    rng = np.random.default_rng(0)
    cells = rng.integers(-500, 500, (20_000, 3)).astype(float)
    residuals = rng.integers(-2000, 2000, (20_000, 5)).astype(float)
    whole = bounded_sum(block_of(cells, residuals), MAP, 10**12)
    for size in (7, 1000, 19_999):
        parts = [
            bounded_sum(
                block_of(cells[a : a + size], residuals[a : a + size]), MAP, 10**12
            )
            for a in range(0, 20_000, size)
        ]
        np.testing.assert_array_equal(sum(parts), whole)


def test_the_check_catches_floating_point_products() -> None:
    """Not integers: the order of records changes the last bits of a sum."""
    rng = np.random.default_rng(0)
    features, residuals = rng.normal(size=(3000, 40)), rng.normal(size=(3000, 3))
    whole = features.T @ residuals
    orders = [rng.permutation(3000) for _ in range(10)]
    assert any((features[o].T @ residuals[o] != whole).any() for o in orders)
    whole = np.rint(features.T * 2**10) @ np.rint(residuals * 2**11)
    for order in orders:
        own = np.rint(features[order].T * 2**10) @ np.rint(residuals[order] * 2**11)
        np.testing.assert_array_equal(own, whole)


# The mechanism ----------------------------------------------------------------------


def mechanism(**kwargs: Any) -> Moments:
    defaults: dict[str, Any] = {"squared_shift": Fraction(1, 2), "coordinates": 100}
    return Moments(**defaults | kwargs)


ONES = [([1, 1, 0], [1, 0])] * 50


def ask(running: Moments, part: Fraction, blocks: Any = None, **kwargs: Any) -> Any:
    given = {"squared_length": 10, "columns": 2} | kwargs
    blocks = [block(ONES)] if blocks is None else blocks
    return running.answer(blocks, MAP, part=part, **given)


def test_the_noise_covers_what_a_unit_moves() -> None:
    for length, part in itertools.product(
        (1, 10, 12345), (Fraction(1), Fraction(1, 7))
    ):
        sigma = mechanism().sigma(length, part)
        assert length / (sigma**2 - 4) <= Fraction(1, 2) * part
        assert sigma**2 - 4 >= Fraction(4, 25)
    generous = Moments(squared_shift=Fraction(10**6), coordinates=1)
    assert generous.sigma(1, Fraction(1)) ** 2 - 4 >= Fraction(4, 25)


def test_parts_and_coordinates_are_spent_once() -> None:
    running = mechanism(coordinates=12)
    for _ in range(2):
        ask(running, Fraction(1, 2))
    with pytest.raises(BudgetExceededError, match=r"needs 0\.1 of the budget"):
        ask(running, Fraction(1, 10))
    few = mechanism(coordinates=5)
    with pytest.raises(BudgetExceededError, match="6 coordinates; 1 and 5 are left"):
        ask(few, Fraction(1, 2))
    fresh = mechanism()
    fresh.resume(running.state())
    with pytest.raises(BudgetExceededError):
        ask(fresh, Fraction(1, 10))
    with pytest.raises(ParameterError, match=r"at most 2\*\*48"):
        ask(mechanism(), Fraction(1), squared_length=2**49)
    other = mechanism()
    other.take(Fraction(3, 4), 10)
    with pytest.raises(BudgetExceededError):
        ask(other, Fraction(1, 2))


def test_noise_that_cannot_be_drawn_is_refused_before_anything_is_taken() -> None:
    running = Moments(squared_shift=Fraction(1, 10**18), coordinates=9)
    with pytest.raises(ParameterError, match="sigma must be"):
        ask(running, Fraction(1, 2), squared_length=2**48)
    assert running.state()["left"] == "1"


def test_every_sum_has_noise_of_its_own() -> None:
    running = mechanism()
    first, second = (ask(running, Fraction(1, 4)) for _ in range(2))
    assert (first.total != second.total).all()
    assert ask(running, Fraction(1, 4), []).total.shape == (3, 2)


def test_label_codes_of_several_classes_have_twice_the_noise_squared() -> None:
    one = ask(mechanism(), Fraction(1), labels_only=True, columns=1, blocks=[])
    two = ask(mechanism(), Fraction(1), labels_only=True, columns=2, blocks=[])
    assert two.sigma**2 - 4 == pytest.approx(2 * (one.sigma**2 - 4), rel=1e-3)
    codes = block_of([[1, 1, 0]] * 50, [[1, 0]] * 50)
    found = ask(mechanism(), Fraction(1), [codes], labels_only=True)
    assert found.total.shape == (3, 2)


def law_of(records: Any, removed: int | None, bug: Any, monkeypatch: Any) -> Any:
    """Every output of the real code for one coordinate, with its probability."""
    tiny, shift, limit = LinearMap([np.array([[256.0]])]), Fraction(3, 5), 9
    kept = [row for i, row in enumerate(records) if i != removed]
    cells = np.array([[c] for c, _ in kept], dtype=float).reshape(-1, 1)
    residuals = np.array([[r] for _, r in kept], dtype=float).reshape(-1, 1)
    given = Block(cells, tiny.lengths(tiny.block_lengths(cells)), residuals)
    sigma = float(
        mechanism(squared_shift=shift).sigma(limit * LENGTH_UNIT, Fraction(1))
    )
    reach, found = math.ceil(9 * sigma), {}
    for x in range(-reach, reach + 1, 16):
        monkeypatch.setattr(
            moments, "discrete_gaussian", lambda s, n, source, x=x: np.full(n, x)
        )
        noisy = mechanism(squared_shift=shift).answer(
            [given], tiny, squared_length=limit, part=Fraction(1), columns=1
        )
        weight = math.exp(-(x**2) / (2 * (sigma * bug) ** 2))
        found[float(noisy.total[0, 0])] = weight
    total = sum(found.values())
    return {value: weight / total for value, weight in found.items()}


def worst_excess(bug: float, monkeypatch: Any) -> float:
    """Return by how much neighbours exceed the curve, over all removed records."""
    rows = [(2, 1), (1, 2), (3, 9)]
    event = mechanism(squared_shift=Fraction(3, 5)).event
    worst = 0.0
    for removed in range(3):
        first, second = (law_of(rows, r, bug, monkeypatch) for r in (None, removed))
        for epsilon in (0.1, 0.5, 1.0, 2.0):
            bound = accounting.delta([event], epsilon=epsilon)
            for p, q in ((first, second), (second, first)):
                above = sum(
                    max(0.0, mass - math.exp(epsilon) * q.get(value, 0.0))
                    for value, mass in p.items()
                )
                worst = max(worst, above / bound)
    return worst


def test_what_is_published_of_neighbours_stays_within_the_curve(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a lattice of every 16th output: all contributions are multiples of 256."""
    assert worst_excess(1.0, monkeypatch) <= 1.0 + 1e-6


def test_the_check_catches_half_the_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    assert worst_excess(0.5, monkeypatch) > 2.0


def test_the_check_catches_noise_that_is_used_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With one draw for two sums, their difference would have no noise at all."""
    drawn = moments.discrete_gaussian(mechanism().sigma(10**6, Fraction(1)), (3, 2))
    monkeypatch.setattr(moments, "discrete_gaussian", lambda s, n, source: drawn)
    with pytest.raises(AssertionError):
        test_every_sum_has_noise_of_its_own()
