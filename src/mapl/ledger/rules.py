"""How prices of releases are measured and added up, and whether a release fits.

Prices are integers, rounded up; limits are integers, rounded down.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from typing import Any, Self, cast

from mapl.errors import BudgetExceededError, ParameterError, positive, probability
from mapl.privacy import accounting
from mapl.privacy.events import Event
from mapl.privacy.gaussian_prices import (
    gaussian_epsilon,
    gaussian_limit,
    gaussian_price,
)

DELTA_UNIT = Fraction(1, 10**18)
_GAUSSIAN_UNIT = Fraction(1, 10**12)
_LARGEST = 2**62  # of a stored integer
_EVERYTHING = (_LARGEST, _LARGEST)  # the price of a release that takes all of a budget
_LEAK_SHARE = Fraction(1, 10)  # of the delta of rule "gaussian", kept for leaks


@dataclass(frozen=True)
class Rule:
    """How the prices of releases are measured and added up.

    Guarantee: releases whose prices add up to at most `limits` are (epsilon, delta)-DP
    together, even if each is chosen after seeing the earlier ones.
    Proof: docs/proofs/ledger.md

    Attributes
    ----------
    name : str
        "basic" adds up epsilons and deltas. "gaussian" adds up squared Gaussian
        shifts: for the same delta k equal releases cost about sqrt(k) times as much
        as one, not k times.
    unit : Fraction
        Of the stored losses.
    """

    name: str
    unit: Fraction
    _limit: Callable[[float, float], tuple[float, float]]
    _price: Callable[[Event, float], tuple[float, float]]
    _spent: Callable[[float, float], float]

    def limits(self, *, epsilon: float, delta: float) -> tuple[int, int]:
        """Return the limits of loss and delta as integers, rounded down."""
        if not 1e-6 <= positive(epsilon=epsilon) <= 1e6:
            raise ParameterError(
                f"epsilon must be from 1e-6 to 1e6 for a budget, got {epsilon!r}."
            )
        loss, leaks = self._limit(positive(epsilon=epsilon), probability(delta=delta))
        return (
            math.floor(_typed_decimal(loss) / self.unit),
            math.floor(_typed_decimal(leaks) / DELTA_UNIT),
        )

    @lru_cache(maxsize=256)  # noqa: B019 - there are two rules
    def price(self, event: Event, *, delta: float) -> tuple[int, int]:
        """Return what an event costs, rounded up; at least one unit of each."""
        loss, leaks = self._price(event, probability(delta=delta))
        return _units_up(loss, self.unit), _units_up(leaks, DELTA_UNIT)

    def epsilon_spent(self, loss: int, *, delta: float) -> float:
        """Return what a stored loss is in epsilon, at the data set's delta."""
        return self._spent(float(loss * self.unit), delta)


def _typed_decimal(value: float) -> Fraction:
    """Return the decimal that was typed.

    The nearest float may be off by a relative 1e-16; curves are inflated by far more.
    """
    return Fraction(repr(float(value)))


def _units_up(value: float, unit: Fraction) -> int:
    """Return how many units a price is, rounded up; at least one."""
    if not math.isfinite(value) or value / float(unit) > _LARGEST:
        return _LARGEST + 1
    return max(1, math.ceil(_typed_decimal(value) / unit))


def _rest_of(delta: float, share: Fraction = _LEAK_SHARE) -> float:
    """The part of delta that is not kept for leaks, rounded down."""
    return delta * float(1 - share) * (1 - 1e-15)


@lru_cache(maxsize=256)
def _gaussian_limits(
    epsilon: float, delta: float, share: Fraction = _LEAK_SHARE
) -> tuple[int, int]:
    """Return the limits of squared shift and leaks as integers, rounded down."""
    loss = gaussian_limit(epsilon=epsilon, delta=_rest_of(delta, share))
    leaks = _typed_decimal(delta) * share
    return math.floor(_typed_decimal(loss) / _GAUSSIAN_UNIT), math.floor(
        leaks / DELTA_UNIT
    )


RULES = {
    "basic": Rule(
        "basic",
        Fraction(1, 10**6),
        lambda epsilon, delta: (epsilon, delta),
        lambda event, delta: (accounting.epsilon([event], delta=delta), delta),
        lambda loss, delta: loss,
    ),
    "gaussian": Rule(
        "gaussian",
        _GAUSSIAN_UNIT,
        lambda epsilon, delta: (
            gaussian_limit(epsilon=epsilon, delta=_rest_of(delta)),
            delta * float(_LEAK_SHARE),
        ),
        lambda event, delta: gaussian_price(event),
        lambda loss, delta: gaussian_epsilon(loss, delta=_rest_of(delta)),
    ),
}


def check_price(
    budget: Mapping[str, Any], event: Event, *, delta: float
) -> tuple[int, int]:
    """Return the price of an event that a budget can pay, or refuse.

    ``budget`` is the last row of a data set, or the like.
    """
    loss, leak = RULES[budget["rule"]].price(event, delta=delta)
    for name, price in (("loss", loss), ("delta", leak)):
        if budget[f"{name}_spent"] + price > budget[f"{name}_limit"]:
            raise BudgetExceededError(_exceeded(budget, name, price))
    return loss, leak


def check_alone(event: Event, *, epsilon: float, delta: float) -> None:
    """Refuse an event that by itself exceeds (epsilon, delta)."""
    if accounting.delta([event], epsilon=epsilon) > delta:
        needed = accounting.epsilon([event], delta=delta)
        raise BudgetExceededError(
            f"Budget exceeded: this release needs {needed:.3g} of epsilon "
            f"{epsilon:g}. Nothing was released."
        )


@dataclass(frozen=True)
class Charge:
    """What was charged, for how much, and for which request if it has a name."""

    event: Event
    price: tuple[int, int]
    request: str = ""


_LEAK_SHARES = [Fraction(share, 1000) for share in (100, 500, 900, 990, 999)]


@dataclass(frozen=True)
class Filter:
    """What may still be charged of one budget, by rule "gaussian".

    The first release decides how much of delta is kept for leaks: the least of some
    shares that admits it. One that none admits is taken if it alone is
    (epsilon, delta)-DP; nothing else fits then.

    Guarantee: the releases that are charged are (epsilon, delta)-DP together, even if
    each is chosen after seeing the earlier ones.
    Proof: docs/proofs/ledger.md, "Budgets"
    """

    epsilon: float
    delta: float
    charged: tuple[Charge, ...] = ()
    loss: int = 0
    leak: int = 0

    @classmethod
    def of(cls, *, epsilon: float, delta: float) -> Self:
        """Return a filter of nothing yet."""
        RULES["gaussian"].limits(epsilon=epsilon, delta=delta)  # or an error
        return cls(float(epsilon), float(delta))

    def with_(self, new: Sequence[Charge]) -> Self:
        """Return what it is after some charges, whose prices were checked."""
        return replace(
            self,
            charged=(*self.charged, *new),
            loss=self.loss + sum(charge.price[0] for charge in new),
            leak=self.leak + sum(charge.price[1] for charge in new),
        )

    @property
    def is_spent(self) -> bool:
        """Whether the first release took everything."""
        return bool(self.charged) and self._share is None

    @property
    def epsilon_spent(self) -> float:
        """An epsilon, at the budget's delta, for all that was charged."""
        if len(self.charged) <= 1:
            events = [charge.event for charge in self.charged]
            return accounting.epsilon(events, delta=self.delta)
        rest = _rest_of(self.delta, cast(Fraction, self._share))
        return gaussian_epsilon(float(self.loss * _GAUSSIAN_UNIT), delta=rest)

    @property
    def remaining(self) -> float:
        """The epsilon that is left, rounded down."""
        return 0.0 if self.is_spent else max(0.0, self.epsilon - self.epsilon_spent)

    def price(self, event: Event, request: str = "") -> tuple[int, int] | None:
        """Return what an event costs, None if its request was charged; or refuse it."""
        known = (c.event for c in self.charged if c.request == request != "")
        if event in known:
            return None
        price = RULES["gaussian"].price(event, delta=self.delta)
        if self.charged:
            self._check(event, price)
            return price
        if any(self._fits(price, share) for share in _LEAK_SHARES):
            return price
        check_alone(event, epsilon=self.epsilon, delta=self.delta)
        return _EVERYTHING

    @property
    def _share(self) -> Fraction | None:
        """The part of delta that the first release keeps for leaks."""
        first = self.charged[0].price
        fits = (
            s for s in _LEAK_SHARES if first != _EVERYTHING and self._fits(first, s)
        )
        return next(fits, None)

    def _fits(self, price: tuple[int, int], share: Fraction) -> bool:
        loss, leak = _gaussian_limits(self.epsilon, self.delta, share)
        return price[0] <= loss and price[1] <= leak

    def _check(self, event: Event, price: tuple[int, int]) -> None:
        share = self._share
        said = f"Budget exceeded: {self.epsilon_spent:.3g} of epsilon {self.epsilon:g} "
        if share is None:
            raise BudgetExceededError(
                f"{said}is spent, and all of delta {self.delta:g}: the first release "
                "left nothing. Give the budget a larger delta, or the first release a "
                "smaller one. Nothing was released."
            )
        if self._fits((self.loss + price[0], self.leak + price[1]), share):
            return
        most = _gaussian_limits(self.epsilon, self.delta, share)[1]
        if self.leak + price[1] > most:
            leaks = [float(n * DELTA_UNIT) for n in (self.leak, most, price[1])]
            raise BudgetExceededError(
                "Budget exceeded: {:.3g} of {:.3g} of delta is spent for leaks, this "
                "release needs {:.3g}. Give it a smaller delta. Nothing was "
                "released.".format(*leaks)
            )
        needed = accounting.epsilon([event], delta=self.delta)
        raise BudgetExceededError(
            f"{said}is spent, this release needs {needed:.3g}. Nothing was released."
        )


def _exceeded(budget: Mapping[str, Any], name: str, price: int) -> str:
    """Say which limit an event exceeds, and what to do."""
    rule = RULES[budget["rule"]]
    advice = {
        "loss": "Use a smaller epsilon; if none fits, the budget is spent.",
        "delta": "Each release spends its own delta: ask for a smaller one.",
    }
    words = {"loss": "epsilon", "delta": "delta"}
    if rule.name == "gaussian":
        words = {"loss": "loss (squared Gaussian shift)", "delta": "leaks"}
    unit = rule.unit if name == "loss" else DELTA_UNIT

    def shown(value: int) -> str:
        return f"{float(value * unit):.6g}" if value <= _LARGEST else "infinite"

    return (
        f"Budget of {budget['dataset']!r} exceeded: {shown(budget[f'{name}_spent'])} "
        f"of {words[name]} {shown(budget[f'{name}_limit'])} is spent, this release "
        f"needs {shown(price)}. {advice[name]} Nothing was released."
    )
