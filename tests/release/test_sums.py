"""The door for sums: opened once, and closed by a failure."""

from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from mapl.errors import BudgetExceededError, MechanismStateError
from mapl.features.contributions import Contributions
from mapl.features.maps import FeatureMap
from mapl.privacy.charged_dissent import ChargedDissent
from mapl.privacy.moments import Moments
from mapl.records.schema import Schema
from mapl.records.table import canonical_table
from mapl.release.account import Budget
from mapl.release.labeler import Labeler
from mapl.release.sums import Summer

X = np.random.default_rng(0).normal(size=(60, 2))


def summer(account: Any) -> Summer:
    table = canonical_table(X, Schema.of(X))
    feature_map, _ = FeatureMap.of(table)
    labels = (X[:, 0] > 0).astype(np.int64)
    records = Contributions(table, labels, feature_map, units=None, keys=None)
    return Summer(records, feature_map, account)


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
    assert asked.count(2, Fraction(1, 2)).sum() == pytest.approx(60, abs=15)
    assert repr(asked) == "Summer()"


def test_nothing_follows_a_step_that_failed() -> None:
    asked = summer(Budget(epsilon=9.0, delta=1e-5))
    asked.open(moments())
    with pytest.raises(BudgetExceededError):
        asked.count(2, Fraction(2))
    with pytest.raises(MechanismStateError, match="an earlier step failed"):
        asked.count(2, Fraction(1, 2))


def test_votes_keep_to_their_part_of_the_budget() -> None:
    votes = np.zeros((20, 5), dtype=np.int8)
    labeler = Labeler(votes, n_classes=2, account=Budget(epsilon=9.0, delta=1e-5))
    sums = moments()
    small = ChargedDissent(sigma=3, dissents=50, n_teachers=20, n_classes=2)
    with pytest.raises(BudgetExceededError, match="more than their part"):
        labeler.open_within(sums, small, part=Fraction(1, 10))
    assert sums.state()["left"] == "1"
    sigma = sums.sigma(2 * 50, Fraction(1, 10))
    fair = ChargedDissent(sigma=sigma, dissents=50, n_teachers=20, n_classes=2)
    with pytest.raises(BudgetExceededError, match="coordinates"):
        labeler.open_within(
            Moments(squared_shift=Fraction(1), coordinates=9),
            fair,
            part=Fraction(1, 10),
        )
    labeler.open_within(sums, fair, part=Fraction(1, 10))
    assert sums.state()["left"] == "9/10"
    with pytest.raises(MechanismStateError, match="open mechanism already"):
        labeler.open_within(sums, fair, part=Fraction(1, 10))
