"""Sums of outer products: exact, bounded, and each record's own."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mapl.privacy import pairs
from mapl.privacy.moments import MOST_RECORDS_EACH, WEIGHT
from mapl.privacy.pairs import (
    LARGEST_PIECE,
    PairBlock,
    bounded_pair_sum,
    coupled,
    record_weights,
)


def block_of(rng: Any, n: int, classes: int, pieces: int, sizes: Any = None) -> Any:
    left = np.rint(rng.normal(size=(n, classes, pieces)) * rng.choice([1, 60, 400]))
    left = np.clip(left, -LARGEST_PIECE, LARGEST_PIECE)
    logits = np.rint(rng.normal(size=(n, classes)) * 2**20)
    return PairBlock(*coupled(logits, left, rng.random(n) < 0.9), sizes)


def naive_squares(matrix: Any) -> int:
    return sum(int(v) ** 2 for v in np.asarray(matrix).ravel())


@settings(max_examples=80, deadline=None)
@given(
    st.integers(0, 10**6),
    st.integers(1, 4),
    st.integers(1, 6),
    st.integers(1, 2**36),
)
def test_no_record_adds_more_than_its_bound(
    seed: int, classes: int, pieces: int, squared_length: int
) -> None:
    rng = np.random.default_rng(seed)
    block = block_of(rng, 9, classes, pieces)
    whole = bounded_pair_sum(block, squared_length)
    total = 0
    for i in range(9):
        own = PairBlock(block.left[i : i + 1], block.right[i : i + 1])
        matrix = bounded_pair_sum(own, squared_length)
        assert naive_squares(matrix) <= squared_length
        total = total + matrix
    assert (whole == total).all()  # whatever the company


def test_short_records_are_added_as_they_are() -> None:
    block = block_of(np.random.default_rng(0), 20, 3, 4)
    expected = np.zeros((4, 4), dtype=np.int64)
    for left, right in zip(block.left, block.right, strict=True):
        for z, r in zip(left, right, strict=True):
            expected += np.outer(z, r).astype(np.int64)
    assert (bounded_pair_sum(block, 2**60) == expected).all()


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.lists(st.integers(1, 5), min_size=1, max_size=5))
def test_no_person_adds_more_than_a_record(seed: int, sizes: list[int]) -> None:
    rng = np.random.default_rng(seed)
    block = block_of(rng, sum(sizes), 2, 3, np.array(sizes))
    limit, start = 50_000, 0
    for size in sizes:
        rows = slice(start, start + size)
        own = PairBlock(block.left[rows], block.right[rows], np.array([size]))
        matrix = bounded_pair_sum(own, limit, grouped=True)
        assert naive_squares(matrix) <= limit * WEIGHT**2
        start += size


def test_weights_of_a_person_add_up_to_one() -> None:
    weights = record_weights(np.array([1, 3, 300]))
    assert weights[0] == WEIGHT
    assert weights[1:4].tolist() == [85, 85, 85]
    assert weights[4:].sum() <= WEIGHT
    assert (weights[4 + MOST_RECORDS_EACH :] == 0).all()
    assert len(record_weights(None)) == 0


def test_what_is_too_long_adds_nothing() -> None:
    long = np.full((1, 1, 40), float(LARGEST_PIECE))
    assert not bounded_pair_sum(PairBlock(long, long), 2**60).any()
    for odd in (np.nan, np.inf, 0.5):
        one = np.full((1, 1, 2), odd)
        whole = np.ones((1, 1, 2))
        assert not bounded_pair_sum(PairBlock(one, whole), 2**60).any()
        assert not bounded_pair_sum(PairBlock(whole, one), 2**60).any()
    many = np.full((1, 200, 20), 400.0)
    assert not bounded_pair_sum(PairBlock(many, many), 2**60).any()
    fewer = np.full((1, 200, 2), 400.0)
    found = bounded_pair_sum(PairBlock(fewer, fewer), 2**62)
    assert (found == 200 * 400**2).all()
    left, right = np.random.default_rng(0).integers(-9, 9, (2, 5, 7, 3)).astype(float)
    grams = [side @ side.transpose(0, 2, 1) for side in (left, right)]
    expected = (grams[0] * grams[1]).sum(axis=(1, 2))
    assert pairs._pair_squares(left, right).tolist() == expected.tolist()


def test_curvature_is_that_of_the_model_and_never_too_small() -> None:
    pieces = np.full((4, 1, 1), 100.0)
    logits = np.array([[0.0], [9.0 * 2**20], [0.0], [-(2.0**40)]])
    left, right = coupled(logits, pieces, np.array([True, True, False, True]))
    assert (left == pieces).all()
    assert right[:, 0, 0].tolist() == [400.0, 32.0, 0.0, 32.0]


def test_pieces_are_centred_under_the_model() -> None:
    rng = np.random.default_rng(0)
    logits = np.rint(rng.normal(size=(50, 3)) * 2**20)
    pieces = np.rint(rng.normal(size=(50, 3, 4)) * 100)
    left, right = coupled(logits, pieces, np.ones(50, bool))
    powers = np.exp(logits / 2**20)
    p = powers / powers.sum(axis=1, keepdims=True)
    mean = np.einsum("ik,ikd->id", p, pieces)
    np.testing.assert_allclose(left, pieces - mean[:, None], atol=2)
    np.testing.assert_allclose(right / 16, p[:, :, None] * left, atol=1)
    moved, _ = coupled(logits, pieces + 37.0, np.ones(50, bool))
    np.testing.assert_allclose(moved, left, atol=1)  # a constant says nothing
    two, _ = coupled(np.zeros((1, 2)), np.array([[[-50.0], [50.0]]]), np.ones(1, bool))
    assert two[0, :, 0].tolist() == [-50.0, 50.0]


def test_planted_bugs_exceed_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    block = block_of(rng, 200, 3, 5)
    block = PairBlock(block.left * 30, block.right * 30)
    limit = 10**6

    def worst() -> int:
        return max(
            naive_squares(
                bounded_pair_sum(
                    PairBlock(block.left[i : i + 1], block.right[i : i + 1]), limit
                )
            )
            for i in range(200)
        )

    assert worst() <= limit
    true = pairs._pair_squares

    def class_by_class(left: Any, right: Any) -> Any:
        """Bounds each class by itself."""
        products = (left**2).sum(axis=2) * (right**2).sum(axis=2)
        return products.max(axis=1).astype(np.int64)

    monkeypatch.setattr(pairs, "_pair_squares", class_by_class)
    assert worst() > limit
    monkeypatch.setattr(pairs, "_pair_squares", lambda *args: true(*args) // 2)
    assert worst() > limit  # off-diagonal entries counted once
    monkeypatch.setattr(pairs, "_pair_squares", true)
    sizes = np.array([4])
    monkeypatch.setattr(pairs, "record_weights", lambda _: np.full(4, float(WEIGHT)))
    same = PairBlock(np.ones((4, 1, 2)) * 50, np.ones((4, 1, 2)) * 50, sizes)
    moved = bounded_pair_sum(same, limit, grouped=True)
    assert naive_squares(moved) > limit * WEIGHT**2
