import itertools
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mapl.errors import ParameterError
from mapl.privacy.votes import ABSTAIN, NO_VOTE, Votes


def winner_of(row: tuple[int, ...], n_classes: int) -> int:
    counts = [row.count(c) for c in range(n_classes)]
    return counts.index(max(counts))


@pytest.mark.parametrize(
    ("n_classes", "n_teachers"), [(2, 1), (2, 5), (2, 6), (3, 4), (4, 3)]
)
def test_distance_by_brute_force_over_all_tables(
    n_classes: int, n_teachers: int
) -> None:
    """Ties, third classes, missing votes: how many votes must change, less one."""
    tables = list(itertools.product(range(NO_VOTE, n_classes), repeat=n_teachers))
    votes = Votes.from_predictions(np.array(tables).T, n_classes=n_classes)
    winners = np.array([winner_of(row, n_classes) for row in tables])
    assert (votes.winner == winners).all()
    rows = np.array(tables)
    for row, winner, distance in zip(rows, winners, votes.distance, strict=True):
        changed = (rows[winners != winner] != row).sum(axis=1)
        assert distance == changed.min() - 1


@pytest.mark.parametrize(("n_classes", "n_teachers"), [(2, 5), (2, 6), (3, 4), (4, 3)])
def test_distance_moves_by_one_and_is_zero_where_winners_differ(
    n_classes: int, n_teachers: int
) -> None:
    choices = range(NO_VOTE, n_classes)
    for row in itertools.product(choices, repeat=n_teachers):
        others = np.array([(vote, *row[1:]) for vote in choices]).T
        votes = Votes.from_predictions(others, n_classes=n_classes)
        assert np.ptp(votes.distance) <= 1
        assert np.ptp(votes.margin_distance) <= 2
        if np.ptp(votes.winner) > 0:
            # Every pair with different winners, not only the extremes.
            for i, j in itertools.combinations(range(len(choices)), 2):
                if votes.winner[i] != votes.winner[j]:
                    assert votes.distance[i] == votes.distance[j] == 0
                    assert max(votes.margin_distance[[i, j]]) <= 1


@given(
    st.integers(1, 60).flatmap(
        lambda c: st.tuples(
            st.just(c),
            st.integers(0, 600),
            st.integers(0, 12),
            st.integers(0, 2**32 - 1),
        )
    )
)
def test_counts_agree_with_a_naive_copy(drawn: tuple[int, int, int, int]) -> None:
    n_classes, n_teachers, n_queries, seed = drawn
    predictions = np.random.default_rng(seed).integers(
        NO_VOTE, n_classes, size=(n_teachers, n_queries), dtype=np.int8
    )
    votes = Votes.from_predictions(predictions, n_classes=n_classes)
    naive = [[(row == c).sum() for c in range(n_classes)] for row in predictions.T]
    expected = np.array(naive).reshape(n_queries, n_classes)
    assert (votes.counts == expected).all()
    assert (votes.winner == expected.argmax(axis=1)).all()
    assert votes.counts.shape == (n_queries, n_classes)


def test_blocks_fit_together(monkeypatch: pytest.MonkeyPatch) -> None:
    predictions = np.random.default_rng(0).integers(-1, 3, size=(7, 50))
    whole = Votes.from_predictions(predictions, n_classes=3)
    monkeypatch.setattr("mapl.privacy.votes._BLOCK_BYTES", 200)
    parts = Votes.from_predictions(predictions, n_classes=3)
    assert (whole.counts == parts.counts).all()


def test_one_class_can_never_change() -> None:
    votes = Votes.from_predictions(np.zeros((3, 2), dtype=int), n_classes=1)
    assert (votes.distance == 2**62).all()
    assert (votes.margin_distance == 2**62).all()
    assert (votes.winner == 0).all()


def test_no_votes_at_all_are_unstable() -> None:
    votes = Votes.from_predictions(np.full((4, 1), NO_VOTE), n_classes=3)
    assert votes.winner.tolist() == [0]
    assert votes.distance.tolist() == [0]


def test_memory_stays_far_below_a_wide_copy() -> None:
    predictions = np.zeros((250, 40_000), dtype=np.int8)  # 10 MB
    tracemalloc.start()
    votes = Votes.from_predictions(predictions, n_classes=10)
    _ = votes.distance
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1.0 * predictions.nbytes


def test_repr_shows_the_shape_and_no_vote() -> None:
    votes = Votes.from_predictions([[0, 1], [1, 1]], n_classes=2)
    _ = votes.counts
    assert repr(votes) == "Votes(2 teachers, 2 queries, 2 classes)"
    assert ABSTAIN == NO_VOTE == -1


@pytest.mark.parametrize(
    ("predictions", "n_classes", "message"),
    [
        ([0, 1], 2, r"must have the shape \(n_teachers, n_queries\), got 1 dim"),
        ([[0.0, 1.0]], 2, "must be integers, got float64"),
        ([["a"]], 2, "must be integers, got <U1"),
        ([[0, 7]], 2, "must lie between -1 .no vote. and n_classes - 1 = 1"),
        ([[-2, 0]], 2, "must lie between"),
        ([[0]], 0, "n_classes must be an integer >= 1, got 0"),
        ([[0]], 2.0, "n_classes must be an integer >= 1, got 2.0"),
    ],
)
def test_bad_predictions_are_refused_without_showing_them(
    predictions: list[object], n_classes: int, message: str
) -> None:
    with pytest.raises(ParameterError, match=message) as caught:
        Votes.from_predictions(predictions, n_classes=n_classes)  # type: ignore[arg-type]
    assert "7" not in str(caught.value)


def test_booleans_and_empty_lists_are_votes_too() -> None:
    votes = Votes.from_predictions(np.array([[True], [False], [True]]), n_classes=2)
    assert votes.counts.tolist() == [[1, 2]]
    assert Votes.from_predictions(np.empty((0, 3)), n_classes=2).winner.size == 3
