"""NoisyMax and ConfidentNoisyMax: what one vote moves, and what is paid."""

import copy
import itertools
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from mapl import accounting
from mapl.errors import BudgetExceededError, MechanismStateError
from mapl.privacy import gaussian_prices
from mapl.privacy.answers import SoftAnswer
from mapl.privacy.events import GaussianEvent
from mapl.privacy.noise import SeededSource
from mapl.privacy.noisy_max import ConfidentNoisyMax, NoisyMax
from mapl.privacy.votes import ABSTAIN, NO_VOTE, Votes


def test_noisy_max_counts_one_class_of_two_and_all_of_more() -> None:
    votes = {
        c: Votes.from_predictions(np.full((300, 2), 1), n_classes=c) for c in (2, 3)
    }
    for n_classes, steps_a_query in ((2, 1), (3, 2)):
        mechanism = NoisyMax(sigma=1, n_queries=10, n_classes=n_classes)
        assert mechanism.event.steps == 10 * steps_a_query
        answer = mechanism.answer(votes[n_classes])
        assert answer.labels.tolist() == [1, 1]
        assert np.abs(answer.shares[:, 1] - 1).max() < 0.05
        assert mechanism.n_asked == 2


def steps_of_noisy_max(n_classes: int, n_teachers: int) -> int:
    """The most unit steps between the counts of neighbours, over all votes."""
    most, says = 0, range(NO_VOTE, n_classes)
    for rest in itertools.product(says, repeat=n_teachers - 1):
        votes = np.array([[vote, *rest] for vote in says]).T
        mechanism = NoisyMax(sigma=1, n_queries=len(says), n_classes=n_classes)
        published = mechanism.answer(Votes(votes, n_classes)).counts
        if n_classes == 2:
            assert (published.sum(axis=1) == n_teachers).all()
            published = published[:, 1:]  # the first follows from it
        moves = np.abs(published[:, None] - published[None])
        most = max(most, int(moves.max()) ** 2 * int(moves.sum(axis=2).max()))
    return most


@pytest.mark.usefixtures("_no_noise")
@pytest.mark.parametrize("n_teachers", [1, 2, 3, 4])
def test_one_vote_moves_noisy_max_by_what_is_paid(
    n_teachers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert steps_of_noisy_max(2, n_teachers) == 1
    assert steps_of_noisy_max(3, n_teachers) == 2

    def difference(counts: Any, n_teachers: int, *_: Any) -> SoftAnswer:
        """Sensitivity 2."""
        second = counts[:, 1].astype(int) - counts[:, 0]
        counts = np.stack((n_teachers - second, second), axis=1)
        return SoftAnswer(counts, counts.argmax(axis=1), counts / n_teachers)

    monkeypatch.setattr("mapl.privacy.noisy_max.publish_all", difference)
    assert steps_of_noisy_max(2, n_teachers) > 1


def test_missing_votes_favour_neither_of_two_classes() -> None:
    votes = np.full((900, 2), NO_VOTE)
    votes[:300, 0], votes[:300, 1] = 1, 0
    mechanism = NoisyMax(sigma=1, n_queries=2, n_classes=2)
    answer = mechanism.answer(Votes(votes, 2))
    assert answer.labels.tolist() == [1, 0]
    assert np.abs(answer.counts[:, 1] - [600, 300]).max() < 20


def test_noisy_max_refuses_more_than_was_paid_for_and_releases_nothing() -> None:
    mechanism = NoisyMax.for_budget(epsilon=1, delta=1e-5, n_queries=3, n_classes=2)
    votes = Votes.from_predictions(np.zeros((9, 2), dtype=int), n_classes=2)
    mechanism.answer(votes)
    with pytest.raises(BudgetExceededError, match="2 queries were asked, 1 are left"):
        mechanism.answer(votes)
    assert mechanism.n_asked == 2


def confident(**kwargs: Any) -> ConfidentNoisyMax:
    defaults: dict[str, Any] = {
        "sigma": 1,
        "check_sigma": 2,
        "threshold": 3,
        "n_queries": 3,
        "n_answers": 2,
        "n_classes": 3,
    }
    return ConfidentNoisyMax(**defaults | kwargs)


@pytest.mark.usefixtures("_no_noise")
def test_confident_max_answers_where_enough_agree_and_halts() -> None:
    message = [[0, 1, 2], [0, 1, 2], [0, 0, 2]]
    votes = Votes.from_predictions(message, n_classes=3)
    assert confident().answer(votes).tolist() == [0, ABSTAIN, 2]
    assert confident(n_answers=1).answer(votes).tolist() == [0, ABSTAIN, ABSTAIN]
    two = Votes.from_predictions([[1, 0], [1, 0], [1, 0]], n_classes=2)
    mechanism = confident(n_classes=2)
    assert mechanism.answer(two).tolist() == [1, 0]
    assert mechanism.event.steps == 2
    with pytest.raises(BudgetExceededError):
        mechanism.answer(two)
    with pytest.raises(MechanismStateError):
        copy.copy(mechanism)
    assert "threshold=3" in repr(mechanism)


def test_the_top_count_moves_by_at_most_one() -> None:
    rest = [0, 1]
    for a, b in itertools.product(range(NO_VOTE, 3), repeat=2):
        tops = [
            Votes.from_predictions(
                [[v], *([r] for r in rest)], n_classes=3
            ).counts.max()
            for v in (a, b)
        ]
        assert abs(int(tops[0]) - int(tops[1])) <= 1


def test_confident_max_pays_for_checks_and_answers() -> None:
    event = confident(sigma=40, check_sigma=150, n_queries=640, n_answers=286).event
    parts = [
        GaussianEvent(sigma=Fraction(150), steps=640),
        GaussianEvent(sigma=Fraction(40), steps=2 * 286),
    ]
    together = accounting.epsilon([event], delta=1e-5)
    assert together == accounting.epsilon(parts, delta=1e-5)
    assert 2.4 < together < 2.6  # by Renyi divergence, as in PATE, 3.16
    price, leak = gaussian_prices.gaussian_price(event)
    assert price == pytest.approx(640 / 150**2 + 572 / 40**2, rel=0.01)
    assert leak < 1e-11
    assert accounting.renyi([event], order=2) == accounting.renyi(parts, order=2)
    seeded = confident(source=SeededSource(0))
    assert accounting.epsilon([seeded.event], delta=1e-5) == np.inf
    assert "NOT PRIVATE" in repr(seeded)


class ForgetsAnswers(ConfidentNoisyMax):
    """Planted bug: each batch may have all answers."""

    def answer(self, votes: Votes) -> Any:
        self.n_answered = 0
        return super().answer(votes)


def most_answers(kind: Any) -> int:
    """Over all votes of three teachers on three queries, asked one after the other."""
    most = 0
    for ballots in itertools.product(range(2), repeat=3):
        mechanism = kind(
            sigma=1, check_sigma=1, threshold=3, n_queries=3, n_answers=2, n_classes=2
        )
        batches = [Votes.from_predictions([[v]] * 3, n_classes=2) for v in ballots]
        answers = [int(mechanism.answer(batch)[0]) for batch in batches]
        most = max(most, sum(answer != ABSTAIN for answer in answers))
    return most


@pytest.mark.usefixtures("_no_noise")
def test_no_more_answers_than_were_paid_for_and_the_check_catches_more() -> None:
    assert most_answers(ConfidentNoisyMax) == 2
    assert most_answers(ForgetsAnswers) == 3
