"""Who is charged, and when."""

import copy
import pickle
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction

import numpy as np
import pytest

import mapl
from mapl.errors import BudgetExceededError, MechanismStateError
from mapl.privacy.calibration import least_sigma
from mapl.privacy.events import GaussianEvent
from mapl.release.account import Budget, OneRelease
from mapl.release.labeler import Labeler


def test_budget_refuses_what_is_too_much_and_changes_nothing() -> None:
    budget = Budget(epsilon=1.0, delta=1e-5)
    budget.charge(
        GaussianEvent(sigma=least_sigma(epsilon=0.9, delta=1e-5, steps=10), steps=10)
    )
    spent = budget.epsilon_spent
    assert spent == pytest.approx(0.9, rel=0.01)
    with pytest.raises(
        BudgetExceededError, match=r"0.9 of epsilon 1 is spent.*Nothing was"
    ):
        budget.charge(
            GaussianEvent(
                sigma=least_sigma(epsilon=0.9, delta=1e-5, steps=10),
                steps=10,
            )
        )
    assert budget.epsilon_spent == spent


def test_one_release_is_one() -> None:
    account = OneRelease(epsilon=1, delta=1e-5)
    event = GaussianEvent(sigma=Fraction(40), steps=50)
    account.charge(event)
    with pytest.raises(MechanismStateError, match="its one release"):
        account.charge(event)
    assert account.events == [event]


def test_the_door_charges_before_anything_is_drawn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    budget = Budget(epsilon=0.5, delta=1e-5)
    labeler = Labeler(np.zeros((5, 3), dtype=np.int8), n_classes=2, account=budget)
    expensive = mapl.NoisyMax(sigma=1, n_queries=3, n_classes=2)
    monkeypatch.setattr("mapl.privacy.noisy_counts.discrete_gaussian", None)
    with pytest.raises(BudgetExceededError):
        labeler.open(expensive)
    assert budget.events == []
    assert repr(labeler) == "Labeler(3 public points)"


def test_threads_and_copies_cannot_overspend_a_budget() -> None:
    budget = Budget(epsilon=1.0, delta=1e-5)
    events = [GaussianEvent(sigma=Fraction(40 + i), steps=50) for i in range(8)]

    def charge(event: GaussianEvent) -> bool:
        try:
            budget.charge(event)
        except BudgetExceededError:
            return False
        return True

    with ThreadPoolExecutor(8) as threads:
        taken = list(threads.map(charge, events))
    assert 0 < sum(taken) < 8
    assert budget.epsilon_spent <= 1
    for copied in (copy.deepcopy, pickle.dumps):
        with pytest.raises(MechanismStateError, match="cannot be copied"):
            copied(budget)
