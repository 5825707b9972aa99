"""What a record contributes is a function of its unit, to the last bit."""

from fractions import Fraction
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from threadpoolctl import threadpool_limits

from mapl.features import contributions, maps
from mapl.features.contributions import Contributions, linear_source
from mapl.features.maps import FeatureMap
from mapl.features.passes import Gram
from mapl.privacy.gradients import (
    RESIDUAL_GRID,
    WEIGHT_GRID,
    class_logits,
    exact_weights,
    probabilities_of,
    residuals_of,
    stack_residuals,
)
from mapl.privacy.moments import bounded_sum
from mapl.privacy.questions import (
    GramQuestion,
    Question,
    StackQuestion,
    pack,
    unpack,
)
from mapl.records.keys import group_keys, record_keys
from mapl.records.schema import Schema
from mapl.records.table import canonical_table

N = 60


def frame(n: int, seed: int) -> Any:
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "a": rng.normal(size=n),
            "b": rng.integers(0, 30, n),
            "c": rng.choice(["x", "y", "z"], n),
        }
    )


POOL = frame(120, 0)
SCHEMA = Schema.of(POOL)
PRIVATE = frame(N, 1)
LABELS = np.random.default_rng(2).integers(0, 3, N)
GROUPS = np.random.default_rng(3).integers(0, 20, N)


@pytest.fixture(scope="module")
def feature_map() -> Any:
    patch = pytest.MonkeyPatch()
    patch.setattr(maps, "FAMILIES", ((0, 10, 1.0), (2, 10, 2.0)))
    yield FeatureMap.of(canonical_table(POOL, SCHEMA))[0]
    patch.undo()


def question(feature_map: FeatureMap, columns: int = 3) -> Question:
    width = feature_map.linear_map.width
    weights = np.random.default_rng(4).normal(size=(width, columns)) / 2000
    return Question(exact_weights(weights), 2**36, Fraction(1, 4))


def gram_question(feature_map: FeatureMap, columns: int = 3) -> GramQuestion:
    asked = question(feature_map, columns)
    step = np.random.default_rng(5).normal(size=asked.weights.shape) / 2000
    units = np.full(len(feature_map.pieces), WEIGHT_GRID / 32.0)
    return GramQuestion(
        asked.weights, exact_weights(step), units, 2**20, Fraction(1, 9)
    )


def of(feature_map: Any, records: Any, labels: Any, groups: Any = None) -> Any:
    table = canonical_table(records, SCHEMA)
    units = None if groups is None else group_keys(groups, len(table))
    return Contributions(
        table, labels, feature_map, units=units, keys=record_keys(table, labels)
    )


def total(made: Any, asked: Any, feature_map: Any) -> Any:
    if isinstance(asked, GramQuestion):
        return Gram(asked).total(made)
    linear_map = feature_map.linear_map
    return sum(
        bounded_sum(block, linear_map, asked.squared_length, grouped=made.grouped)
        for block in made.gradients(asked)
    )


@pytest.mark.parametrize("groups", [None, GROUPS], ids=["records", "persons"])
@pytest.mark.parametrize("make", [question, gram_question])
@pytest.mark.parametrize("columns", [1, 3])
def test_a_sum_is_that_of_its_units_alone(
    feature_map: Any,
    groups: Any,
    make: Any,
    columns: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Units one by one, in any order, block size and number of threads."""
    asked = make(feature_map, columns)
    labels = LABELS if columns == 3 else LABELS % 2
    whole = total(of(feature_map, PRIVATE, labels, groups), asked, feature_map)
    assert np.abs(whole).max() > 1000
    owners = np.arange(N) if groups is None else groups
    alone = 0
    for owner in np.unique(owners):
        rows = np.flatnonzero(owners == owner)
        part = None if groups is None else groups[rows]
        own = of(feature_map, PRIVATE.iloc[rows], labels[rows], part)
        alone = alone + total(own, asked, feature_map)
    np.testing.assert_array_equal(whole, alone)
    order = np.random.default_rng(5).permutation(N)
    for size, threads in ((1, 1), (7, 3)):
        monkeypatch.setattr(contributions, "_ROWS", size)
        monkeypatch.setattr(contributions, "_MOST_BYTES", 500)
        part = None if groups is None else groups[order]
        shuffled = of(feature_map, PRIVATE.iloc[order], labels[order], part)
        shuffled._n_threads = threads
        with threadpool_limits(threads):
            found = total(shuffled, asked, feature_map)
            again = total(shuffled, asked, feature_map)  # lengths come from the store
        np.testing.assert_array_equal(found, whole)
        np.testing.assert_array_equal(again, whole)


@given(st.lists(st.integers(0, N - 1), min_size=1, max_size=30), st.randoms())
@settings(max_examples=40, deadline=None)
def test_another_record_changes_nobody_elses_integers(
    rows: list[int], rng: Any
) -> None:
    patch = pytest.MonkeyPatch()
    patch.setattr(maps, "FAMILIES", ((0, 10, 1.0), (2, 10, 2.0)))
    feature_map = FeatureMap.of(canonical_table(POOL, SCHEMA))[0]
    patch.undo()
    asked = question(feature_map)
    chosen = np.array(rows)
    given_rows = PRIVATE.iloc[chosen].astype(object).reset_index(drop=True)
    more = pd.concat((given_rows, PRIVATE[:1].astype(object)), ignore_index=True)
    odd = rng.choice([None, 1e308, "x" * 50, -0.0, 2**80])
    more.loc[len(more) - 1] = [odd, odd, odd]
    labels = LABELS[chosen]
    with_odd = of(feature_map, more, np.append(labels, rng.choice([0, 1, 2, -1])))
    one = of(feature_map, more[-1:].reset_index(drop=True), with_odd._labels[-1:])
    np.testing.assert_array_equal(
        total(with_odd, asked, feature_map) - total(one, asked, feature_map),
        total(of(feature_map, given_rows, labels), asked, feature_map),
    )


def test_other_features_forget_what_was_kept(feature_map: Any) -> None:
    made = of(feature_map, PRIVATE, LABELS)
    total(made, question(feature_map), feature_map)
    reduced = feature_map.leading(0.02)
    made.show(reduced)
    later = total(made, question(reduced), reduced)
    fresh = of(reduced, PRIVATE, LABELS)
    expected = total(fresh, question(reduced), reduced)
    np.testing.assert_array_equal(later, expected)
    assert len(later) < feature_map.linear_map.width


def test_pieces_are_what_a_step_adds_to_logits(feature_map: Any) -> None:
    asked = gram_question(feature_map, 1)
    (block,) = of(feature_map, PRIVATE, LABELS % 2).pieces(asked)
    encoded = feature_map.encode(canonical_table(PRIVATE, SCHEMA))
    cells = feature_map.whole(feature_map.components(encoded))
    whole = (cells @ asked.step)[:, 0] / WEIGHT_GRID
    added = block.left[:, 0].sum(axis=1) / 32
    np.testing.assert_allclose(added, whole, atol=0.2)


def test_a_unit_is_counted_once(feature_map: Any) -> None:
    def counted(groups: Any, labels: Any) -> Any:
        made = of(feature_map, PRIVATE, labels, groups)
        found = sum(
            bounded_sum(
                block, contributions.ONE, RESIDUAL_GRID**2, grouped=made.grouped
            )
            for block in made.counts(3)
        )
        return found[0] / RESIDUAL_GRID / (1 if groups is None else 256)

    np.testing.assert_array_equal(counted(None, LABELS), np.bincount(LABELS))
    one_class = counted(GROUPS, np.zeros(N, dtype=np.int64))
    assert one_class[0] == pytest.approx(len(set(GROUPS.tolist())), rel=0.01)
    assert counted(GROUPS, LABELS).sum() < len(set(GROUPS.tolist())) * 3**0.5


def test_residuals_are_label_minus_probability(feature_map: Any) -> None:
    encoded = feature_map.encode(canonical_table(PRIVATE, SCHEMA))
    cells = feature_map.whole(feature_map.components(encoded))
    asked = question(feature_map)
    labels = LABELS.copy()
    labels[0] = -1
    found = residuals_of(cells, labels, asked) / RESIDUAL_GRID
    expected = np.eye(3)[LABELS] - probabilities_of(cells @ asked.weights / WEIGHT_GRID)
    np.testing.assert_allclose(found[1:], expected[1:], atol=2e-3)
    assert (found[0] == 0).all()
    two = question(feature_map, columns=1)
    found = residuals_of(cells, LABELS % 2, two) / RESIDUAL_GRID
    shares = probabilities_of(cells @ two.weights / WEIGHT_GRID)
    np.testing.assert_allclose(found, (LABELS % 2)[:, None] - shares, atol=2e-3)


def test_stacked_residuals_are_the_gradient_of_the_likelihood() -> None:
    rng = np.random.default_rng(0)
    logits = [np.rint(rng.normal(size=(50, 3)) * 2 * WEIGHT_GRID) for _ in range(2)]
    labels = rng.integers(0, 3, 50)
    scales, biases = np.array([0.8, 0.3]), np.array([0.2, -0.1, 0.0])
    asked = StackQuestion(
        np.rint(scales * WEIGHT_GRID),
        np.rint(biases * WEIGHT_GRID),
        np.array([2048.0, 1024.0]),
        1,
        Fraction(1),
    )
    found = stack_residuals(logits, labels, asked) / RESIDUAL_GRID
    z = [one / WEIGHT_GRID for one in logits]
    powers = np.exp(0.8 * z[0] + 0.3 * z[1] + biases)
    residuals = np.eye(3)[labels] - powers / powers.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(found[:, 2:], residuals, atol=3e-3)
    slope = (residuals * z[0]).sum(axis=1) / 2
    np.testing.assert_allclose(found[:, 0], slope, atol=2e-2)
    part = stack_residuals([one[7:9] for one in logits], labels[7:9], asked)
    np.testing.assert_array_equal(part / RESIDUAL_GRID, found[7:9])
    assert (stack_residuals(logits, np.full(50, -1), asked) == 0).all()


def test_questions_survive_a_ledger(feature_map: Any) -> None:
    asked = question(feature_map)
    back = unpack(pack(asked))
    np.testing.assert_array_equal(back.weights, asked.weights)
    assert (back.part, back.squared_length) == (asked.part, 2**36)
    gram = unpack(pack(gram_question(feature_map)))
    assert isinstance(gram, GramQuestion)
    assert (gram.units == WEIGHT_GRID / 32).all()
    stacked = StackQuestion(np.ones(1), np.zeros(2), np.ones(1), 5, Fraction(1, 200))
    assert unpack(pack(stacked)).part == Fraction(1, 200)


def test_models_logits_are_integers(feature_map: Any) -> None:
    asked = question(feature_map, columns=1)
    made = of(feature_map, PRIVATE, LABELS % 2)
    (found,) = made.logits([linear_source(asked.weights)])
    assert found[0].shape == (N, 2)
    assert (np.rint(found[0]) == found[0]).all()
    cells = np.full((2, 1), 2.0**15)
    far = class_logits(cells, np.array([[2.0**30, -(2.0**30), 0.0]]))
    assert (far[0] == [16 * WEIGHT_GRID, -16 * WEIGHT_GRID, 0]).all()


def test_weights_too_large_to_be_exact_are_shortened() -> None:
    found = exact_weights(np.full((4, 1), 1e30))
    assert np.linalg.norm(found) < 2**36
    assert (np.rint(found) == found).all()


def test_nothing_of_the_records_is_shown(feature_map: Any) -> None:
    made = of(feature_map, PRIVATE, LABELS)
    assert repr(made) == "Contributions()"
    assert len(made) == N
    nobody = of(feature_map, PRIVATE[:0], LABELS[:0], GROUPS[:0])
    assert list(nobody.counts(2)) == []


def test_a_record_too_long_for_exact_products_has_no_logits(feature_map: Any) -> None:
    made = of(feature_map, PRIVATE, LABELS)
    cells = made._cells(0, np.arange(N))
    cells[0] = 2.0**16
    made._cells = lambda *_, **__: cells
    asked = question(feature_map, columns=3)
    (found,) = made.logits([linear_source(asked.weights)])
    assert np.isnan(found[0][0]).all()
    assert not np.isnan(found[0][1:]).any()
    stacked = StackQuestion(np.ones(1), np.zeros(3), np.ones(1), 5, Fraction(1, 200))
    (block,) = made.stacked([found], stacked)
    assert (block.residuals[0] == 0).all()
    assert (block.residuals[1:] != 0).any()


def test_a_record_too_long_for_exact_products_adds_to_no_gram_matrix(
    feature_map: Any,
) -> None:
    made = of(feature_map, PRIVATE, LABELS)
    cells = made._cells(0, np.arange(N))
    whole = Gram(gram_question(feature_map)).total(made)
    (before,) = made.pieces(gram_question(feature_map))
    cells[0] = 2.0**16
    made._cells = lambda *_: cells
    (block,) = made.pieces(gram_question(feature_map))
    assert (block.right[0] == 0).all()
    np.testing.assert_array_equal(block.right[1:], before.right[1:])
    assert (Gram(gram_question(feature_map)).total(made) != whole).any()


def test_what_a_model_expects_of_labels_does_not_depend_on_them(
    feature_map: Any,
) -> None:
    asked = question(feature_map)
    unknown = np.full(N, -1)
    first = of(feature_map, PRIVATE, LABELS, GROUPS).expected(asked)
    second = of(feature_map, PRIVATE, unknown, GROUPS).expected(asked)
    np.testing.assert_allclose(first, second)


def test_no_private_cell_causes_a_warning(feature_map: Any) -> None:
    odd = PRIVATE.assign(a=np.where(np.arange(N) % 2, 1e-310, 1e308))
    with np.errstate(all="raise"):
        made = of(feature_map, odd, LABELS)
        assert len(made._cells(0, np.arange(N))) == N
