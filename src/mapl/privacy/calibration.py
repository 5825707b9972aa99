"""Budgets to parameters: the least threshold, then the least noise, for an epsilon.

Everything is a search over events that asks `mapl.accounting` what they cost.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from functools import cache

from mapl.errors import ParameterError, positive, probability
from mapl.privacy import accounting
from mapl.privacy.events import (
    Event,
    GaussianEvent,
    MomentsEvent,
    SparseVectorEvent,
    StableReleaseEvent,
)
from mapl.privacy.rounding import fraction_up
from mapl.privacy.search import least_integer, least_root


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
    >>> from mapl.privacy.calibration import least_scale
    >>> from mapl.privacy.events import GaussianEvent
    >>> least_scale(
    ...     lambda sigma: GaussianEvent(sigma=sigma, steps=100), epsilon=1, delta=1e-5
    ... )
    Fraction(597, 16)
    """
    epsilon, delta = positive(epsilon=epsilon), float(delta)

    def certified(scale: float) -> bool:
        return (
            accounting.delta([make_event(fraction_up(scale))], epsilon=epsilon) <= delta
        )

    scale = least_root(certified, precision=2e-4)
    if scale == math.inf:
        raise ParameterError(
            f"No noise can be certified for epsilon {epsilon:g} and delta {delta:g}: "
            "rounding counts against it. Take a larger epsilon, and a delta of 1e-15 "
            "or more."
        )
    return fraction_up(scale)


def least_sigma(*, epsilon: float, delta: float, steps: int) -> Fraction:
    """Return the least sigma for which so many unit steps are certified."""
    return least_scale(
        lambda sigma: GaussianEvent(sigma=sigma, steps=steps),
        epsilon=positive(epsilon=epsilon),
        delta=probability(delta=delta),
    )


def largest_squared_shift(
    *, epsilon: float, delta: float, coordinates: int
) -> Fraction:
    """Return the largest squared shift for which moments are certified, rounded down.

    As for `least_scale`, within 0.1 %: it is one over the square of the least noise of
    a single sum of squared length 1.
    """

    def make(scale: Fraction) -> Event:
        return MomentsEvent(squared_shift=1 / scale**2, coordinates=coordinates)

    return 1 / least_scale(make, epsilon=epsilon, delta=delta) ** 2


def least_threshold(
    template: StableReleaseEvent | SparseVectorEvent, *, leak: float, near: int = 1
) -> int:
    """Return the least integer threshold whose leak is at most ``leak``.

    It is searched for in growing steps from ``near``, then by bisection.
    """

    def enough(threshold: int) -> bool:
        return accounting.leak([replace(template, threshold=threshold)]) <= leak

    low, high, step = near - 1, near, 1
    while not enough(high):
        low, high, step = high, high + step, 2 * step
    while low >= 0 and step == 1 and enough(low):
        low, high = max(-1, 2 * low - near), low
    return least_integer(enough, above=low, at_most=high)


def sparse_vector_without_threshold_noise(
    epsilon: float, delta: float, cutoff: int
) -> SparseVectorEvent:
    """Find the least threshold, then noise, where abstentions are charged one by one.

    More noise costs less for the pattern and needs a higher threshold against leaks:
    the threshold has one minimum, a little above the least noise that is enough for
    the pattern alone.
    """

    def make(scale: Fraction) -> SparseVectorEvent:
        return SparseVectorEvent(
            noise_scale=scale,
            threshold=2**60,  # no leak: the pattern alone
            threshold_noise_scale=Fraction(0),
            redrawn=False,
            cutoff=cutoff,
        )

    least = least_scale(make, epsilon=epsilon, delta=delta)
    return _least_on_grid(make, least, epsilon, delta)


def sparse_vector_with_threshold_noise(
    epsilon: float, delta: float, cutoff: int
) -> SparseVectorEvent:
    """Find the least threshold, then noise, where threshold noise is drawn once.

    The pattern is pure: 1/threshold_noise_scale + 2 cutoff/noise_scale = epsilon.
    """
    budget = Fraction(epsilon)

    def make(scale: Fraction) -> SparseVectorEvent:
        rest = budget - 2 * cutoff / scale
        return SparseVectorEvent(
            noise_scale=scale,
            threshold=2**60,  # no leak: the pattern alone
            threshold_noise_scale=fraction_up(1 / rest),
            redrawn=False,
            cutoff=cutoff,
        )

    # A little more than 2 cutoff/epsilon, so that something is left for the threshold.
    least = fraction_up(Fraction("1.005") * 2 * cutoff / budget)
    return _least_on_grid(make, least, epsilon, delta)


def _least_on_grid(
    make: Callable[[Fraction], SparseVectorEvent],
    low: Fraction,
    epsilon: float,
    delta: float,
) -> SparseVectorEvent:
    """Search noise scales from ``low`` to twice that for the least threshold.

    In steps of about a thousandth. With more noise the threshold first falls, then
    rises: Fibonacci search finds its least value, bisection the least noise for it.
    """
    step = Fraction(2) ** math.floor(math.log2(low / 1024))
    near = 1  # the last threshold, which the next is close to

    @cache
    def event(index: int) -> SparseVectorEvent:
        nonlocal near
        candidate = make(low + index * step)
        spare = delta - accounting.delta([candidate], epsilon=epsilon)
        if spare <= 0:
            return candidate  # not feasible: keeps its enormous threshold
        near = least_threshold(candidate, leak=spare, near=near)
        return replace(candidate, threshold=near)

    @cache
    def cost(index: int) -> tuple[int, float]:
        # Of two equal thresholds, the one nearer to the next lower one comes first.
        found = event(index)
        return found.threshold, accounting.delta([found], epsilon=epsilon)

    left, width, inner = 0, 1597, 987  # neighbouring Fibonacci numbers
    while width > 2:
        width, inner = inner, width - inner
        if cost(left + inner) > cost(left + width):
            left += inner
    best = min(range(left, left + width + 1), key=cost)
    least = event(best).threshold
    return event(
        least_integer(lambda i: event(i).threshold <= least, above=-1, at_most=best)
    )
