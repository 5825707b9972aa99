import itertools
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from mapl import accounting
from mapl.errors import BudgetExceededError, ParameterError
from mapl.privacy.answers import SoftAnswer
from mapl.privacy.charged_dissent import ChargedDissent
from mapl.privacy.events import GaussianEvent
from mapl.privacy.noisy_max import NoisyMax
from mapl.privacy.votes import ABSTAIN, NO_VOTE, Votes


def means(make: Any, votes: tuple[int, ...], guesses: tuple[Any, ...]) -> Any:
    """What the real code publishes without noise, one query after the other.

    The column of the guess is filled in from the others, so it is left out.
    """
    mechanism, published = make(), []
    for vote, guess in zip(votes, guesses, strict=True):
        batch = Votes.from_predictions([[vote], [0]], n_classes=mechanism.n_classes)
        counts = mechanism.answer(batch, None if guess is None else [guess]).counts
        if guess is not None:
            counts[0, guess] = 0
        published.append(counts[0])
    return np.concatenate(published)


def most_steps(make: Any, n_classes: int, n_queries: int) -> int:
    """The most unit steps between two runs that differ in one teacher's votes.

    Over all its votes in both runs and all guesses: a guess may be any function of
    the history, so every sequence of guesses is tried.
    """
    most = 0
    for guesses in itertools.product([None, *range(n_classes)], repeat=n_queries):
        says = itertools.product(range(NO_VOTE, n_classes), repeat=n_queries)
        runs = np.array([means(make, votes, guesses) for votes in says])
        moves = np.abs(runs[:, None] - runs[None])
        assert moves.max() <= 1
        most = max(most, int(moves.sum(axis=2).max()))
    return most


def dissent(dissents: int, n_classes: int = 2) -> Any:
    return lambda: ChargedDissent(
        sigma=1, dissents=dissents, n_teachers=2, n_classes=n_classes
    )


@pytest.mark.usefixtures("_no_noise")
@pytest.mark.parametrize(
    ("dissents", "n_classes", "n_queries"), [(1, 2, 3), (1, 3, 2), (2, 2, 3)]
)
def test_unit_steps_never_exceed_twice_the_dissents_and_reach_it(
    dissents: int, n_classes: int, n_queries: int
) -> None:
    """A guess may be any function of the history: every sequence is tried."""
    found = most_steps(dissent(dissents, n_classes), n_classes, n_queries)
    assert found == min(2 * dissents, n_queries * 2)


class PaysOnceMore(ChargedDissent):
    """Planted bug."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._left += 1


class NeverSilent(ChargedDissent):
    """Planted bug: a teacher that has nothing left still counts."""

    def _charge(self, votes: Votes, guesses: Any) -> Any:
        counts = super()._charge(votes, guesses)
        self._left = np.maximum(self._left, 1)
        return counts


class ForgetsPayments(ChargedDissent):
    """Planted bug: each batch starts with all dissents."""

    def _charge(self, votes: Votes, guesses: Any) -> Any:
        self._left[:] = self.dissents
        return super()._charge(votes, guesses)


@pytest.mark.usefixtures("_no_noise")
@pytest.mark.parametrize("bug", [PaysOnceMore, NeverSilent, ForgetsPayments])
def test_the_check_catches(bug: Any) -> None:
    make = lambda: bug(sigma=1, dissents=1, n_teachers=2, n_classes=2)  # noqa: E731
    assert most_steps(make, 2, 3) > 2


@pytest.mark.usefixtures("_no_noise")
def test_the_check_catches_a_guess_from_unpublished_votes() -> None:
    """What a caller must not do. The first of three teachers has other votes; the
    guess is the true winner, so all that is published moves, by more than 1.
    """
    published = []
    for first in ([1, 1, 1], [0, 0, 0]):
        votes = Votes.from_predictions([first, [1, 1, 1], [0, 0, 0]], n_classes=2)
        mechanism = ChargedDissent(sigma=1, dissents=1, n_teachers=3, n_classes=2)
        published.append(mechanism.answer(votes, votes.winner).counts)
    assert np.abs(published[0] - published[1]).max() > 1
    assert np.abs(published[0] - published[1]).sum() > 2 * mechanism.dissents


def test_every_cell_has_noise_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Any] = []

    def spy(sigma: Any, size: Any, *, source: Any) -> Any:
        drawn.append((sigma, size))
        return np.arange(np.prod(size)).reshape(size)  # no two alike

    monkeypatch.setattr("mapl.privacy.noisy_counts.discrete_gaussian", spy)
    votes = Votes.from_predictions(np.zeros((5, 4), dtype=int), n_classes=3)
    mechanism = ChargedDissent(
        sigma=Fraction(7, 2), dissents=9, n_teachers=5, n_classes=3
    )
    counts = mechanism.answer(votes, guess=[0, 0, 1, 2]).counts
    assert drawn == [(Fraction(7, 2), (8,))]  # for each class but the guess
    assert counts.tolist() == [
        [5 - 1, 0, 1],
        [5 - 5, 2, 3],
        [5 + 4, 5 - (9 + 5), 5],
        [5 + 6, 7, 5 - (11 + 7)],
    ]


def test_the_event_is_two_steps_a_dissent_and_less_noise_is_not_certified() -> None:
    mechanism = ChargedDissent.for_budget(
        epsilon=1, delta=1e-5, dissents=50, n_teachers=10, n_classes=4
    )
    assert mechanism.event == GaussianEvent(sigma=mechanism.sigma, steps=100)
    assert accounting.delta([mechanism.event], epsilon=1) <= 1e-5
    less = GaussianEvent(sigma=mechanism.sigma * Fraction(99, 100), steps=100)
    assert accounting.delta([less], epsilon=1) > 1e-5


# Charging ---------------------------------------------------------------------------


@pytest.mark.usefixtures("_no_noise")
@pytest.mark.parametrize("with_guess", [True, False])
def test_batches_are_charged_as_one_by_one(
    monkeypatch: pytest.MonkeyPatch, with_guess: bool
) -> None:
    rng = np.random.default_rng(0)
    predictions = rng.integers(-1, 3, size=(20, 300)).astype(np.int8)
    guess = rng.integers(0, 3, size=300)
    naive_left, naive = np.full(20, 30), []
    for query in range(300):
        counts = np.zeros(3, dtype=int)
        for j, vote in enumerate(predictions[:, query]):
            agrees = with_guess and vote == guess[query]
            if vote != NO_VOTE and not agrees and naive_left[j] > 0:
                counts[vote] += 1
                naive_left[j] -= 1
        if with_guess:
            counts[guess[query]] = 20 - counts.sum()
        naive.append(counts)

    def run(sizes: list[int]) -> Any:
        mechanism = ChargedDissent(sigma=1, dissents=30, n_teachers=20, n_classes=3)
        found, at = [], 0
        for size in sizes:
            batch = Votes.from_predictions(predictions[:, at : at + size], n_classes=3)
            part = guess[at : at + size] if with_guess else None
            found.append(mechanism.answer(batch, part).counts)
            at += size
        assert mechanism.state() == {"left": naive_left.tolist(), "asked": 300}
        return np.concatenate(found)

    assert (run([300]) == naive).all()
    assert (run([1] * 300) == naive).all()
    monkeypatch.setattr("mapl.privacy.charged_dissent._BLOCK_VOTES", 100)
    assert (run([7, 200, 0, 93]) == naive).all()


def test_state_is_restored_exactly_and_never_adds_dissents() -> None:
    make = dissent(5)
    first = make()
    first.answer(Votes.from_predictions([[1, 1], [0, 1]], n_classes=2), [0, 0])
    second = make()
    second.resume(first.state())
    assert second.state() == first.state() == {"left": [3, 4], "asked": 2}
    second.resume({"left": [5, 5], "asked": 0})
    assert second.state() == {"left": [3, 4], "asked": 2}
    for bad in ([5], [6, 5], [-1, 5]):
        with pytest.raises(ParameterError, match="from 0 to dissents"):
            second.resume({"left": bad, "asked": 2})


# Refusals ---------------------------------------------------------------------------


def noisy_max() -> Any:
    return NoisyMax(sigma=3, n_queries=5, n_classes=2)


@pytest.mark.parametrize(
    ("predictions", "n_classes", "guess", "message"),
    [
        ([[0], [1]], 3, None, "votes must have n_classes = 2, got 3"),
        ([[0]], 2, None, "n_teachers = 2 teachers, got 1"),
        ([[0], [1]], 2, [0, 1], r"guess must hold 1 class indices, got int64 of shape"),
        ([[0], [1]], 2, [0.0], "guess must hold 1 class indices, got float64"),
        ([[0], [1]], 2, [2], "between 0 and n_classes - 1 = 1, got 2 to 2"),
        ([[0], [1]], 2, [-1], "between 0 and n_classes - 1 = 1, got -1 to -1"),
    ],
)
def test_bad_questions_are_refused_and_cost_nothing(
    predictions: Any, n_classes: int, guess: Any, message: str
) -> None:
    mechanism = dissent(3)()
    votes = Votes.from_predictions(predictions, n_classes=n_classes)
    with pytest.raises(ParameterError, match=message):
        mechanism.answer(votes, guess)
    assert mechanism.state() == {"left": [3, 3], "asked": 0}


def test_an_empty_batch_returns_no_labels() -> None:
    votes = Votes.from_predictions(np.empty((2, 0), dtype=int), n_classes=2)
    assert dissent(3)().answer(votes, np.empty(0, dtype=int)).labels.size == 0
    assert noisy_max().answer(votes).labels.size == 0


# A fixed number of queries ----------------------------------------------------------


@pytest.mark.usefixtures("_no_noise")
@pytest.mark.parametrize(("n_classes", "n_queries"), [(2, 3), (3, 2)])
def test_a_fixed_number_of_queries_costs_less(n_classes: int, n_queries: int) -> None:
    def make() -> ChargedDissent:
        return ChargedDissent(
            sigma=1,
            dissents=9,
            n_teachers=2,
            n_classes=n_classes,
            n_queries=n_queries,
        )

    most = 0
    for guesses in itertools.product(range(n_classes), repeat=n_queries):
        says = itertools.product(range(NO_VOTE, n_classes), repeat=n_queries)
        runs = np.array([means(make, votes, guesses) for votes in says])
        most = max(most, int(np.abs(runs[:, None] - runs[None]).sum(axis=2).max()))
    assert most == make().event.steps == n_queries * min(2, n_classes - 1)


def test_a_fixed_number_of_queries_is_kept() -> None:
    def make(n_queries: int | None = 3) -> ChargedDissent:
        return ChargedDissent.for_budget(
            epsilon=1,
            delta=1e-5,
            dissents=50,
            n_teachers=4,
            n_classes=2,
            n_queries=n_queries,
        )

    assert make().event.steps == 3
    assert make(1000).event.steps == make(None).event.steps == 100
    votes = Votes.from_predictions(np.zeros((4, 2), dtype=int), n_classes=2)
    mechanism = make()
    with pytest.raises(ParameterError, match="guess must be given"):
        mechanism.answer(votes)
    mechanism.answer(votes, [0, 1])
    again = make()
    again.resume(mechanism.state())
    for one in (mechanism, again):
        with pytest.raises(BudgetExceededError, match="2 queries were asked, 1 are"):
            one.answer(votes, [0, 1])


def test_guesses_come_from_arrays_models_and_functions() -> None:
    from sklearn.dummy import DummyClassifier

    points = np.zeros((2, 1))
    model = DummyClassifier(strategy="constant", constant=1).fit(points, [0, 1])
    votes = Votes.from_predictions(np.ones((4, 2), dtype=int), n_classes=2)
    for guess in ([1, 1], model, lambda X: np.ones(len(X), dtype=int)):
        mechanism = ChargedDissent(sigma=1, dissents=1, n_teachers=4, n_classes=2)
        mechanism.answer(votes, guess, points=points)
        assert mechanism.state()["left"] == [1, 1, 1, 1]


def test_a_small_lead_is_an_abstention() -> None:
    counts = np.array([[90, 10, 0], [40, 60, 0], [33, 33, 34]])
    answer = SoftAnswer(counts, counts.argmax(axis=1), counts / 100)
    assert answer.sure(0).tolist() == [0, 1, 2]
    assert answer.sure(20).tolist() == [0, 1, ABSTAIN]
    assert answer.sure(21).tolist() == [0, ABSTAIN, ABSTAIN]


# ConfidentNoisyMax ------------------------------------------------------------------


@pytest.mark.usefixtures("_no_noise")
def test_the_check_catches_a_fixed_number_of_queries_without_a_guess() -> None:
    paid = ChargedDissent(
        sigma=1, dissents=9, n_teachers=2, n_classes=2, n_queries=2
    ).event.steps
    assert most_steps(dissent(9), n_classes=2, n_queries=2) > paid
