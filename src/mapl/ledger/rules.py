"""How prices of releases are measured and added up, and whether a release fits.

Prices are integers, rounded up; limits are integers, rounded down.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any

from mapl.errors import BudgetExceededError, ParameterError, positive, probability
from mapl.privacy import accounting
from mapl.privacy.events import Event
from mapl.privacy.gaussian_prices import (
    gaussian_epsilon,
    gaussian_limit,
    gaussian_price,
)

DELTA_UNIT = Fraction(1, 10**18)
_LARGEST = 2**62  # of a stored integer
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


def _without_leaks(delta: float) -> float:
    """The part of delta that is not kept for leaks, rounded down."""
    return delta * float(1 - _LEAK_SHARE) * (1 - 1e-15)


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
        Fraction(1, 10**12),
        lambda epsilon, delta: (
            gaussian_limit(epsilon=epsilon, delta=_without_leaks(delta)),
            delta * float(_LEAK_SHARE),
        ),
        lambda event, delta: gaussian_price(event),
        lambda loss, delta: gaussian_epsilon(loss, delta=_without_leaks(delta)),
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


class Filter:
    """What may still be charged of one budget: rule "gaussian", and the first release
    may take all.

    A first release that the rule would refuse, since it keeps a part of delta for
    leaks, is taken if it alone is (epsilon, delta)-DP; nothing else fits then.

    Guarantee: the releases that are added are (epsilon, delta)-DP together, even if
    each is chosen after seeing the earlier ones.
    Proof: docs/proofs/ledger.md, "Budgets"
    """

    def __init__(self, *, epsilon: float, delta: float) -> None:
        self._rule = RULES["gaussian"]
        limits = self._rule.limits(epsilon=epsilon, delta=delta)
        self.epsilon, self.delta = float(epsilon), float(delta)
        self._row: dict[str, Any] = {"rule": "gaussian", "dataset": ""}
        self._row |= {"loss_spent": 0, "delta_spent": 0}
        self._row |= {"loss_limit": limits[0], "delta_limit": limits[1]}
        self.charged: list[tuple[Event, tuple[int, int]]] = []

    @property
    def events(self) -> list[Event]:
        """What was charged."""
        return [event for event, _ in self.charged]

    @property
    def epsilon_spent(self) -> float:
        """An epsilon, at the budget's delta, for all that was charged."""
        if len(self.charged) == 1:
            return accounting.epsilon(self.events, delta=self.delta)
        return self._rule.epsilon_spent(self._row["loss_spent"], delta=self.delta)

    def price(self, event: Event) -> tuple[int, int]:
        """Return what an event costs, or refuse it."""
        try:
            return check_price(self._row, event, delta=self.delta)
        except BudgetExceededError:
            if self.charged:
                raise BudgetExceededError(self._exceeded(event)) from None
        check_alone(event, epsilon=self.epsilon, delta=self.delta)
        return self._row["loss_limit"], self._row["delta_limit"]

    def add(self, event: Event, price: tuple[int, int]) -> None:
        """Charge an event, whose price was checked."""
        self._row["loss_spent"] += price[0]
        self._row["delta_spent"] += price[1]
        self.charged.append((event, price))

    def _exceeded(self, event: Event) -> str:
        needed = accounting.epsilon([event], delta=self.delta)
        return (
            f"Budget exceeded: {self.epsilon_spent:.3g} of epsilon {self.epsilon:g} is "
            f"spent, this release needs {needed:.3g}. Nothing was released."
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
