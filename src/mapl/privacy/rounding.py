"""Rounding up: what a release costs is never understated."""

from __future__ import annotations

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


def digits_up(value: float, digits: int) -> float:
    """Return the value, and 0.1 % more, rounded up to so many significant digits."""
    unit = 10.0 ** (math.floor(math.log10(value)) - digits + 1)
    return math.ceil(1.001 * value / unit) * unit


def percent_up(share: float) -> str:
    """Return an upper bound as text, rounded up.

    Examples
    --------
    >>> from mapl.privacy.rounding import percent_up
    >>> percent_up(0.7311), percent_up(0.88), percent_up(0.99997)
    ('73.2%', '88%', '100%')
    """
    return f"{100 * decimals_up(share, 3):.4g}%"
