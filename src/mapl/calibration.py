"""Budgets to parameters: the least threshold, then the least noise, for an epsilon.

Everything is a search over events that asks `mapl.accounting` what they cost.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from functools import cache

from mapl import accounting
from mapl.events import SparseVectorEvent, StableReleaseEvent


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
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def least_without_threshold_noise(
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

    least = accounting.least_scale(make, epsilon=epsilon, delta=delta)
    return _least_on_grid(make, least, epsilon, delta)


def least_with_threshold_noise(
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
            threshold=2**60,
            threshold_noise_scale=accounting.round_up(1 / rest),
            redrawn=False,
            cutoff=cutoff,
        )

    least = accounting.round_up(Fraction("1.005") * 2 * cutoff / budget)
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
    enough, short = best, -1
    while enough - short > 1:
        middle = (enough + short) // 2
        if event(middle).threshold <= event(best).threshold:
            enough = middle
        else:
            short = middle
    return event(enough)
