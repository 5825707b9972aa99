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
from functools import lru_cache, singledispatch
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from mapl.errors import ParameterError, UnsupportedEventError, positive
from mapl.events import Event, GaussianEvent, SparseVectorEvent, StableReleaseEvent

if TYPE_CHECKING:
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

Floats = npt.NDArray[np.float64]
Curve = Callable[[Floats], Floats]
"""Epsilons >= 0 to an upper bound on delta, for both orders of the neighbours."""

_INFLATE = 1 + 1e-9  # relative: sums of up to 10^6 positive terms, each exact to 1e-11
_ZERO = np.zeros(1)
_PLD_SLACK = 1e-13  # absolute: rounding of the Fourier transforms in a composition


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
    if epsilon != 0:
        positive(epsilon=epsilon)
    return _delta(events, epsilon)


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
    return _INFLATE * sum(event.count * _leak(event) for event in events)


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
    return _INFLATE * sum(event.count * _renyi(event, order) for event in events)


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

    def certified(scale: float) -> bool:
        return _delta([make_event(round_up(scale))], epsilon) <= delta

    return round_up(_least_root(certified, precision=2e-4))


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
    return min(1.0, _composed_curve(parts)(epsilon) + leak(parts.elements()))


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
        parts[replace(event, count=1)] += event.count
    return parts


def _composed_curve(parts: Counter[Event]) -> Callable[[float], float]:
    """Return epsilon -> delta of all patterns together."""
    if not parts:
        return lambda epsilon: 0.0
    if parts.total() == 1:
        (only,) = parts
        curve = _curve(only)
        return lambda epsilon: float(curve(np.array([epsilon]))[0])
    pld = _compose(parts)

    def composed(epsilon: float) -> float:
        return float(pld.get_delta_for_epsilon(epsilon)) * _INFLATE + _PLD_SLACK

    return composed


def _compose(parts: Counter[Event]) -> PrivacyLossDistribution:
    """Compose the patterns on one grid: fine for the least loss, not endless."""
    from dp_accounting.pld import pld_pmf
    from dp_accounting.pld import privacy_loss_distribution as pld

    curves = {event: _curve(event) for event in parts}
    # Where a curve has halved, and where there is nothing left of it to count.
    spread = min(_fallen_to(curve, curve(_ZERO)[0] / 2) for curve in curves.values())
    reaches = {event: _fallen_to(curve, 1e-15) for event, curve in curves.items()}
    grid = max(spread / 1000, max(reaches.values()) / 2**18)
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
    while curve(np.array([epsilon]))[0] > level and epsilon < 2.0**20:
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
    right = np.minimum(curve(np.arange(n + 1, dtype=np.float64) * grid), most)
    shrink = np.exp(-np.arange(n, 0, -1) * grid)
    left = 1 - shrink * (1 - right[:0:-1])
    deltas = np.minimum.accumulate(np.concatenate((left, right)))
    return np.arange(-n, n + 1), deltas


def _least_root(holds: Callable[[float], bool], *, precision: float) -> float:
    """Return, from above, the least x > 0 from which on ``holds`` is true.

    ``precision`` is relative; ``inf`` stands for no x below 2^40.
    """
    high = 1.0
    while not holds(high):
        high *= 2
        if high > 2**40:
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
    return _pure_renyi(_up(1 / event.noise_scale), order)


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
    return segments * _pure_renyi(loss, order)


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


# Curves ---------------------------------------------------------------------------


@lru_cache(maxsize=64)
def pure_composition_curve(loss: float, n: int) -> Curve:
    r"""Return the privacy curve of n adaptively composed ``loss``-DP mechanisms.

    Kairouz, Oh, Viswanath (2015), Theorem 3.3: n randomised responses,

    .. math:: \delta(\epsilon) = \sum_i \binom{n}{i} \frac{
        (e^{(n-i) loss} - e^{\epsilon + i loss})_+}{(1 + e^{loss})^n}.

    Guarantee: no n-fold adaptive composition of loss-DP mechanisms has a larger
    divergence.
    Proof: docs/proofs/accounting.md
    """
    from scipy.special import gammaln

    down = np.arange(n // 2 + 1)  # i: how many of n responses point the other way
    log_choose = gammaln(n + 1) - gammaln(down + 1) - gammaln(n - down + 1)
    log_true, log_false = -np.logaddexp(0, -loss), -np.logaddexp(0, loss)
    p = np.cumsum(np.exp(log_choose + (n - down) * log_true + down * log_false))
    log_q = log_choose + (n - down) * log_false + down * log_true
    losses = (n - 2 * down) * loss

    def curve(epsilons: Floats) -> Floats:
        counted = np.searchsorted(-losses, -epsilons, side="left")
        head = np.append(0.0, p)[counted]
        # Against overflow, e^epsilon goes into each sum of q as a shift of its log.
        log_sum_q = np.append(-np.inf, np.logaddexp.accumulate(log_q))[counted]
        rest = np.maximum(0.0, head - np.exp(epsilons + log_sum_q))
        return np.asarray(rest + head * 1e-14, dtype=np.float64)

    return lambda epsilons: _INFLATE * curve(epsilons)


@lru_cache(maxsize=64)
def charged_abstention_curve(loss: float, cutoff: int) -> Curve:
    r"""Return the exact privacy curve of a sparse vector without threshold noise.

    Let a walk go up with probability :math:`p = 1/(1 + e^{-loss})` and down else,
    and :math:`\Psi(n)` be the probability that it climbs to n with fewer than
    ``cutoff`` steps down. With :math:`K = \lfloor\epsilon/loss\rfloor` and
    :math:`S(n) = \Psi(n) + e^{-loss} S(n + 2)`,

    .. math:: \delta(\epsilon) = (1 - e^{\epsilon - (K+1) loss}) S(K + 1)
        + (e^{\epsilon - K loss} - 1) e^{-loss} S(K + 2).

    Guarantee: reached by the worst adaptive queries, exceeded by none.
    Proof: docs/proofs/SparseVector.md, "No threshold noise"
    """

    def curve(epsilons: Floats) -> Floats:
        level = np.floor(epsilons / loss).astype(np.int64)
        first = int(level.min()) + 1
        climbs = _discounted_climbs(loss, cutoff, first, int(level.max()) + 2)
        here, after = climbs[level + 1 - first], climbs[level + 2 - first]
        below = -np.expm1(np.minimum(epsilons - (level + 1) * loss, 0.0))
        above = np.expm1(np.maximum(epsilons - level * loss, 0.0))
        return _INFLATE * (below * here + above * math.exp(-loss) * after)

    return curve


@lru_cache(maxsize=256)
def _discounted_climbs(loss: float, cutoff: int, first: int, last: int) -> Floats:
    """Return S(first), ..., S(last), each from above."""
    climbs: list[float] = []
    start, wanted = first, last - first + 1
    shrink, rest = math.exp(-loss), -math.expm1(-loss)
    while True:
        climbs.extend(_climbs(loss, cutoff, start, start + 64).tolist())
        start += 64
        # Climbs fall with n, so the terms of S left out add up to at most this.
        left_out = math.exp(-loss * (start - last) / 2) * climbs[-1] / rest
        if start > last and left_out <= 1e-10 * climbs[wanted - 1]:
            break
    sums = np.array([*climbs, climbs[-1] / rest, climbs[-1] / rest])
    for n in reversed(range(len(climbs))):
        sums[n] += shrink * sums[n + 2]
    return sums[:wanted]


def _climbs(loss: float, cutoff: int, start: int, stop: int) -> Floats:
    r"""Return :math:`\Psi(n) = \sum_{j < cutoff} \frac{n}{n + 2j}
    \binom{n + 2j}{j} p^{n + j} (1 - p)^j` for start <= n < stop (ballot theorem).
    """
    from scipy.special import gammaln

    n = np.arange(start, stop)[:, None]
    j = np.arange(cutoff)
    log_factorial = gammaln(np.arange(1, stop + 2 * cutoff + 1))
    log_paths = log_factorial[n + 2 * j] - log_factorial[j] - log_factorial[n + j]
    log_up, log_down = -math.log1p(math.exp(-loss)), -np.logaddexp(0, loss)
    logs = np.log(n / (n + 2 * j)) + log_paths + (n + j) * log_up + j * log_down
    return np.asarray(np.exp(logs).sum(axis=1), dtype=np.float64)


@lru_cache(maxsize=64)
def gaussian_curve(sigma: float, steps: int) -> Curve:
    r"""Return the privacy curve of unit steps under discrete Gaussian noise.

    The loss of x is :math:`(1 - 2x)/(2\sigma^2)`, so that of n steps is a function of
    their sum S alone:

    .. math:: \delta(\epsilon) = P(S < s) - e^\epsilon P(S < s - n),\quad
        s = n/2 - \sigma^2 \epsilon.

    Guarantee: exact up to rounding, which is upwards.
    Proof: docs/proofs/accounting.md
    """
    if sigma < 3 and steps > 10_000:
        return np.ones_like  # epsilon would be in the hundreds: certify nothing
    log_cdf = _log_cdf_of_sum(sigma, steps)

    def curve(epsilons: Floats) -> Floats:
        last = np.ceil(steps / 2 - sigma**2 * epsilons) - 1
        first_mass = np.exp(log_cdf(last)) * _INFLATE
        second_mass = np.exp(log_cdf(last - steps) + epsilons) / _INFLATE
        rest = np.maximum(first_mass - second_mass, 0.0)
        return np.asarray(rest + 1e-16, dtype=np.float64)

    return curve


def _log_cdf_of_sum(sigma: float, steps: int) -> Curve:
    """Return s -> ln P(S <= s) for the sum S of discrete Gaussians, s an integer.

    From sigma = 3 on, S is discrete Gaussian of scale sigma sqrt(steps) to within a
    relative 1e-25, by Poisson's summation formula; a wide one has the tails of the
    normal law at s + 1/2 to within a relative 1e-9. Beyond 14 scales there is less
    than 1e-42.
    """
    from scipy.special import log_ndtr

    scale = sigma * math.sqrt(steps)
    if sigma >= 3 and scale > 1e5:
        return lambda s: np.asarray(log_ndtr((s + 0.5) / scale), dtype=np.float64)
    reach = math.ceil(14 * max(scale, 3))
    x = np.arange(-reach, reach + 1)
    if sigma >= 3:
        mass = np.exp(-(x**2) / (2 * scale**2))
    else:
        mass = _power(np.exp(-(x**2) / (2 * sigma**2)), steps)
    with np.errstate(divide="ignore"):
        logs = np.log(np.append(0.0, np.cumsum(mass) / mass.sum()))
    return lambda s: logs[np.clip(s + reach + 1, 0, 2 * reach + 1).astype(np.int64)]


def _power(mass: Floats, n: int) -> Floats:
    """Return the n-fold convolution of a law on -reach..reach, cut to the same."""
    law: Floats = mass / mass.sum()
    if n == 1:
        return law
    half = _power(law, n // 2)
    even = np.convolve(half, half, mode="same")
    return np.convolve(even, law, mode="same") if n % 2 else even


def charged_abstention_renyi(loss: float, order: float) -> float:
    r"""Bound the Renyi divergence that one abstention costs, without threshold noise.

    :math:`\frac{1}{r - 1} \ln \max\left(\frac{p^r q^{1-r}}{1 - q^r p^{1-r}},
    \frac{q^r p^{1-r}}{1 - p^r q^{1-r}}\right)` with :math:`p = 1/(1 + e^{-loss})`,
    q = 1 - p, for orders :math:`r < \ln(1 + e^{loss}) / loss`; infinite beyond.
    """
    log_p, log_q = -math.log1p(math.exp(-loss)), -float(np.logaddexp(0, loss))
    up = order * log_p + (1 - order) * log_q
    down = order * log_q + (1 - order) * log_p
    if up >= 0:
        return math.inf
    worst = max(up - math.log(-math.expm1(down)), down - math.log(-math.expm1(up)), 0.0)
    return worst / (order - 1)


def _pure_renyi(loss: float, order: float) -> float:
    """Renyi divergence of randomised response, the worst loss-DP mechanism."""
    log_p, log_q = -math.log1p(math.exp(-loss)), -np.logaddexp(0, loss)
    up = order * log_p + (1 - order) * log_q
    down = order * log_q + (1 - order) * log_p
    return max(0.0, float(np.logaddexp(up, down)) / (order - 1))


# Tails ----------------------------------------------------------------------------


def laplace_tail(reach: float, scale: float) -> float:
    """Return P(X > reach) for discrete Laplace noise X; ``reach`` an integer."""
    if reach < 0:
        return 1 - laplace_tail(-reach - 1, scale)
    return math.exp(-(reach + 1) / scale - math.log1p(math.exp(-1 / scale)))


def laplace_difference_tail(
    reach: float, scale: float, threshold_scale: float
) -> float:
    r"""Return P(X - A > reach) for discrete Laplace X and A; a scale of 0: A = 0.

    With :math:`\alpha = e^{-1/threshold\_scale}` and :math:`\beta = e^{-1/scale}`, the
    sum of P(A = a) P(X > reach + a) over a >= 0, over 0 > a >= -reach, and over the
    rest; all three are geometric series.
    """
    if threshold_scale == 0:
        return laplace_tail(reach, scale)
    if reach < 0:
        return 1 - laplace_difference_tail(-reach - 1, scale, threshold_scale)
    alpha, beta = math.exp(-1 / threshold_scale), math.exp(-1 / scale)
    weight = math.tanh(1 / threshold_scale / 2)  # P(A = 0)
    alpha_rest = -math.expm1(-1 / threshold_scale)  # 1 - alpha
    both_rest = -math.expm1(-1 / threshold_scale - 1 / scale)  # 1 - alpha beta
    above = math.exp(-(reach + 1) / scale) / both_rest
    gap = abs(1 / threshold_scale - 1 / scale)
    terms = math.expm1(-gap * reach) / math.expm1(-gap) if gap else reach
    if threshold_scale <= scale:
        between = alpha * math.exp(-reach / scale) * terms
    else:
        between = beta * math.exp(-reach / threshold_scale) * terms
    below = alpha / alpha_rest - alpha * beta / ((1 + beta) * both_rest)
    rest = math.exp(-reach / threshold_scale) * below
    return weight * ((above + between) / (1 + beta) + rest)
