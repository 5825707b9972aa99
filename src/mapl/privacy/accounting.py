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
from typing import TYPE_CHECKING, Any

import numpy as np

from mapl.arrays import Floats, Ints
from mapl.errors import ParameterError, UnsupportedEventError, positive
from mapl.privacy import curves, tails
from mapl.privacy.curves import INFLATE, Curve
from mapl.privacy.events import (
    Event,
    GaussianEvent,
    MomentsEvent,
    SparseVectorEvent,
    StableReleaseEvent,
)
from mapl.privacy.rounding import float_up
from mapl.privacy.search import LARGEST, least_root

if TYPE_CHECKING:
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

_ZERO = np.zeros(1)
# Absolute, and for each of the events composed: Fourier transforms were seen to be off
# by less than 1e-15 a count, up to 10^5 of them.
_PLD_SLACK, _PLD_SLACK_EACH = 1e-13, 1e-14


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
    >>> from mapl.privacy.events import StableReleaseEvent
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
    >>> from mapl.privacy.events import GaussianEvent
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
    return least_root(lambda value: curve(value) <= allowed, precision=1e-6)


def curve(events: Iterable[Event]) -> Callable[[float], float]:
    """Return epsilon -> delta of the events together, composed once; as `delta`."""
    parts = _gather(events)
    if parts is None:
        return lambda epsilon: 1.0
    composed, leaked = _composed_curve(parts), leak(parts.elements())
    return lambda epsilon: min(1.0, composed(min(epsilon, LARGEST)) + leaked)


def leak(events: Iterable[Event]) -> float:
    """Bound the probability that a value which neighbours disagree on is released.

    Proof: docs/proofs/SparseVector.md, "Leaks"
    """
    parts = _gather(events)
    if parts is None:
        return 1.0
    return INFLATE * sum(count * event_leak(event) for event, count in parts.items())


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
    divergences = [count * event_renyi(event, order) for event, count in parts.items()]
    return INFLATE * sum(divergences)


def _delta(events: Iterable[Event], epsilon: float) -> float:
    # Beyond the largest epsilon that is looked at, delta is taken from there.
    return curve(events)(epsilon)


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
                "Pass objects of mapl.privacy.events."
            )
        if event.seeded:
            return None
        for part in event.parts():
            parts[replace(part, count=1)] += part.count
    return parts


def _composed_curve(parts: Counter[Event]) -> Callable[[float], float]:
    """Return epsilon -> delta of all patterns together.

    Moments have one Gaussian curve together. Unit steps under Gaussian noise may join
    them, or be composed by their own, exact curve: the better of both.
    """
    ways = [_with_moments_joined(parts, MomentsEvent)]
    if len(ways[0]) < len(parts) or any(isinstance(p, MomentsEvent) for p in parts):
        ways.append(_with_moments_joined(parts, MomentsEvent | GaussianEvent))
    found = [_curve_of(way) for way in ways]
    return lambda epsilon: min(curve(epsilon) for curve in found)


def _with_moments_joined(parts: Counter[Event], kinds: Any) -> Counter[Event]:
    """Add up squared shifts of these kinds: one event instead of many."""
    joined = {
        event: count
        for event, count in parts.items()
        if isinstance(event, kinds) and _squared_shift(event) is not None
    }
    if not joined:
        return parts
    rest = Counter({e: count for e, count in parts.items() if e not in joined})
    shift = sum(count * (_squared_shift(e) or 0) for e, count in joined.items())
    coordinates = sum(
        count * (e.coordinates if isinstance(e, MomentsEvent) else e.steps)
        for e, count in joined.items()
        if isinstance(e, MomentsEvent | GaussianEvent)
    )
    one = MomentsEvent(squared_shift=Fraction(shift), coordinates=coordinates)
    rest[one] += 1
    return rest


def _squared_shift(event: MomentsEvent | GaussianEvent) -> Fraction | None:
    """Return the squared shift of an event; None where noise is too small to smooth."""
    if isinstance(event, MomentsEvent):
        return event.squared_shift
    rest = event.sigma**2 - curves.SMOOTHING**2
    return event.steps / rest if rest >= curves.LEAST_REST else None


def _curve_of(parts: Counter[Event]) -> Callable[[float], float]:
    """Compose the patterns of events, each by its own curve."""
    if not parts:
        return lambda epsilon: 0.0
    if parts.total() == 1:
        (only,) = parts
        curve = event_curve(only)
        return lambda epsilon: _finite(float(curve(np.array([epsilon]))[0]))
    pld = _compose(parts)
    slack = _PLD_SLACK + _PLD_SLACK_EACH * parts.total()

    def composed(epsilon: float) -> float:
        found = _finite(float(pld.get_delta_for_epsilon(epsilon)))
        return max(0.0, found) * INFLATE + slack

    return composed


def _finite(delta: float) -> float:
    """Return 1, which certifies nothing, in place of NaN or infinity."""
    return delta if math.isfinite(delta) else 1.0


def _compose(parts: Counter[Event]) -> PrivacyLossDistribution:
    """Compose the patterns on one grid: fine for the least loss, not endless."""
    from dp_accounting.pld import pld_pmf
    from dp_accounting.pld import privacy_loss_distribution as pld

    curves = {event: event_curve(event) for event in parts}
    # Where a curve has halved, and where there is nothing left of it to count.
    spread = min(fallen_to(curve, curve(_ZERO)[0] / 2) for curve in curves.values())
    reaches = {event: fallen_to(curve, 1e-15) for event, curve in curves.items()}
    grid = max(min(spread / 1000, 1.0), max(reaches.values()) / 2**18)
    total = None
    for event, count in parts.items():
        steps, deltas = _tabulate(curves[event], grid, reaches[event])
        pmf = pld_pmf.create_pmf_pessimistic_connect_dots(grid, steps, deltas)
        several = pmf.to_dense_pmf().self_compose(count, tail_mass_truncation=1e-15)
        total = several if total is None else total.compose(several)
    return pld.PrivacyLossDistribution(total)


def fallen_to(curve: Curve, level: float) -> float:
    """Return, to within a factor 2, the epsilon from which on a curve is <= level."""
    epsilon = 2.0**-40
    while not curve(np.array([epsilon]))[0] <= level and epsilon < LARGEST:
        epsilon *= 2
    return epsilon


def _tabulate(curve: Curve, grid: float, reach: float) -> tuple[Ints, Floats]:
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


# One event: curve, leak, Renyi divergence. New kinds are registered here -----------


@singledispatch
def event_curve(event: Event) -> Curve:
    """Return the curve of the pattern of one such event (``count`` is not applied)."""
    raise UnsupportedEventError(
        f"Event {event.kind!r} has no privacy curve in this version. Upgrade mapl."
    )


@singledispatch
def event_leak(event: Event) -> float:
    """Bound the probability of releasing a value that neighbours disagree on."""
    return 0.0


@singledispatch
def event_renyi(event: Event, order: float) -> float:
    """Bound the Renyi divergence of the pattern of one such event."""
    raise UnsupportedEventError(
        f"Event {event.kind!r} has no Renyi bound in this version. Upgrade mapl."
    )


@event_curve.register
def _(event: StableReleaseEvent) -> Curve:
    return curves.pure_composition_curve(float_up(1 / event.noise_scale), 1)


@event_leak.register
def _(event: StableReleaseEvent) -> float:
    return tails.laplace_tail(event.threshold, float(event.noise_scale))


@event_renyi.register
def _(event: StableReleaseEvent, order: float) -> float:
    return curves.pure_renyi(float_up(1 / event.noise_scale), order)


@event_curve.register
def _(event: SparseVectorEvent) -> Curve:
    if event.threshold_noise_scale == 0:
        return curves.charged_abstention_curve(_charged_loss(event), event.cutoff)
    return curves.pure_composition_curve(*_pure_parts(event))


@event_leak.register
def _(event: SparseVectorEvent) -> float:
    noise, threshold_noise = event.noise_scale, event.threshold_noise_scale
    reach = event.threshold - event.instability
    tail = tails.laplace_difference_tail(reach, float(noise), float(threshold_noise))
    return event.cutoff * tail


@event_renyi.register
def _(event: SparseVectorEvent, order: float) -> float:
    if event.threshold_noise_scale == 0:
        return event.cutoff * curves.charged_abstention_renyi(
            _charged_loss(event), order
        )
    loss, segments = _pure_parts(event)
    return segments * curves.pure_renyi(loss, order)


@event_curve.register
def _(event: GaussianEvent) -> Curve:
    return curves.gaussian_curve(math.nextafter(float(event.sigma), 0), event.steps)


@event_curve.register
def _(event: MomentsEvent) -> Curve:
    return curves.smoothed_gaussian_curve(
        float_up(event.squared_shift), event.coordinates
    )


@event_renyi.register
def _(event: MomentsEvent, order: float) -> float:
    # As below: s_i^2 - 4 < s_i^2, so no more is moved.
    return float_up(event.squared_shift) * order / 2


@event_renyi.register
def _(event: GaussianEvent, order: float) -> float:
    # Canonne, Kamath, Steinke 2020, Theorem 4: as for the continuous Gaussian.
    return event.steps * order / (2 * float(event.sigma) ** 2)


def _charged_loss(event: SparseVectorEvent) -> float:
    """Return the loss of one abstention; Theorem 5 needs sensitivity 1."""
    if event.sensitivity != 1:
        raise UnsupportedEventError(
            "Event 'sparse_vector/1' without threshold noise must have sensitivity 1 "
            f"to be accounted for, got {event.sensitivity}."
        )
    return float_up(1 / event.noise_scale)


def _pure_parts(event: SparseVectorEvent) -> tuple[float, int]:
    """Return (epsilon, n) such that the pattern is n-fold composed epsilon-DP."""
    threshold_part = event.sensitivity / event.threshold_noise_scale
    abstention_part = 2 * event.sensitivity / event.noise_scale
    if event.redrawn:
        return float_up(threshold_part + abstention_part), event.cutoff
    return float_up(threshold_part + event.cutoff * abstention_part), 1
