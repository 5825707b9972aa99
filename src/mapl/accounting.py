r"""Events to (epsilon, delta): what a set of releases costs, rounded against us.

Each event has two parts. Its *pattern*, which values were withheld and which were
not, has a privacy curve: an upper bound on the hockey-stick divergence
:math:`\sup_S P(S) - e^\epsilon Q(S)` for every epsilon. Its *leak* bounds the
probability of releasing a value that differs between neighbours. Then

    delta(epsilon) = curve of all patterns composed + sum of all leaks

(docs/proofs/SparseVector.md, "Leaks"). One event is judged by its own curve. Several
are composed as privacy loss distributions by Google's dp-accounting; patterns enter
by the pessimistic "connect the dots" of their curves.

All functions of events are upper bounds. Floating-point sums of positive terms are
inflated by more than their rounding error can reach.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from fractions import Fraction
from functools import singledispatch
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from mapl.curves import (
    INFLATE,
    Curve,
    Floats,
    charged_abstention_curve,
    charged_abstention_renyi,
    gaussian_curve,
    gaussian_shift_curve,
    laplace_difference_tail,
    laplace_tail,
    pure_composition_curve,
    pure_renyi,
)
from mapl.errors import (
    ParameterError,
    UnsupportedEventError,
    positive,
    probability,
)
from mapl.events import Event, GaussianEvent, SparseVectorEvent, StableReleaseEvent

if TYPE_CHECKING:
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

_ZERO = np.zeros(1)
_LARGEST = 2.0**20  # epsilon: nobody is protected by so large a one
# Absolute, and for each of the events composed: Fourier transforms were seen to be off
# by less than 1e-15 a count, up to 10^5 of them.
_PLD_SLACK, _PLD_SLACK_EACH = 1e-13, 1e-14
_PRICE_CUT = 1e-13  # what of a curve is paid for as a leak
_PRICE_POINTS = 10_000  # where curves are compared: 0.2 % of a price


# The two directions, and Renyi divergence ----------------------------------------


def delta(events: Iterable[Event], *, epsilon: float) -> float:
    """Return the least delta for which the events together are certified.

    Parameters
    ----------
    events : iterable of Event
        Everything that was released from one data set.
    epsilon : float
        At least 0.

    Notes
    -----
    Guarantee: the adaptive composition of the events is (epsilon, delta)-DP.
    Proof: docs/proofs/accounting.md

    Examples
    --------
    >>> from fractions import Fraction
    >>> from mapl import accounting
    >>> from mapl.events import StableReleaseEvent
    >>> event = StableReleaseEvent(noise_scale=Fraction(1), threshold=11)
    >>> round(accounting.delta([event], epsilon=1.0), 9)
    4.492e-06
    """
    return _delta(events, positive(epsilon=epsilon) if epsilon != 0 else 0.0)


def epsilon(events: Iterable[Event], *, delta: float) -> float:
    """Return the least epsilon for which the events together are certified.

    ``inf`` where none is: for seeded noise, or a delta below the leak.

    Parameters
    ----------
    events : iterable of Event
        Everything that was released from one data set.
    delta : float
        From 0 (pure) to less than 1.

    Notes
    -----
    Guarantee: the adaptive composition of the events is (epsilon, delta)-DP.
    Proof: docs/proofs/accounting.md

    Examples
    --------
    >>> from fractions import Fraction
    >>> from mapl import accounting
    >>> from mapl.events import GaussianEvent
    >>> event = GaussianEvent(sigma=Fraction(40), steps=100)
    >>> round(accounting.epsilon([event], delta=1e-5), 2)
    0.93
    """
    if not 0 <= delta < 1:
        raise ParameterError(f"delta must be >= 0 and < 1, got {delta!r}.")
    delta = float(delta)
    parts = _gather(events)
    if parts is None:
        return math.inf
    curve = _composed_curve(parts)
    allowed = delta - leak(parts.elements())
    if allowed < 0:
        return math.inf
    if curve(0.0) <= allowed:
        return 0.0
    return _least_root(lambda value: curve(value) <= allowed, precision=1e-6)


def leak(events: Iterable[Event]) -> float:
    """Bound the probability that a value which neighbours disagree on is released.

    Proof: docs/proofs/SparseVector.md, "Leaks"
    """
    parts = _gather(events)
    if parts is None:
        return 1.0
    return INFLATE * sum(count * _leak(event) for event, count in parts.items())


def renyi(events: Iterable[Event], *, order: float) -> float:
    r"""Return a bound on the Renyi divergence of the events' patterns.

    To be used together with `leak`. ``inf`` where the order is beyond the range for
    which a mechanism has one.

    Notes
    -----
    Guarantee: :math:`D_{order}(P \| Q)` of the patterns is at most the result.
    Proof: docs/proofs/SparseVector.md, "Renyi divergence"
    """
    if order != order or order <= 1:
        raise ParameterError(f"order must be > 1, got {order!r}.")
    parts = _gather(events)
    if parts is None:
        return math.inf
    divergences = [count * _renyi(event, order) for event, count in parts.items()]
    return INFLATE * sum(divergences)


def least_scale(
    make_event: Callable[[Fraction], Event], *, epsilon: float, delta: float
) -> Fraction:
    """Return the least noise for which an event is (epsilon, delta)-certified.

    Parameters
    ----------
    make_event : callable
        A noise scale to the event it gives; more noise must cost less.
    epsilon, delta : float
        What the event may cost.

    Returns
    -------
    Fraction
        With few binary digits, at most 0.1 % above the least.

    Examples
    --------
    >>> from mapl.accounting import least_scale
    >>> from mapl.events import GaussianEvent
    >>> least_scale(
    ...     lambda sigma: GaussianEvent(sigma=sigma, steps=100), epsilon=1, delta=1e-5
    ... )
    Fraction(597, 16)
    """
    epsilon, delta = positive(epsilon=epsilon), float(delta)

    def certified(scale: float) -> bool:
        return _delta([make_event(round_up(scale))], epsilon) <= delta

    scale = _least_root(certified, precision=2e-4)
    if scale == math.inf:
        raise ParameterError(
            f"No noise can be certified for epsilon {epsilon:g} and delta {delta:g}: "
            "rounding counts against it. Take a larger epsilon, and a delta of 1e-15 "
            "or more."
        )
    return round_up(scale)


def gaussian_price(event: Event) -> tuple[float, float]:
    r"""Return (mu squared, leak): a Gaussian shift that is no more private.

    Prices of releases that were chosen after seeing earlier ones may be added, which
    those in epsilon at a fixed delta may not: with `gaussian_limit` they make a
    privacy filter that is exact for Gaussian noise.

    Notes
    -----
    Guarantee: the event's curve is at most :math:`G_\mu(\epsilon) + leak` at every
    epsilon, where :math:`G_\mu` is that of the laws N(0, 1) and N(mu, 1).
    Proof: docs/proofs/ledger.md, "Gaussian prices"

    Examples
    --------
    >>> from fractions import Fraction
    >>> from mapl.accounting import gaussian_price
    >>> from mapl.events import GaussianEvent
    >>> price, leak = gaussian_price(GaussianEvent(sigma=Fraction(40), steps=100))
    >>> round(price, 3), 100 / 40**2
    (0.063, 0.0625)
    """
    if event.seeded:
        return math.inf, 1.0
    if len(event.parts()) > 1:
        prices = [gaussian_price(part) for part in event.parts()]
        return sum(mu for mu, _ in prices), sum(leak for _, leak in prices)
    curve = _curve(replace(event, count=1))
    reach = _fallen_to(curve, _PRICE_CUT)
    grid = np.linspace(0.0, reach, 1 + _PRICE_POINTS)
    values = curve(grid)
    if not values[-1] <= _PRICE_CUT:
        return math.inf, 1.0

    def dominates(mu: float) -> bool:
        # Both curves fall: the event's at the left of each interval against the
        # Gaussian's at its right.
        right = gaussian_shift_curve(mu, grid[1:])
        return bool((values[:-1] <= right + _PRICE_CUT).all())

    mu = _least_root(dominates, precision=1e-5)
    leaks = _leak(event) + 2 * _PRICE_CUT  # what G's own rounding may reach is less
    return event.count * INFLATE * mu**2, event.count * INFLATE * leaks


def gaussian_limit(*, epsilon: float, delta: float) -> float:
    """Return mu squared such that N(0, 1) and N(mu, 1) are (epsilon, delta)-close."""
    epsilon, delta = positive(epsilon=epsilon), probability(delta=delta)
    at = np.array([epsilon])

    def exceeds(mu: float) -> bool:
        return bool(gaussian_shift_curve(mu, at)[0] + 1e-15 > delta)

    mu = _least_root(exceeds, precision=1e-9)
    return (mu * (1 - 2e-9)) ** 2  # the root is from above: step below it


def gaussian_epsilon(price: float, *, delta: float) -> float:
    """Return an epsilon at which a price of `gaussian_price` is covered by delta."""
    delta = probability(delta=delta)
    if price == 0:
        return 0.0

    def covered(epsilon: float) -> bool:
        at = np.array([epsilon])
        return bool(gaussian_shift_curve(math.sqrt(price), at)[0] + 1e-15 <= delta)

    return _least_root(covered, precision=1e-9)


def round_up(value: float | Fraction) -> Fraction:
    """Return a Fraction >= value with a short binary form, at most 0.05 % above."""
    exact = Fraction(value)
    bits = 11 - (math.floor(math.log2(exact)) if exact else 0)
    grid = Fraction(2) ** bits
    return math.ceil(exact * grid) / grid


def _delta(events: Iterable[Event], epsilon: float) -> float:
    parts = _gather(events)
    if parts is None:
        return 1.0
    # Beyond the largest epsilon that is looked at, delta is taken from there.
    total = _composed_curve(parts)(min(epsilon, _LARGEST)) + leak(parts.elements())
    return min(1.0, total)


# Composition ----------------------------------------------------------------------


def _gather(events: Iterable[Event]) -> Counter[Event] | None:
    """Count equal events, so that n of them and count=n are one thing.

    None if any is seeded: then nothing is protected.
    """
    parts: Counter[Event] = Counter()
    for event in events:
        if not isinstance(event, Event):
            raise UnsupportedEventError(
                f"Event {type(event).__name__!r} is unknown to this version. "
                "Pass objects of mapl.events."
            )
        if event.seeded:
            return None
        for part in event.parts():
            one = part if part.count == 1 else replace(part, count=1)
            parts[one] += part.count
    return parts


def _composed_curve(parts: Counter[Event]) -> Callable[[float], float]:
    """Return epsilon -> delta of all patterns together."""
    if not parts:
        return lambda epsilon: 0.0
    if parts.total() == 1:
        (only,) = parts
        curve = _curve(only)
        return lambda epsilon: _finite(float(curve(np.array([epsilon]))[0]))
    pld = _compose(parts)
    slack = _PLD_SLACK + _PLD_SLACK_EACH * parts.total()

    def composed(epsilon: float) -> float:
        found = _finite(float(pld.get_delta_for_epsilon(epsilon)))
        return max(0.0, found) * INFLATE + slack

    return composed


def _finite(delta: float) -> float:
    """What is no number certifies nothing."""
    return delta if math.isfinite(delta) else 1.0


def _compose(parts: Counter[Event]) -> PrivacyLossDistribution:
    """Compose the patterns on one grid: fine for the least loss, not endless."""
    from dp_accounting.pld import pld_pmf
    from dp_accounting.pld import privacy_loss_distribution as pld

    curves = {event: _curve(event) for event in parts}
    # Where a curve has halved, and where there is nothing left of it to count.
    spread = min(_fallen_to(curve, curve(_ZERO)[0] / 2) for curve in curves.values())
    reaches = {event: _fallen_to(curve, 1e-15) for event, curve in curves.items()}
    grid = max(min(spread / 1000, 1.0), max(reaches.values()) / 2**18)
    total = None
    for event, count in parts.items():
        steps, deltas = _tabulate(curves[event], grid, reaches[event])
        pmf = pld_pmf.create_pmf_pessimistic_connect_dots(grid, steps, deltas)
        several = pmf.to_dense_pmf().self_compose(count, tail_mass_truncation=1e-15)
        total = several if total is None else total.compose(several)
    return pld.PrivacyLossDistribution(total)


def _fallen_to(curve: Curve, level: float) -> float:
    """Return, to within a factor 2, the epsilon from which on a curve is <= level."""
    epsilon = 2.0**-40
    while not curve(np.array([epsilon]))[0] <= level and epsilon < _LARGEST:
        epsilon *= 2
    return epsilon


def _tabulate(
    curve: Curve, grid: float, reach: float
) -> tuple[npt.NDArray[np.int64], Floats]:
    """Tabulate a curve on multiples of ``grid``, both signs, up to ``reach``.

    For negative epsilon: sup P - e^-x Q = 1 - e^-x + e^-x (sup Q - e^x P).
    """
    n = math.ceil(reach / grid)
    # A whole unit at infinity cannot be composed; what is cut is added back later.
    most = math.nextafter(1.0, 0.0)
    values = curve(np.arange(n + 1, dtype=np.float64) * grid)
    right = np.minimum(np.where(np.isfinite(values), values, most), most)
    shrink = np.exp(-np.arange(n, 0, -1) * grid)
    left = 1 - shrink * (1 - right[:0:-1])
    deltas = np.minimum.accumulate(np.concatenate((left, right)))
    return np.arange(-n, n + 1), deltas


def _least_root(holds: Callable[[float], bool], *, precision: float) -> float:
    """Return, from above, the least x > 0 from which on ``holds`` is true.

    ``precision`` is relative; ``inf`` stands for no x up to `_LARGEST`.
    """
    high = 1.0
    while not holds(high):
        high *= 2
        if high > _LARGEST:
            return math.inf
    low = high / 2
    while holds(low) and low > 2**-60:
        low, high = low / 2, low
    while high - low > precision * low:
        middle = (low + high) / 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


# One event: curve, leak, Renyi divergence -----------------------------------------


@singledispatch
def _curve(event: Event) -> Curve:
    raise UnsupportedEventError(
        f"Event {event.kind!r} has no privacy curve in this version. Upgrade mapl."
    )


@singledispatch
def _leak(event: Event) -> float:
    return 0.0


@singledispatch
def _renyi(event: Event, order: float) -> float:
    raise UnsupportedEventError(
        f"Event {event.kind!r} has no Renyi bound in this version. Upgrade mapl."
    )


@_curve.register
def _(event: StableReleaseEvent) -> Curve:
    return pure_composition_curve(_up(1 / event.noise_scale), 1)


@_leak.register
def _(event: StableReleaseEvent) -> float:
    return laplace_tail(event.threshold, float(event.noise_scale))


@_renyi.register
def _(event: StableReleaseEvent, order: float) -> float:
    return pure_renyi(_up(1 / event.noise_scale), order)


@_curve.register
def _(event: SparseVectorEvent) -> Curve:
    if event.threshold_noise_scale == 0:
        return charged_abstention_curve(_charged_loss(event), event.cutoff)
    return pure_composition_curve(*_pure_parts(event))


@_leak.register
def _(event: SparseVectorEvent) -> float:
    noise, threshold_noise = event.noise_scale, event.threshold_noise_scale
    reach = event.threshold - event.instability
    tail = laplace_difference_tail(reach, float(noise), float(threshold_noise))
    return event.cutoff * tail


@_renyi.register
def _(event: SparseVectorEvent, order: float) -> float:
    if event.threshold_noise_scale == 0:
        return event.cutoff * charged_abstention_renyi(_charged_loss(event), order)
    loss, segments = _pure_parts(event)
    return segments * pure_renyi(loss, order)


@_curve.register
def _(event: GaussianEvent) -> Curve:
    return gaussian_curve(math.nextafter(float(event.sigma), 0), event.steps)


@_renyi.register
def _(event: GaussianEvent, order: float) -> float:
    # Canonne, Kamath, Steinke 2020, Theorem 4: as for the continuous Gaussian.
    return event.steps * order / (2 * float(event.sigma) ** 2)


def _charged_loss(event: SparseVectorEvent) -> float:
    if event.sensitivity != 1:
        raise UnsupportedEventError(
            "Event 'sparse_vector/1' without threshold noise must have sensitivity 1 "
            f"to be accounted for, got {event.sensitivity}."
        )
    return _up(1 / event.noise_scale)


def _pure_parts(event: SparseVectorEvent) -> tuple[float, int]:
    """Return (epsilon, n) such that the pattern is n-fold composed epsilon-DP."""
    threshold_part = event.sensitivity / event.threshold_noise_scale
    abstention_part = 2 * event.sensitivity / event.noise_scale
    if event.redrawn:
        return _up(threshold_part + abstention_part), event.cutoff
    return _up(threshold_part + event.cutoff * abstention_part), 1


def _up(value: Fraction) -> float:
    """Return the least float >= value."""
    nearest = float(value)
    return nearest if Fraction(nearest) >= value else math.nextafter(nearest, math.inf)
