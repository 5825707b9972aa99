"""Bisection: the least value for which a monotone condition holds."""

import math
from collections.abc import Callable

LARGEST = 2.0**20  # an epsilon that large protects nobody


def least_root(holds: Callable[[float], bool], *, precision: float) -> float:
    """Return, from above, the least x > 0 from which on ``holds`` is true.

    ``precision`` is relative; ``inf`` means that no x up to `LARGEST` will do.
    """
    high = 1.0
    while not holds(high):
        high *= 2
        if high > LARGEST:
            return math.inf
    low = high / 2
    while holds(low) and low > 2**-60:
        low, high = low / 2, low
    while high - low > precision * low:
        middle = (low + high) / 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def least_integer(holds: Callable[[int], bool], *, above: int, at_most: int) -> int:
    """Return the least integer in (above, at_most] for which ``holds`` is true.

    It must hold for ``at_most``, which is not checked.
    """
    low, high = above, at_most
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high
