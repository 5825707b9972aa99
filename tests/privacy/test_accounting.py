import math
import re
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mapl import accounting
from mapl.errors import ParameterError, UnsupportedEventError
from mapl.privacy import gaussian_prices
from mapl.privacy.calibration import least_scale
from mapl.privacy.curves import (
    charged_abstention_curve,
    charged_abstention_renyi,
    gaussian_curve,
    gaussian_shift_curve,
    pure_composition_curve,
)
from mapl.privacy.events import (
    ConfidentMaxEvent,
    Event,
    GaussianEvent,
    SparseVectorEvent,
    StableReleaseEvent,
)
from mapl.privacy.rounding import fraction_up as round_up
from mapl.privacy.sparse_vector import SparseVector
from mapl.privacy.tails import laplace_difference_tail
from second_accountant import (
    abstain_probability,
    bisect,
    charged_delta,
    charged_renyi_growth,
    gaussian_delta,
    pure_delta,
)

STABLE = StableReleaseEvent(noise_scale=Fraction(5), threshold=60)
GAUSSIAN = GaussianEvent(sigma=Fraction(40), steps=100)
CHARGED = SparseVectorEvent(
    noise_scale=Fraction(60),
    threshold=1100,
    threshold_noise_scale=Fraction(0),
    redrawn=False,
    cutoff=50,
)
ONCE = replace(CHARGED, threshold_noise_scale=Fraction(40), cutoff=5)
REDRAWN = replace(ONCE, redrawn=True)
CONFIDENT = ConfidentMaxEvent(
    check_sigma=Fraction(150), checks=60, sigma=Fraction(40), steps=50
)
EVENTS = [STABLE, GAUSSIAN, CHARGED, ONCE, REDRAWN, CONFIDENT]
each_event = pytest.mark.parametrize(
    "event",
    EVENTS,
    ids=["stable", "gaussian", "charged", "once", "redrawn", "confident"],
)


def with_noise(event: Event, factor: int) -> Event:
    if isinstance(event, GaussianEvent):
        return replace(event, sigma=event.sigma * factor)
    if isinstance(event, ConfidentMaxEvent):
        check_sigma = event.check_sigma * factor
        return replace(event, sigma=event.sigma * factor, check_sigma=check_sigma)
    assert isinstance(event, StableReleaseEvent | SparseVectorEvent)
    louder = replace(
        event,
        noise_scale=event.noise_scale * factor,
        threshold=event.threshold * factor * 2,
    )
    if isinstance(louder, SparseVectorEvent):
        scale = louder.threshold_noise_scale * factor
        return replace(louder, threshold_noise_scale=scale)
    return louder


# Laws that hold for every event ---------------------------------------------------


@each_event
def test_composing_n_times_equals_count_n(event: Event) -> None:
    together = accounting.epsilon([replace(event, count=3)], delta=1e-4)
    assert together == accounting.epsilon([event] * 3, delta=1e-4)
    mixed = accounting.epsilon([event, replace(event, count=2)], delta=1e-4)
    assert together == mixed


@each_event
def test_epsilon_falls_as_noise_grows_and_rises_with_count(event: Event) -> None:
    once = accounting.epsilon([event], delta=1e-4)
    assert accounting.epsilon([with_noise(event, 2)], delta=1e-4) < once
    assert accounting.epsilon([replace(event, count=2)], delta=1e-4) > once


@each_event
def test_delta_and_epsilon_are_inverse(event: Event) -> None:
    for count in (1, 2):
        several = [replace(event, count=count)]
        epsilon = accounting.epsilon(several, delta=1e-4)
        assert accounting.delta(several, epsilon=epsilon) <= 1e-4
        if epsilon > 0:
            assert accounting.delta(several, epsilon=epsilon * 0.999) > 1e-4 * 0.999


@each_event
def test_seeded_noise_protects_nobody(event: Event) -> None:
    events = [event, replace(event, seeded=True)]
    assert accounting.epsilon(events, delta=1e-4) == math.inf
    assert accounting.delta(events, epsilon=100.0) == 1.0
    assert accounting.renyi(events, order=2) == math.inf
    assert accounting.leak(events) == 1.0


@each_event
def test_renyi_bound_converts_to_no_less_than_the_certified_epsilon(
    event: Event,
) -> None:
    """D_r plus ln(1/delta)/(r - 1), the plain conversion, is always weaker."""
    delta = 1e-4
    orders = np.linspace(1.5, 40, 78)
    allowed = delta - accounting.leak([event])
    converted = min(
        accounting.renyi([event], order=float(r)) + math.log(1 / allowed) / (r - 1)
        for r in orders
    )
    assert accounting.epsilon([event], delta=delta) <= converted


def test_nothing_released_costs_nothing() -> None:
    assert accounting.epsilon([], delta=0) == 0
    assert accounting.delta([], epsilon=0) == 0


def test_a_delta_below_the_leak_is_never_certified() -> None:
    leak = accounting.leak([STABLE])
    assert accounting.epsilon([STABLE], delta=leak / 2) == math.inf
    assert accounting.epsilon([STABLE], delta=0) == math.inf


def test_a_leak_below_the_smallest_float_is_not_zero() -> None:
    far = replace(STABLE, threshold=10**6)
    assert accounting.epsilon([far], delta=0) == math.inf
    assert accounting.epsilon([replace(ONCE, threshold=10**6)], delta=0) == math.inf


def test_many_mild_events_never_round_to_less_than_nothing() -> None:
    """Their exact delta is 1.6e-16; Fourier transforms alone gave -3.9e-14."""
    mild = StableReleaseEvent(noise_scale=Fraction(2828), threshold=2**40, count=10**4)
    assert accounting.delta([mild], epsilon=0.2652) >= 1.6e-16
    curve = pure_composition_curve(1 / 2828, 10**4)
    for epsilon in (0.05, 0.1, 0.15):
        exact = curve(np.array([epsilon]))[0]
        assert exact <= accounting.delta([mild], epsilon=epsilon) <= exact * 1.01 + 1e-9


def test_pure_composition_of_many_is_not_rounded_down() -> None:
    """At epsilon 0 and a tiny loss it is n loss/2 times the central binomial term."""
    from mpmath import binomial, mpf

    n, loss = 10**5, 1e-7
    exact = float(binomial(n, n // 2) / mpf(2) ** n) * n * loss / 2
    found = pure_composition_curve(loss, n)(np.array([0.0]))[0]
    assert exact * (1 - 1e-12) <= found <= exact * (1 + 1e-4)


def test_nan_certifies_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(event: Event) -> Any:
        return lambda epsilons: np.full_like(epsilons, math.nan)

    monkeypatch.setattr(accounting, "event_curve", broken)
    assert accounting.delta([STABLE], epsilon=1.0) == 1.0
    assert accounting.delta([STABLE, GAUSSIAN], epsilon=1.0) == 1.0
    assert accounting.epsilon([STABLE, GAUSSIAN], delta=1e-5) == math.inf


@pytest.mark.parametrize("scale", [Fraction(1, 1000), Fraction(1, 20), Fraction(1, 3)])
def test_next_to_no_noise_is_next_to_no_privacy(scale: Fraction) -> None:
    """Alone and composed: nobody is message that this is private."""
    event = replace(CHARGED, noise_scale=scale, cutoff=1, threshold=1)
    assert accounting.epsilon([event], delta=1e-9) > 50
    assert accounting.epsilon([event, event], delta=1e-9) > 50
    assert accounting.delta([event, GAUSSIAN], epsilon=0.5) > 0.1


@pytest.mark.parametrize("kind", [np.uint8, np.uint64, np.int64, np.float32])
def test_numbers_of_every_kind_are_the_same_number(kind: Any) -> None:
    for event in EVENTS:
        plain = accounting.delta([event], epsilon=1.0)
        assert accounting.delta([event], epsilon=kind(1)) == plain
    exact = accounting.epsilon([GAUSSIAN], delta=float(np.float32(1e-5)))
    assert accounting.epsilon([GAUSSIAN], delta=np.float32(1e-5)) == exact


def test_enormous_epsilons_and_scales_are_looked_at() -> None:
    calm = replace(CHARGED, noise_scale=Fraction(10**12), threshold=10**15)
    assert accounting.delta([calm], epsilon=1e300) < 1e-9
    assert accounting.delta([calm], epsilon=1e-3) < 1e-3


def test_weak_losses_have_a_renyi_divergence_above_nothing() -> None:
    """Randomised response with loss x has about order x^2/8 times 4: x^2 order/2."""
    weak = replace(STABLE, noise_scale=Fraction(10**6))
    for order in (1.0001, 1.01, 2.0):
        assert accounting.renyi([weak], order=order) >= order * 1e-12 / 2


def test_events_of_different_kinds_compose() -> None:
    total = accounting.epsilon(EVENTS, delta=1e-4)
    parts = [accounting.epsilon([event], delta=1e-4 / 6) for event in EVENTS]
    assert max(parts) < total < sum(parts)


# Refusals -------------------------------------------------------------------------


class Unknown(Event):
    kind = "unknown/1"


def test_unknown_events_are_refused() -> None:
    with pytest.raises(UnsupportedEventError, match="no privacy curve"):
        accounting.epsilon([Unknown()], delta=1e-5)
    with pytest.raises(UnsupportedEventError, match="no privacy curve"):
        accounting.epsilon([Unknown(), GAUSSIAN], delta=1e-5)
    with pytest.raises(UnsupportedEventError, match="no Renyi bound"):
        accounting.renyi([Unknown()], order=2)
    with pytest.raises(UnsupportedEventError, match="'dict' is unknown"):
        accounting.epsilon([{}], delta=1e-5)  # type: ignore[list-item]
    assert accounting.leak([GAUSSIAN]) == 0


def test_charging_by_abstention_needs_sensitivity_1() -> None:
    with pytest.raises(UnsupportedEventError, match="sensitivity 1"):
        accounting.epsilon([replace(CHARGED, sensitivity=2)], delta=1e-5)


@pytest.mark.parametrize("delta", [-0.1, 1, math.nan])
def test_bad_delta_is_refused(delta: float) -> None:
    with pytest.raises(ParameterError, match="delta must be >= 0 and < 1"):
        accounting.epsilon([GAUSSIAN], delta=delta)


@pytest.mark.parametrize("epsilon", [-1, math.inf, math.nan])
def test_bad_epsilon_is_refused(epsilon: float) -> None:
    with pytest.raises(ParameterError, match="epsilon must be a finite number > 0"):
        accounting.delta([GAUSSIAN], epsilon=epsilon)


@pytest.mark.parametrize("order", [1, 0.5, math.nan])
def test_bad_order_is_refused(order: float) -> None:
    with pytest.raises(ParameterError, match="order must be > 1"):
        accounting.renyi([GAUSSIAN], order=order)


# Against the second accountant: within 1 %, and never below -----------------------


@pytest.mark.parametrize(
    ("sigma", "steps", "delta"),
    [
        (40, 100, 1e-5),
        (3, 1, 1e-6),
        (20, 300, 1e-9),
        (2000, 10_000, 1e-5),
        (1, 5, 1e-3),
        (2, 7, 1e-6),
    ],
)
def test_gaussian_agrees_with_its_lattice(sigma: int, steps: int, delta: float) -> None:
    event = GaussianEvent(sigma=Fraction(sigma), steps=steps)
    ours = accounting.epsilon([event], delta=delta)
    theirs = bisect(lambda e: gaussian_delta(sigma, steps, e) <= delta, 0, 100)
    assert theirs * (1 - 1e-6) <= ours <= theirs * 1.01


def test_gaussian_agrees_with_loss_distributions() -> None:
    from dp_accounting.pld import privacy_loss_distribution

    for sigma, steps in [(5, 3), (40, 100), (300, 2000)]:
        theirs = privacy_loss_distribution.from_gaussian_mechanism(
            sigma, value_discretization_interval=1e-5
        ).self_compose(steps)
        event = GaussianEvent(sigma=Fraction(sigma), steps=steps)
        ours = accounting.epsilon([event], delta=1e-5)
        assert ours == pytest.approx(theirs.get_epsilon_for_delta(1e-5), rel=0.01)


def test_gaussian_without_enough_noise_is_not_certified() -> None:
    event = GaussianEvent(sigma=Fraction(1, 2), steps=20_000)
    assert accounting.delta([event], epsilon=10.0) == 1.0
    assert accounting.epsilon([event], delta=1e-5) == math.inf
    assert accounting.delta([event, STABLE], epsilon=10.0) == 1.0


@pytest.mark.parametrize(("loss", "n"), [(0.3, 1), (0.2, 5), (1.0, 9), (0.05, 12)])
def test_pure_composition_agrees_with_enumeration(loss: float, n: int) -> None:
    curve = pure_composition_curve(loss, n)
    for epsilon in np.linspace(0, n * loss * 1.1, 23):
        exact = pure_delta(loss, n, epsilon)
        assert exact - 1e-15 <= curve(np.array([epsilon]))[0] <= exact + 1e-8


def test_pure_composition_agrees_with_loss_distributions() -> None:
    from dp_accounting.pld import common, privacy_loss_distribution

    loss, n = 0.03, 400
    theirs = privacy_loss_distribution.from_privacy_parameters(
        common.DifferentialPrivacyParameters(loss, 0),
        value_discretization_interval=1e-4,
    ).self_compose(n)
    curve = pure_composition_curve(loss, n)
    ours = bisect(lambda e: curve(np.array([e]))[0] <= 1e-6, 0, 20)
    assert ours == pytest.approx(theirs.get_epsilon_for_delta(1e-6), rel=0.01)


@pytest.mark.parametrize(
    ("scale", "cutoff", "epsilon"),
    [(10, 1, 1.0), (15, 3, 1.03), (22, 10, 1.0), (22.3, 10, 0.77), (3, 4, 2.5)],
)
def test_charged_abstentions_agree_with_value_iteration(
    scale: float, cutoff: int, epsilon: float
) -> None:
    curve = charged_abstention_curve(1 / scale, cutoff)
    claim = curve(np.array([epsilon]))[0]
    reached = charged_delta(scale, cutoff, epsilon, n_queries=300)
    assert reached <= claim + 1e-15  # sound
    assert reached == pytest.approx(claim, rel=1e-6)  # and tight


@given(
    scale=st.floats(0.3, 40),
    cutoff=st.integers(1, 12),
    epsilon=st.floats(-3, 3),
    distance=st.integers(-60, 60),
    step=st.sampled_from([-1, 1]),
)
@settings(max_examples=500, deadline=None)
def test_no_query_gains_on_the_charged_curve(
    scale: float, cutoff: int, epsilon: float, distance: int, step: int
) -> None:
    """The Bellman inequality of the proof, for every distance and not only the worst:

    delta_c(epsilon) >= p delta_{c-1}(epsilon - ln(p/q))
                        + (1 - p) delta_c(epsilon - ln((1 - p)/(1 - q))).
    """

    def value(abstentions: int, at: float) -> float:
        if abstentions == 0:
            return max(0.0, -math.expm1(at))
        curve = charged_abstention_curve(1 / scale, abstentions)
        right = float(curve(np.array([abs(at)]))[0])
        return right if at >= 0 else 1 - math.exp(at) * (1 - right)

    p = abstain_probability(distance, scale)
    q = abstain_probability(distance + step, scale)
    gained = p * value(cutoff - 1, epsilon - math.log(p / q))
    if p < 1 and q < 1:
        gained += (1 - p) * value(cutoff, epsilon - math.log((1 - p) / (1 - q)))
    assert gained <= value(cutoff, epsilon) * (1 + 3e-9) + 1e-13


@pytest.mark.parametrize("scale", [2.0, 12.8, 60.0])
def test_renyi_bound_agrees_with_value_iteration_over_all_distances(
    scale: float,
) -> None:
    limit = scale * math.log(1 + math.exp(1 / scale))
    for order in np.linspace(1.01, 0.97 * limit, 6):
        bound = charged_abstention_renyi(1 / scale, order)
        grown = charged_renyi_growth(scale, order, n_queries=4000)
        assert math.log(grown) / (order - 1) == pytest.approx(bound, rel=1e-6)


def test_renyi_check_catches_an_order_beyond_the_valid_range() -> None:
    """There the formula still gives a number, and value iteration passes any bound."""
    scale = 12.8
    order = scale * math.log(1 + math.exp(1 / scale)) * 1.05
    p = 1 / (1 + math.exp(-1 / scale))
    formula = p**order * (1 - p) ** (1 - order)
    formula /= abs(1 - (1 - p) ** order * p ** (1 - order))
    assert charged_renyi_growth(scale, order, n_queries=4000) > 1e6 * formula
    assert charged_abstention_renyi(1 / scale, order) == math.inf


def test_a_curve_survives_tabulation_for_composition() -> None:
    """The other event has next to no loss and leak: the sum stays, from above."""
    silent = StableReleaseEvent(noise_scale=Fraction(10**6), threshold=10**9)
    for event in (CHARGED, ONCE, REDRAWN, STABLE):
        alone = accounting.epsilon([event], delta=1e-4)
        composed = accounting.epsilon([event, silent], delta=1e-4)
        assert alone <= composed <= alone * 1.01 + 1e-4


@pytest.mark.parametrize(
    ("scale", "threshold_scale"), [(3, 2), (2, 3), (2, 2), (1, 5), (4, 0)]
)
@pytest.mark.parametrize("reach", [-4, 0, 1, 17])
def test_tail_of_a_difference_agrees_with_its_sum(
    scale: int, threshold_scale: int, reach: int
) -> None:
    x = np.arange(-400, 401)
    p, a = (np.exp(-np.abs(x) / max(s, 1e-3)) for s in (scale, threshold_scale))
    joint = np.outer(p / p.sum(), a / a.sum())
    exact = joint[np.subtract.outer(x, x) > reach].sum()
    assert laplace_difference_tail(reach, scale, threshold_scale) == pytest.approx(
        exact, rel=1e-12
    )


def test_planted_bugs_in_the_accounting_are_seen_by_the_second_accountant() -> None:
    """Half the noise, a step too few, a cutoff one too small: each is off by > 1 %."""
    theirs = bisect(lambda e: gaussian_delta(40, 100, e) <= 1e-5, 0, 100)
    half = accounting.epsilon([replace(GAUSSIAN, sigma=Fraction(80))], delta=1e-5)
    short = accounting.epsilon([replace(GAUSSIAN, steps=95)], delta=1e-5)
    assert half < theirs * 0.99
    assert short < theirs * 0.99
    curve = charged_abstention_curve(1 / 22, 9)
    assert charged_delta(22, 10, 1.0, n_queries=300) > 1.1 * curve(np.array([1.0]))[0]


# The inverse ----------------------------------------------------------------------


def test_least_scale_is_certified_and_least() -> None:
    scale = least_scale(
        lambda sigma: GaussianEvent(sigma=sigma, steps=100), epsilon=0.5, delta=1e-6
    )
    event = GaussianEvent(sigma=scale, steps=100)
    assert accounting.delta([event], epsilon=0.5) <= 1e-6
    less = replace(event, sigma=scale * Fraction("0.998"))
    assert accounting.delta([less], epsilon=0.5) > 1e-6


@given(st.fractions(min_value=Fraction(1, 10**6), max_value=10**12))
def test_round_up_is_above_by_little_and_short(value: Fraction) -> None:
    rounded = round_up(value)
    assert value <= rounded <= value * Fraction("1.0005")
    assert rounded.numerator < 2**52 or rounded.denominator == 1


def test_published_constants_are_certified_below_what_the_paper_claims() -> None:
    for cutoff in (1, 10, 100, 1000):
        for epsilon in (0.1, 1.0, 8.0):
            mechanism = SparseVector.published(
                epsilon=epsilon, delta=1e-5, cutoff=cutoff, n_queries=10 * cutoff
            )
            certified = accounting.epsilon([mechanism.event], delta=1e-5)
            assert certified < epsilon


# Prices that add up along histories -------------------------------------------------

PRICED = [
    GaussianEvent(sigma=Fraction(2), steps=1),
    GaussianEvent(sigma=Fraction(40), steps=100),
    GaussianEvent(sigma=Fraction(3), steps=7),
    StableReleaseEvent(noise_scale=Fraction(3), threshold=60),
    SparseVector.for_budget(epsilon=1, delta=1e-5, cutoff=10).event,
]


@pytest.mark.parametrize("event", PRICED, ids=lambda event: event.kind)
def test_gaussian_prices_dominate_everywhere(event: Event) -> None:
    price, leak = gaussian_prices.gaussian_price(event)
    epsilons = np.random.default_rng(0).uniform(0, 12, 3000)
    dominating = gaussian_shift_curve(math.sqrt(price), epsilons)
    exact = np.array([accounting.delta([event], epsilon=e) for e in epsilons])
    assert (exact <= dominating + leak).all()
    cheaper = gaussian_shift_curve(math.sqrt(price / 1.5), epsilons)
    assert (exact > cheaper + leak).any()
    twice, leaks = gaussian_prices.gaussian_price(replace(event, count=2))
    assert (twice, leaks) == pytest.approx((2 * price, 2 * leak))


def test_gaussian_limits_are_met_exactly() -> None:
    for epsilon, delta in ((0.1, 1e-9), (1.0, 1e-5), (8.0, 1e-3)):
        limit = gaussian_prices.gaussian_limit(epsilon=epsilon, delta=delta)
        at = np.array([epsilon])
        assert gaussian_shift_curve(math.sqrt(limit), at)[0] <= delta
        assert gaussian_shift_curve(math.sqrt(limit * 1.0001), at)[0] > delta
        back = gaussian_prices.gaussian_epsilon(limit, delta=delta)
        assert back == pytest.approx(epsilon, rel=1e-6)
    assert gaussian_prices.gaussian_epsilon(0, delta=1e-5) == 0
    seeded = GaussianEvent(sigma=Fraction(2), steps=1, seeded=True)
    assert gaussian_prices.gaussian_price(seeded) == (math.inf, 1.0)
    nothing = GaussianEvent(sigma=Fraction(1, 1000), steps=1000)
    assert gaussian_prices.gaussian_price(nothing) == (math.inf, 1.0)


Pair = tuple["np.ndarray[Any, Any]", "np.ndarray[Any, Any]"]


def lattice_pair(sigma: float, shift: int) -> Pair:
    x = np.arange(-60, 61)
    laws = [np.exp(-((x - a) ** 2) / (2 * sigma**2)) for a in (0, shift)]
    return laws[0] / laws[0].sum(), laws[1] / laws[1].sum()


def worst_pair(epsilon: float, delta: float) -> Pair:
    """The least private (epsilon, delta)-DP mechanism (Kairouz, Oh, Viswanath)."""
    a = (1 - delta) * math.exp(epsilon) / (1 + math.exp(epsilon))
    b = (1 - delta) / (1 + math.exp(epsilon))
    return np.array([delta, a, b, 0.0]), np.array([0.0, b, a, delta])


def best_strategy(
    releases: list[tuple[Pair, tuple[float, ...]]],
    left: tuple[float, ...],
    gamma: float,
    depth: int,
) -> float:
    """The largest sum of (P - gamma Q)_+ that an adversary reaches who chooses each
    release after seeing the last outcome, as long as its price fits.
    """
    best = max(0.0, 1 - gamma)
    if depth == 0:
        return best
    for (p, q), price in releases:
        if any(c > have + 1e-12 for c, have in zip(price, left, strict=True)):
            continue
        rest = tuple(have - c for c, have in zip(price, left, strict=True))
        total = float(p[q == 0].sum())
        for a, b in zip(p[(q > 0) & (p > 0)], q[(q > 0) & (p > 0)], strict=True):
            if a > 1e-4:  # what is left out only lowers the sum
                total += a * best_strategy(releases, rest, gamma * b / a, depth - 1)
        best = max(best, total)
    return best


def test_all_adaptive_strategies_stay_within_the_basic_limit() -> None:
    prices = [(0.3, 0.01), (0.5, 0.0), (0.8, 0.02), (0.2, 0.03)]
    limit = (1.3, 0.05)
    gamma = math.exp(limit[0])
    honest = [(worst_pair(*price), price) for price in prices]
    found = best_strategy(honest, limit, gamma, 4)
    assert found <= limit[1] + 1e-12
    assert found > 0.8 * limit[1]
    cheap = [(worst_pair(*price), (price[0] / 2, price[1])) for price in prices]
    assert best_strategy(cheap, limit, gamma, 4) > limit[1]


def test_all_adaptive_strategies_stay_within_the_gaussian_limit() -> None:
    events = {
        GaussianEvent(sigma=Fraction(3), steps=1): lattice_pair(3, 1),
        GaussianEvent(sigma=Fraction(5), steps=1): lattice_pair(5, 1),
    }
    kwargs = [
        (gaussian_prices.gaussian_price(event)[0], p) for event, p in events.items()
    ]
    budget = kwargs[0][0] + 2 * kwargs[1][0]
    for gamma in (math.exp(0.3), math.exp(1.0)):
        limit = float(gaussian_shift_curve(math.sqrt(budget), np.log([gamma]))[0])
        honest = [(pair, (price,)) for price, pair in kwargs]
        found = best_strategy(honest, (budget,), gamma, 3)
        assert 0.8 * limit < found <= limit
        cheap = [(pair, (price / 2,)) for price, pair in kwargs]
        assert best_strategy(cheap, (budget,), gamma, 3) > limit


@pytest.mark.parametrize("epsilon", [4900.5, 5197.5, 5296.5, 5395.5])
def test_far_tails_of_wide_sums_are_rounded_against_us(epsilon: float) -> None:
    """A hundred scales out, the normal law is larger than that of the lattice."""
    sigma, steps = 31.940625, 9_998_999
    scale = sigma * math.sqrt(steps)

    def log_tail(s: float) -> float:
        """Return ln P(S <= s) up to the normaliser, s far below 0."""
        x = s - np.arange(0, 40 * int(scale), dtype=float)
        terms = -((x / scale) ** 2) / 2
        return float(terms[0] + np.log(np.exp(terms - terms[0]).sum()))

    last = math.ceil(steps / 2 - sigma**2 * epsilon) - 1
    norm = math.log(scale * math.sqrt(2 * math.pi))
    first = math.exp(log_tail(last) - norm)
    exact = first - math.exp(log_tail(last - steps) - norm + epsilon)
    assert exact > 0
    found = float(gaussian_curve(sigma, steps)(np.array([epsilon]))[0])
    assert found >= exact


def test_replacing_a_record_costs_what_the_docs_say() -> None:
    """Not twice the epsilon at the same delta: docs/guides/unit.md has the table."""
    text = (Path(__file__).parents[2] / "docs" / "guides" / "unit.md").read_text()
    rows = re.findall(r"^\| (?:epsilon|delta).*\|$", text, re.M)
    given, at_delta, at_twice = (
        [float(x) for x in row.strip("| ").split("|")[1:]] for row in rows
    )
    for epsilon, same, grown in zip(given, at_delta, at_twice, strict=True):
        shift = gaussian_prices.gaussian_limit(epsilon=epsilon, delta=1e-5)
        needed = gaussian_prices.gaussian_epsilon(4 * shift, delta=1e-5)
        assert same == pytest.approx(needed, abs=0.005, rel=0.01)
        assert 2.1 < needed / epsilon < 2.4
        twice = gaussian_shift_curve(2 * math.sqrt(shift), np.array([2 * epsilon]))[0]
        assert grown == pytest.approx(twice, rel=0.03)
        assert twice <= (1 + math.exp(epsilon)) * 1e-5  # what holds of any mechanism
