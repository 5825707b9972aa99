"""Feature maps: integers, set by the public points, each record by itself."""

import datetime
from typing import Any

import numpy as np
import pandas as pd
import pytest

from mapl.features import columns, maps
from mapl.features.maps import LONGEST, FeatureMap, shortened
from mapl.privacy.moments import squared_lengths
from mapl.records.schema import Schema
from mapl.records.table import canonical_table


def frame(n: int, seed: int) -> Any:
    rng = np.random.default_rng(seed)
    days = pd.to_timedelta(rng.integers(0, 99, n), "D")
    return pd.DataFrame(
        {
            "age": rng.integers(18, 90, n).astype(float),
            "gain": np.where(rng.random(n) < 0.8, 0.0, rng.lognormal(8, 1, n)),
            "flag": rng.integers(0, 2, n),
            "town": rng.choice(["York", "Bath", "Ely"], n),
            "kind": pd.Categorical(rng.choice(["a", "b"], n)),
            "at": pd.Timestamp("2020-01-01") + days,
        }
    )


@pytest.fixture(scope="module")
def small() -> Any:
    """Fewer waves, for speed."""
    patch = pytest.MonkeyPatch()
    patch.setattr(maps, "_WAVES", 20)
    yield
    patch.undo()


PUBLIC = frame(400, 0)
SCHEMA = Schema.of(PUBLIC)


def table(given: Any) -> Any:
    return canonical_table(given, SCHEMA)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("waves", [True, False])
def test_vectors_are_integers_of_bounded_length(waves: bool) -> None:
    found = FeatureMap(table(PUBLIC), waves=waves)(table(frame(300, 1)))
    assert (np.rint(found) == found).all()
    assert squared_lengths(found).max() <= LONGEST**2
    assert found.std() > 10


@pytest.mark.usefixtures("small")
def test_a_vector_is_a_function_of_its_own_record() -> None:
    """Whatever else is in the table, in whichever order and number: every bit."""
    feature_map = FeatureMap(table(PUBLIC))
    private = frame(500, 2)
    whole = feature_map(table(private))
    rng = np.random.default_rng(0)
    for size in (1, 2, 3, 17, 250, 499):
        rows = rng.permutation(500)[:size]
        part = feature_map(table(private.iloc[rows]))
        np.testing.assert_array_equal(part, whole[rows])
    odd = private.astype(object).copy()
    odd.loc[0] = [None, np.inf, "x", 10**400, ["a"], "now"]
    np.testing.assert_array_equal(feature_map(table(odd))[1:], whole[1:])


@pytest.mark.usefixtures("small")
def test_odd_cells_have_a_place_and_raise_nothing() -> None:
    feature_map = FeatureMap(table(PUBLIC))
    blank = pd.DataFrame([[None] * 6], columns=PUBLIC.columns)
    new = PUBLIC[:1].astype(object).assign(town="Oz", kind="zz", age=1e300)
    for given in (blank, new):
        found = feature_map(table(given))
        assert np.isfinite(found).all()


@pytest.mark.usefixtures("small")
def test_many_number_columns_are_projected() -> None:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (300, 150)).astype(float)
    schema = Schema.of(images)
    feature_map = FeatureMap(canonical_table(images, schema))
    found = feature_map(canonical_table(images[:50], schema))
    assert found.shape == (50, maps._COMPONENTS + 2 * 20 + 1)
    part = feature_map(canonical_table(images[10:20], schema))
    np.testing.assert_array_equal(part, found[10:20])


def test_heavy_values_have_bins_of_their_own() -> None:
    values = np.r_[np.zeros(80), np.arange(1.0, 21.0)]
    column = columns.NumberColumn.of(values)
    zero, one = column.bins(np.array([0.0, 1.0]))
    assert zero != one
    assert column.n_bins > 15
    assert column.bins(np.array([np.nan]))[0] == column.n_bins - 1
    assert columns.NumberColumn.of(np.array([0.0, 1.0, 1.0])).n_bins == 0
    assert columns.NumberColumn.of(np.array([np.nan])).linear(np.array([5.0]))[0] != 0
    constant = columns.NumberColumn.of(np.full(9, 7.0))
    assert constant.linear(np.array([7.0, np.nan])).tolist() == [0.0, 0.0]


def test_rare_texts_share_a_code() -> None:
    texts = np.array(["a"] * 9 + ["b"] * 9 + ["rare", None], dtype=object)
    column = columns.CodeColumn.of(texts)
    assert column.values == ("a", "b")
    codes = column.codes(np.array(["a", "rare", "never seen", None], dtype=object))
    assert codes.tolist() == [0, 3, 3, 2]


def test_long_vectors_are_shortened_towards_zero() -> None:
    vectors = np.array([[300.0, -400.0], [3.0, 4.0]])
    found = shortened(vectors, 100)
    assert squared_lengths(found).max() <= 100**2
    assert found[1].tolist() == [3.0, 4.0]
    assert (np.abs(found[0]) <= np.abs(vectors[0])).all()


def test_a_map_of_nothing_is_a_constant() -> None:
    same = pd.DataFrame({"a": np.full(50, 3.0), "d": [datetime.timedelta(1)] * 50})
    schema = Schema.of(same)
    found = FeatureMap(canonical_table(same, schema), waves=False)(
        canonical_table(same, schema)
    )
    assert (found == found[0]).all()
