"""Rounding up: what a release costs is never understated."""

import math
from fractions import Fraction


def fraction_up(value: float | Fraction) -> Fraction:
    """Return a Fraction >= value with a short binary form, at most 0.05 % above."""
    exact = Fraction(value)
    bits = 11 - (math.floor(math.log2(exact)) if exact else 0)
    grid = Fraction(2) ** bits
    return math.ceil(exact * grid) / grid


def float_up(value: Fraction) -> float:
    """Return the least float >= value."""
    nearest = float(value)
    return nearest if Fraction(nearest) >= value else math.nextafter(nearest, math.inf)


def decimals_up(value: float, places: int) -> float:
    """Return the value rounded up to so many decimal places."""
    unit = 10.0**places
    return math.ceil(value * unit) / unit


def ceil_sqrt(value: Fraction) -> int:
    """Return the least integer whose square is at least ``value``."""
    least = math.ceil(value)
    root = math.isqrt(least)
    return root if root * root >= least else root + 1
