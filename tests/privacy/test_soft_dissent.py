"""Probabilities against a guess: what a teacher can move, by enumeration."""

import itertools
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mapl import accounting
from mapl.errors import MechanismStateError, ParameterError
from mapl.privacy import soft_dissent
from mapl.privacy.soft_dissent import SoftDissent, expected_price, on_grid

SMALL = 4  # integer steps of a probability of 1, in the enumerations


@pytest.fixture
def _small_grid(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(soft_dissent, "GRID", SMALL)


@pytest.fixture
def _silent(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(sigma: Any, size: Any, *, source: Any) -> Any:
        return np.zeros(size, dtype=np.int64)

    monkeypatch.setattr(soft_dissent, "discrete_gaussian", nothing)


def opinions(n_classes: int) -> list[tuple[int, ...]]:
    """All probabilities on the small grid, and no opinion."""
    steps = itertools.product(range(SMALL + 1), repeat=n_classes)
    return [(0,) * n_classes, *(s for s in steps if sum(s) == SMALL)]


def largest_shift(make: Any, n_classes: int, n_queries: int) -> int:
    """The largest squared distance of what one teacher publishes, over all of its
    opinions, those of its neighbour, and all guesses.
    """
    own = np.array(list(itertools.product(opinions(n_classes), repeat=n_queries)))
    worst = 0
    for guesses in itertools.product(opinions(n_classes)[1:], repeat=n_queries):
        guess = np.array(guesses)
        counted = ~soft_dissent._left_out(guess)
        sums = []
        for row in own:
            published = make().answer(row[None], guess)
            sums.append(
                (np.rint((published - guess / SMALL) * SMALL) * counted).ravel()
            )
        table = np.unique(sums, axis=0)
        apart = ((table[:, None] - table[None]) ** 2).sum(axis=2)
        worst = max(worst, int(apart.max()))
    return worst


def dissent(stock: int, n_classes: int, kind: type[SoftDissent] = SoftDissent) -> Any:
    return lambda: kind(
        sigma=Fraction(100),
        stock=stock,
        n_teachers=1,
        n_classes=n_classes,
        n_queries=9,
    )


@pytest.mark.usefixtures("_small_grid", "_silent")
@pytest.mark.parametrize(
    ("stock", "n_classes", "n_queries"),
    [(1, 2, 2), (4, 2, 2), (8, 2, 2), (9, 2, 2), (16, 2, 2), (16, 3, 1), (32, 3, 1)],
)
def test_squared_shifts_never_exceed_twice_the_stock(
    stock: int, n_classes: int, n_queries: int
) -> None:
    found = largest_shift(dissent(stock, n_classes), n_classes, n_queries)
    assert found <= 2 * stock
    if (stock, n_classes) in ((8, 2), (16, 3)):
        assert found == 2 * stock  # and they reach it


class PaysHalf(SoftDissent):
    """Planted bug: nobody pays twice where negative entries are possible."""

    def _charge(self, shares: Any, guess: Any) -> Any:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                soft_dissent, "_may_be_negative", lambda g: np.zeros(len(g), dtype=int)
            )
            return super()._charge(shares, guess)


class NeverSilent(SoftDissent):
    """Planted bug: a teacher that cannot pay still counts."""

    def _charge(self, shares: Any, guess: Any) -> Any:
        self._left[:] = 10**6
        return super()._charge(shares, guess)


@pytest.mark.usefixtures("_small_grid", "_silent")
@pytest.mark.parametrize("bug", [PaysHalf, NeverSilent])
def test_the_check_catches(bug: Any) -> None:
    assert largest_shift(dissent(4, 2, bug), 2, 2) > 8


@pytest.mark.usefixtures("_small_grid", "_silent")
def test_paying_twice_only_where_oneself_is_negative_would_not_do() -> None:
    """The price is a property of the guess: a teacher at +4 pays 16, one at -1 pays 2;
    they are 25 apart, and half of that exceeds what both pay on average.
    """
    guess = np.array([[3, 1]])
    own = np.array([[[0, 4]]]), np.array([[[4, 0]]])
    prices = [int(expected_price(shares, guess)[0]) for shares in own]
    assert prices == [18, 2]
    naive = 9 + 2
    assert (4 - 0) ** 2 > naive > 0
    assert sum(prices) >= (4 - 0) ** 2


@given(st.data())
def test_batches_are_charged_as_one_by_one(data: st.DataObject) -> None:
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    shares = on_grid(rng.dirichlet(np.ones(3), size=(5, 12)))
    shares[rng.random((5, 12)) < 0.1] = 0
    guess = on_grid(rng.dirichlet(np.ones(3), size=12)).astype(np.int64)
    stock = data.draw(st.integers(1, 40_000))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            soft_dissent, "discrete_gaussian", lambda _, n, **__: np.zeros(n, np.int64)
        )

        def run(sizes: list[int]) -> Any:
            mechanism = SoftDissent(
                sigma=Fraction(9), stock=stock, n_teachers=5, n_classes=3, n_queries=12
            )
            ends = np.cumsum(sizes)
            parts = [
                mechanism.answer(shares[:, e - s : e], guess[e - s : e])
                for s, e in zip(sizes, ends, strict=True)
            ]
            return np.concatenate(parts), mechanism.state()

        whole, state = run([12])
        parts, again = run([3, 4, 5])
    np.testing.assert_allclose(whole, parts)
    assert state == again


@given(st.data())
def test_every_opinion_adds_up_or_is_none(data: st.DataObject) -> None:
    numbers = st.floats(allow_nan=True, allow_infinity=True) | st.floats(0, 1)
    rows = data.draw(st.lists(st.tuples(numbers, numbers, numbers), min_size=1))
    found = on_grid(np.array(rows))
    assert set(found.sum(axis=1).tolist()) <= {0, soft_dissent.GRID}
    alone = np.array([on_grid(np.array([row]))[0] for row in rows])
    np.testing.assert_array_equal(found, alone)


def test_its_event_covers_twice_the_stock() -> None:
    mechanism = dissent(10**4, 3)()
    assert mechanism.event.squared_shift == Fraction(2 * 10**4, 100**2 - 4)
    assert mechanism.event.coordinates == 18
    assert 0 < accounting.epsilon([mechanism.event], delta=1e-5) < 12
    assert repr(mechanism).startswith("SoftDissent(sigma=100, stock=10000")


def test_noise_is_fresh_for_each_class_but_one(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Any] = []

    def spy(sigma: Any, size: Any, *, source: Any) -> Any:
        drawn.append((sigma, size))
        return np.arange(size)

    monkeypatch.setattr(soft_dissent, "discrete_gaussian", spy)
    guess = on_grid(np.array([[0.6, 0.2, 0.2], [0.1, 0.8, 0.1]])).astype(np.int64)
    found = dissent(10, 3)().answer(np.zeros((1, 2, 3), dtype=np.uint8), guess)
    assert drawn == [(Fraction(100), 4)]
    np.testing.assert_allclose(found.sum(axis=1), 1.0)


def test_state_is_restored_and_never_adds_stock() -> None:
    first, second = dissent(5000, 2)(), dissent(5000, 2)()
    shares, guess = np.array([[[14, 50]]]), np.array([[50, 14]])
    first.answer(shares, guess)
    assert first.state()["left"] == [5000 - 2 * 36**2]
    second.resume(first.state())
    assert second.state() == first.state()
    second.resume(dissent(5000, 2)().state())
    assert second.state() == first.state()
    with pytest.raises(ParameterError, match="from 0 to stock"):
        second.resume({"left": [5001], "queries_left": 1})
    with pytest.raises(MechanismStateError):
        second.__reduce__()


@pytest.mark.parametrize(
    ("shares", "guess", "message"),
    [
        (np.zeros((2, 1, 2), int), np.array([[64, 0]]), "shares must be"),
        (np.zeros((1, 1, 2)), np.array([[64, 0]]), "shares must be"),
        (np.zeros((1, 1, 2), int), np.array([[64.0, 0]]), "guess must hold"),
        (np.zeros((1, 1, 2), int), np.array([[65, -1]]), "add up to 64"),
        (np.zeros((1, 1, 2), int), np.array([[60, 0]]), "add up to 64"),
        (np.zeros((1, 1, 2), int), np.array([[2**63 - 1, 65]]), "add up to 64"),
    ],
)
def test_bad_questions_are_refused(shares: Any, guess: Any, message: str) -> None:
    mechanism = dissent(5, 2)()
    with pytest.raises(ParameterError, match=message):
        mechanism.answer(shares, guess)
    assert mechanism.state() == {"left": [5], "queries_left": 9}


def test_shares_that_overflow_add_nothing() -> None:
    mechanism = SoftDissent(
        sigma=Fraction(3), stock=1, n_teachers=1, n_classes=3, n_queries=1
    )
    huge = np.array([[[2**33 + 64, 2**63 - 2**32, 2**63 - 2**32]]], dtype=np.uint64)
    shares = mechanism.answer(huge, np.array([[64, 0, 0]]))
    assert np.abs(shares).max() < 2


def test_more_queries_than_declared_are_refused() -> None:
    guess = np.tile([64, 0], (10, 1))
    with pytest.raises(ParameterError, match="9 more queries"):
        dissent(5, 2)().answer(np.zeros((1, 10, 2), dtype=int), guess)
    with pytest.raises(ParameterError, match=r"4\.16"):
        SoftDissent(sigma=Fraction(2), stock=5, n_teachers=1, n_classes=2, n_queries=1)
