"""The door for sums: opened once, and closed by a failure."""

from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from mapl.errors import BudgetExceededError, MechanismStateError
from mapl.features.contributions import Contributions
from mapl.features.maps import FeatureMap
from mapl.privacy.moments import Moments
from mapl.privacy.questions import SoftQuestion
from mapl.privacy.soft_dissent import GRID
from mapl.records.schema import Schema
from mapl.records.table import canonical_table
from mapl.release.account import Budget
from mapl.release.sums import Summer

X = np.random.default_rng(0).normal(size=(60, 2))


def summer(account: Any) -> Summer:
    table = canonical_table(X, Schema.of(X))
    feature_map, _ = FeatureMap.of(table)
    labels = (X[:, 0] > 0).astype(np.int64)
    records = Contributions(table, labels, feature_map, units=None, keys=None)
    return Summer(records, account)


def moments() -> Moments:
    return Moments(squared_shift=Fraction(1), coordinates=100)


def test_it_is_opened_once_and_charged_then() -> None:
    account = Budget(epsilon=9.0, delta=1e-5)
    asked = summer(account)
    with pytest.raises(MechanismStateError, match="no open mechanism"):
        asked.count(2, Fraction(1, 2))
    asked.open(moments())
    assert len(account.events) == 1
    with pytest.raises(MechanismStateError, match="open mechanism already"):
        asked.open(moments())
    counts, sigma = asked.count(2, Fraction(1, 2))
    assert counts.sum() == pytest.approx(60, abs=15)
    assert 1 < sigma < 2
    assert repr(asked) == "Summer()"


def test_nothing_follows_a_step_that_failed() -> None:
    asked = summer(Budget(epsilon=9.0, delta=1e-5))
    asked.open(moments())
    with pytest.raises(BudgetExceededError):
        asked.count(2, Fraction(2))
    with pytest.raises(MechanismStateError, match="an earlier step failed"):
        asked.count(2, Fraction(1, 2))


def test_soft_votes_keep_to_their_part_of_the_budget() -> None:
    asked = summer(Budget(epsilon=9.0, delta=1e-5))
    sums = moments()
    asked.open(sums)
    shares = np.full((20, 5, 2), GRID // 2, dtype=np.uint8)
    guess = np.tile([GRID, 0], (5, 1))
    question = SoftQuestion(guess, 10**4, Fraction(1, 10))
    answered, noisy = asked.soft_votes(shares, question)
    assert answered is question
    assert noisy.total.shape == (5, 2)
    assert sums.state()["left"] == "9/10"
    assert noisy.sigma == float(sums.sigma(2 * 10**4, Fraction(1, 10))) / GRID / 20
    with pytest.raises(BudgetExceededError):
        asked.soft_votes(shares, SoftQuestion(guess, 10**4, Fraction(1)))
