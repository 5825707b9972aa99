"""The door: what a labeler refuses."""

import numpy as np
import pytest

from mapl import ChargedDissent, MechanismStateError, NoisyMax, ParameterError
from mapl.privacy.noisy_counts import NoisyCount
from mapl.release.account import Budget, open_account
from mapl.release.labeler import Labeler, release_count

VOTES = np.zeros((5, 3), dtype=np.int8)
ROWS = np.arange(3)


def labeler() -> Labeler:
    budget = Budget(epsilon=50, delta=1e-5)
    return Labeler(VOTES, n_classes=2, account=budget)


def test_a_question_of_the_wrong_kind_is_refused() -> None:
    closed = labeler()
    for ask in (lambda: closed.labels(ROWS), lambda: closed.shares(ROWS, ROWS * 0)):
        with pytest.raises(MechanismStateError, match="needs an open"):
            ask()
    of_shares, of_labels = labeler(), labeler()
    of_shares.open(ChargedDissent(sigma=9, dissents=3, n_teachers=5, n_classes=2))
    of_labels.open(NoisyMax(sigma=9, n_queries=3, n_classes=2))
    with pytest.raises(MechanismStateError, match=r"labels\(\) needs an open Sparse"):
        of_shares.labels(ROWS)
    with pytest.raises(MechanismStateError, match=r"shares\(\) needs an open Charged"):
        of_labels.shares(ROWS, ROWS * 0)
    assert of_labels.labels(ROWS).shape == (3,)  # a refused question costs nothing
    with pytest.raises(MechanismStateError, match="one batch only"):
        of_labels.labels(ROWS)


def test_a_labeler_opens_one_mechanism() -> None:
    opened = labeler()
    opened.open(NoisyMax(sigma=9, n_queries=3, n_classes=2))
    with pytest.raises(MechanismStateError, match="has an open mechanism already"):
        opened.open(NoisyMax(sigma=9, n_queries=3, n_classes=2))
    assert len(opened.account.events) == 1


def test_a_count_is_charged_before_it_is_counted() -> None:
    budget = Budget(epsilon=50, delta=1e-5)

    def count() -> int:
        assert len(budget.events) == 1
        return 10**6

    noisy = release_count(NoisyCount(sigma=3), count, account=budget)
    assert abs(noisy - 10**6) < 100


def test_a_ledger_and_a_data_set_go_together() -> None:
    keys = np.zeros((1, 2), dtype=np.uint64)
    for ledger, dataset in (("sqlite:///x.db", None), (None, "people")):
        with pytest.raises(ParameterError, match="must be given together"):
            open_account(
                epsilon=1,
                delta=1e-5,
                ledger=ledger,
                dataset=dataset,
                request=b"",
                note="",
                seed=0,
                keys=keys,
                assignment=lambda seed: b"",
            )
