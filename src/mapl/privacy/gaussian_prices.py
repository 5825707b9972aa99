"""Prices as squared Gaussian shifts, which add up even for adaptive releases."""

import math
from dataclasses import replace

import numpy as np

from mapl.errors import positive, probability
from mapl.privacy.accounting import event_curve, event_leak, fallen_to
from mapl.privacy.curves import INFLATE, gaussian_shift_curve
from mapl.privacy.events import Event
from mapl.privacy.search import least_root

_PRICE_CUT = 1e-13  # the part of a curve that is paid for as a leak
_PRICE_POINTS = 10_000  # where curves are compared: 0.2 % of a price


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
    >>> from mapl.privacy.gaussian_prices import gaussian_price
    >>> from mapl.privacy.events import GaussianEvent
    >>> price, leak = gaussian_price(GaussianEvent(sigma=Fraction(40), steps=100))
    >>> round(price, 3), 100 / 40**2
    (0.063, 0.0625)
    """
    if event.seeded:
        return math.inf, 1.0
    if len(event.parts()) > 1:
        prices = [gaussian_price(part) for part in event.parts()]
        return sum(mu for mu, _ in prices), sum(leak for _, leak in prices)
    curve = event_curve(replace(event, count=1))
    reach = fallen_to(curve, _PRICE_CUT)
    grid = np.linspace(0.0, reach, 1 + _PRICE_POINTS)
    values = curve(grid)
    if not values[-1] <= _PRICE_CUT:
        return math.inf, 1.0

    def dominates(mu: float) -> bool:
        # Both curves fall: the event's at the left of each interval against the
        # Gaussian's at its right.
        right = gaussian_shift_curve(mu, grid[1:])
        return bool((values[:-1] <= right + _PRICE_CUT).all())

    mu = least_root(dominates, precision=1e-5)
    leaks = (
        event_leak(event) + 2 * _PRICE_CUT
    )  # what G's own rounding may reach is less
    return event.count * INFLATE * mu**2, event.count * INFLATE * leaks


def gaussian_limit(*, epsilon: float, delta: float) -> float:
    """Return mu squared such that N(0, 1) and N(mu, 1) are (epsilon, delta)-close."""
    epsilon, delta = positive(epsilon=epsilon), probability(delta=delta)
    at = np.array([epsilon])

    def exceeds(mu: float) -> bool:
        return bool(gaussian_shift_curve(mu, at)[0] + 1e-15 > delta)

    mu = least_root(exceeds, precision=1e-9)
    return (mu * (1 - 2e-9)) ** 2  # the root is from above: step below it


def gaussian_epsilon(price: float, *, delta: float) -> float:
    """Return an epsilon at which a price of `gaussian_price` is covered by delta."""
    delta = probability(delta=delta)
    if price == 0:
        return 0.0

    def covered(epsilon: float) -> bool:
        at = np.array([epsilon])
        return bool(gaussian_shift_curve(math.sqrt(price), at)[0] + 1e-15 <= delta)

    return least_root(covered, precision=1e-9)
