"""Feature maps: integers, set by the public points, each record by itself."""

import datetime
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp

from mapl.errors import CertificateError
from mapl.features import columns, maps, ranks
from mapl.features.components import GRID, Codes, Components
from mapl.features.maps import FeatureMap
from mapl.features.model import PublicFeatures, from_plain, to_plain
from mapl.records.schema import Schema
from mapl.records.table import canonical_table

WORDS = ["the patient", "was given", "a large dose", "of nothing", "at night", "again"]


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
            "note": [f"{' '.join(rng.choice(WORDS, 4))} {i}" for i in range(n)],
        }
    )


@pytest.fixture(scope="module", autouse=True)
def small() -> Any:
    """Fewer cosines, for speed."""
    patch = pytest.MonkeyPatch()
    patch.setattr(maps, "FAMILIES", ((0, 20, 1.0), (2, 20, 2.0), (3, 20, 2.0)))
    patch.setattr(maps, "OF_PROJECTIONS", ((9, 20, 0.5),))
    yield
    patch.undo()


def map_of(public: Any) -> tuple[FeatureMap, Any]:
    schema = Schema.of(public)
    return FeatureMap.of(canonical_table(public, schema))[0], schema


def integers(feature_map: FeatureMap, schema: Any, given: Any) -> Any:
    return feature_map.cells(feature_map.encode(canonical_table(given, schema)))


def components(feature_map: FeatureMap, schema: Any, given: Any) -> Any:
    encoded = feature_map.encode(canonical_table(given, schema))
    return feature_map.whole(feature_map.components(encoded))


rng = np.random.default_rng(0)
POOLS = {
    "frame": frame(400, 0),
    "numbers": rng.normal(size=(300, 4)),
    "many numbers": rng.integers(0, 256, (300, 150)).astype(float),
    "sparse": sp.random_array((300, 40), density=0.1, format="csr", rng=1),
    "wide and sparse": sp.random_array((300, 160), density=0.1, format="csr", rng=1),
    "texts": frame(300, 0)["note"].to_numpy(object),
}


@pytest.mark.parametrize("pool", POOLS.values(), ids=POOLS)
def test_a_records_integers_are_a_function_of_that_record(pool: Any) -> None:
    """Whatever else is in the table, in whichever order and number: every bit."""
    feature_map, schema = map_of(pool)
    whole = integers(feature_map, schema, pool)
    assert (np.rint(whole) == whole).all()
    assert whole[:, :-1].std() > 1
    assert (whole[:, -1] == 1).all()
    turned = components(feature_map, schema, pool)
    rows = np.random.default_rng(0)
    n = len(whole)
    for size in (1, 2, 3, 17, n // 2, n - 1):
        chosen = rows.permutation(n)[:size]
        part = pool.iloc[chosen] if hasattr(pool, "iloc") else pool[chosen]
        np.testing.assert_array_equal(
            integers(feature_map, schema, part), whole[chosen]
        )
        np.testing.assert_array_equal(
            components(feature_map, schema, part), turned[chosen]
        )
    assert turned.shape[1] == feature_map.linear_map.width
    lengths = feature_map.linear_map.block_lengths(turned)
    assert (lengths >= 0).all()  # no public point is too long


@pytest.mark.parametrize("pool", POOLS.values(), ids=POOLS)
def test_a_map_survives_as_plain_values(pool: Any) -> None:
    feature_map, schema = map_of(pool)
    public = PublicFeatures.of(feature_map, schema)
    found = public.transform(pool)
    np.testing.assert_array_equal(found, integers(feature_map, schema, pool))
    assert public.fit(None) is public
    assert public.schema.describe() == schema.describe()
    assert len(public.column_names) == len(schema.columns)


@pytest.mark.parametrize(
    "wrong",
    [
        {"container": "pickle"},
        {"ranks": [[np.zeros(1), np.zeros(1)]]},
        {"ranks": [[np.array([1.0, 0.0]), np.zeros(2)]] * 4},
        {"ranks": [[np.empty(0), np.empty(0)]] * 4},
        {"numbers": np.zeros((4, 3))},
        {"numbers": np.full((4, 4), np.nan)},
        {"edges": [np.array([2.0, 1.0])] * 4},
        {"waves": [[np.zeros((2, 20)), np.zeros(20)]]},
        {"waves": [[np.zeros((8, 5000)), np.zeros(5000)]]},
        {"many": [np.zeros(99), np.ones(99), np.zeros((99, 2)), 1.0]},
        {"texts": "nonsense"},
        {"columns": [["a", "code", []]]},
    ],
    ids=str,
)
def test_plain_values_that_do_not_fit_are_refused(wrong: Any) -> None:
    feature_map, schema = map_of(POOLS["numbers"])
    with pytest.raises(CertificateError):
        from_plain(to_plain(feature_map, schema) | wrong)


def test_odd_cells_have_a_place_and_raise_nothing() -> None:
    pool = POOLS["frame"]
    feature_map, schema = map_of(pool)
    whole = integers(feature_map, schema, pool)
    blank = pd.DataFrame([[None] * 7], columns=pool.columns)
    new = pool[:1].astype(object).assign(town="Oz", kind="zz", age=1e300)
    new["note"] = pd.Series(["\ud800 alone"], dtype=object)
    for given in (blank, new):
        assert np.isfinite(integers(feature_map, schema, given)).all()
    odd = pool.astype(object).copy()
    odd.loc[0] = [None, np.inf, "x", 10**400, ["a"], "now", 7]
    np.testing.assert_array_equal(integers(feature_map, schema, odd)[1:], whole[1:])


def test_learned_maps_and_the_metric_take_different_points() -> None:
    """With one pool for both, the metric would trust what fits these points alone."""
    public = canonical_table(POOLS["texts"], Schema.of(POOLS["texts"]))
    _, rows = FeatureMap.of(public)
    assert len(rows) == 150
    plain = canonical_table(POOLS["numbers"], Schema.of(POOLS["numbers"]))
    assert len(FeatureMap.of(plain)[1]) == 300


def test_pixels_share_a_scale_and_other_columns_do_not() -> None:
    from mapl.features.projections import _places

    pixels = np.where(rng.random((200, 9)) < 0.5, 255.0, 0.0)
    pixels[:, 0] = 0.0
    assert len(set(_places(pixels)[1])) == 1
    mixed = pixels * np.arange(1, 10)
    mixed[:, 3] = np.nan
    assert len(set(_places(mixed)[1])) > 5


def test_heavy_values_have_bins_of_their_own() -> None:
    values = np.r_[np.zeros(80), np.arange(1.0, 21.0)]
    column = columns.NumberColumn.of(values)
    zero, one = column.bins(np.array([0.0, 1.0]))
    assert zero != one
    assert column.n_bins > 15
    assert column.bins(np.array([np.nan]))[0] == column.n_bins - 1
    assert columns.NumberColumn.of(np.array([np.nan])).linear(np.array([5.0]))[0] == 0
    constant = columns.NumberColumn.of(np.full(9, 7.0))
    assert constant.linear(np.array([7.0, np.nan])).tolist() == [0.0, 0.0]
    huge = columns.NumberColumn.of(np.array([1e308, -1e308, 0.0, 1e308]))
    assert np.isfinite(huge.linear(np.array([1e308, -1e308]))).all()


def test_a_column_of_two_values_is_a_code() -> None:
    rare = columns.NumberColumn.of(np.r_[np.zeros(99), 1.0])
    assert rare.n_bins == 0
    low, high = rare.linear(np.array([0.0, 1.0]))
    assert high - low == pytest.approx(columns.UNIT, abs=1)


def test_rare_texts_share_a_code() -> None:
    texts = np.array(["a"] * 9 + ["b"] * 9 + ["rare", None], dtype=object)
    column = columns.CodeColumn.of(texts)
    assert column.values == ("a", "b")
    codes = column.codes(np.array(["a", "rare", "never seen", None], dtype=object))
    assert codes.tolist() == [0, 3, 3, 2]


def test_very_many_codes_are_cut_to_the_frequent_ones() -> None:
    texts = np.array(
        [f"t{i % 700}" for i in range(7000)] + ["often"] * 99, dtype=object
    )
    (column,) = columns._code_columns([texts])
    assert column.values == ("often",)


def test_free_text_is_told_from_codes() -> None:
    assert columns.is_free_text(frame(50, 0)["note"].to_numpy(object))
    assert not columns.is_free_text(frame(50, 0)["town"].to_numpy(object))
    assert not columns.is_free_text(np.array([None, None], dtype=object))


def test_texts_without_words_are_a_map_of_nothing() -> None:
    texts = np.array([f"- - - {'!' * i} -" for i in range(60)], dtype=object)
    feature_map, schema = map_of(texts)
    found = integers(feature_map, schema, texts)
    assert (found[:, 0] == found[0, 0]).all()


def test_a_map_of_nothing_is_a_constant() -> None:
    same = pd.DataFrame({"a": np.full(50, 3.0), "d": [datetime.timedelta(1)] * 50})
    feature_map, schema = map_of(same)
    found = integers(feature_map, schema, same)
    assert (found == found[0]).all()


def test_phases_are_exact_in_double_precision_too() -> None:
    values = np.rint(np.random.default_rng(0).normal(size=(50, 3)) * 1000)
    directions, phase = np.full((3, 20), 70.0), np.arange(20.0)
    single = ranks.Waves(directions, phase, farthest=10_000.0)
    double = ranks.Waves(directions, phase, farthest=1e9)
    assert single._directions.dtype == np.float32
    assert double._directions.dtype == np.float64
    np.testing.assert_array_equal(single(values), double(values))


def exact_components(block: Components, values: Any) -> Any:
    """What a record's components are, in Python's integers and rationals."""
    found = []
    for row in values.astype(int).tolist():
        columns = block.matrix.T.astype(int).tolist()
        sums = [
            sum(a * b for a, b in zip(row, column, strict=True)) for column in columns
        ]
        found.append([s - int(o) for s, o in zip(sums, block.before, strict=True)])
    precision = block.matrix.dtype.type
    scaled = np.array(found).astype(precision) * precision(block.scale)
    return np.clip(np.rint(scaled), -(2**15) + 1, 2**15 - 1)


@pytest.mark.parametrize("farthest", [600.0, 1e5], ids=["single", "double"])
def test_components_are_exact_products(farthest: float) -> None:
    rng = np.random.default_rng(0)
    points = np.rint(rng.normal(size=(400, 12)) * 40 * np.linspace(0.1, 2, 12))
    block = Components.of(points.astype(np.int16), farthest)
    far = points / np.linalg.norm(points, axis=1, keepdims=True) * farthest
    given = np.vstack((points[:50], np.trunc(far[:50] * 0.999)))
    np.testing.assert_array_equal(block(given), exact_components(block, given))
    longest = np.linalg.norm(block.matrix.astype(float), axis=0).max()
    held = 2**24 if block.matrix.dtype == np.float32 else 2**53
    assert longest * farthest < held  # so no partial sum is rounded
    assert block.matrix.dtype == (np.float32 if farthest < 1e4 else np.float64)


def test_components_have_the_metric_of_the_public_points() -> None:
    rng = np.random.default_rng(0)
    points = np.rint(rng.normal(size=(4000, 6)) @ rng.normal(size=(6, 6)) * 30 + 7)
    block = Components.of(points, float(np.linalg.norm(points, axis=1).max()))
    found = block(points) / GRID
    assert (found**2).sum(axis=1).mean() == pytest.approx(1, rel=0.01)
    centred = points - points.mean(axis=0)
    second = centred.T @ centred / len(points)
    values, vectors = np.linalg.eigh(second)
    whitened = (vectors * (values + values.mean()) ** -0.25) @ vectors.T
    expected = centred @ whitened
    expected /= np.sqrt((expected**2).sum(axis=1).mean())
    np.testing.assert_allclose(
        np.linalg.norm(found, axis=1), np.linalg.norm(expected, axis=1), atol=5e-3
    )
    energy = (found**2).mean(axis=0)
    np.testing.assert_allclose(energy, block.energy, atol=0.01)
    assert (np.diff(energy) < 0.01).all()  # the largest come first
    leading = block.leading(float(block.energy[1]))
    assert block.kept(float(block.energy[1])).sum() == leading.n == 2
    np.testing.assert_array_equal(leading(points), block(points)[:, :2])
    assert block.leading(9.0).n == 1
    weights = rng.normal(size=(2, 3))
    pulled = (points - np.rint(points.mean(axis=0))) @ leading.pull(weights)
    np.testing.assert_allclose(pulled, leading(points) @ weights, atol=3)


def test_a_block_without_variance_has_one_component_of_zero() -> None:
    block = Components.of(np.full((50, 3), 9), 100.0)
    assert block.n == 1
    assert (block(np.array([[9, 9, 9], [1, 2, 3]])) == 0).all()


def test_a_published_model_is_the_one_that_records_were_asked_about() -> None:
    feature_map, schema = map_of(POOLS["frame"])
    whole = components(feature_map, schema, POOLS["frame"])
    for least in (0.0, 0.01, 9.0):
        used = feature_map.leading(least)
        turned = components(used, schema, POOLS["frame"])
        kept = np.append(feature_map.kept(least), True)
        np.testing.assert_array_equal(turned, whole[:, kept])
        weights = np.random.default_rng(0).normal(size=(turned.shape[1], 2)) / GRID
        shown = integers(used, schema, POOLS["frame"]) @ used.cell_weights(weights)
        np.testing.assert_allclose(shown, turned @ weights, atol=0.03)
    assert used.n_components < 20 < feature_map.n_components


def test_a_piece_is_a_column_a_projection_or_a_family() -> None:
    feature_map, _ = map_of(POOLS["frame"])
    sizes = [s.stop - s.start for s in feature_map.pieces]
    # One text, four numbers, two texts of codes, three families, and the constant.
    assert len(sizes) == 1 + 4 + 2 + 3 + 1
    assert sum(sizes) == feature_map.n_components + 1
    assert sizes[-1] == 1
    wide, _ = map_of(POOLS["many numbers"])
    assert len(wide.pieces) == 1 + 1 + 1


def test_very_many_columns_of_made_up_records_are_taken_one_by_one() -> None:
    table = canonical_table(POOLS["many numbers"], Schema.of(POOLS["many numbers"]))
    feature_map, _ = FeatureMap.of(table, made_up=True)
    assert feature_map.projection is None
    assert feature_map.columns.bin_sizes == []  # a scaled value each, for time
    assert feature_map.n_additive == 150
    assert len(feature_map.pieces) == 50 + 1 + 1  # three columns each, the families
    alone = rng.normal(size=(3000, 200))
    assert map_of(alone)[0].projection is None  # no few directions say most
    common = alone @ rng.normal(size=(200, 9)) @ rng.normal(size=(9, 200))
    assert map_of(common)[0].projection is not None


def test_codes_have_the_metric_of_their_one_hot_form() -> None:
    codes = np.random.default_rng(0).choice(4, p=[0.6, 0.3, 0.08, 0.02], size=4000)
    block = Codes.of(codes, 5, 32, 0.25)
    found = block(codes) / GRID
    assert (found**2).sum(axis=1).mean() == pytest.approx(0.25, rel=0.01)
    one_hot = np.eye(5)[codes] * 32
    weights = np.random.default_rng(1).normal(size=(block.n, 2))
    pulled = one_hot @ block.pull(weights) - block.offset @ weights
    np.testing.assert_allclose(pulled, block(codes) @ weights, atol=2)


# Ranks ------------------------------------------------------------------------------


def test_scores_of_ranks_do_not_mind_units_or_outliers() -> None:
    values = np.random.default_rng(0).normal(size=5000)
    plain, stretched = (
        ranks.RankScore.of(values),
        ranks.RankScore.of(np.exp(9 * values)),
    )
    inner = values[np.abs(values) < 2]
    np.testing.assert_allclose(plain(inner) / ranks.UNIT, inner, atol=0.15)
    apart = np.abs(plain(values) - stretched(np.exp(9 * values)))
    assert np.quantile(apart, 0.99) <= 2
    assert len(plain.knots) <= 256
    odd = np.array([np.nan, np.inf, -np.inf, 1e308, 0.0])
    assert plain(odd).tolist() == [0.0, *plain(np.array([9.0, -9, 9, 0]))]
    assert ranks.RankScore.of(np.full(3, np.nan))(odd).tolist() == [0.0] * 5
    assert ranks.RankScore.of(np.full(3, 7.0))(odd).tolist() == [0.0] * 5
    wide = ranks.RankScore.of(np.array([-1.7e308, 1.7e308]))
    assert np.isfinite(wide(odd)).all()


def test_cosines_are_of_as_many_columns_as_said() -> None:
    pool = np.random.default_rng(0).normal(size=(500, 6)) * ranks.UNIT
    groups = [np.array([0, 1]), np.array([2]), np.array([3]), np.array([4, 5])]
    for many, expected in ((0, 4), (2, 2), (3, 3), (9, 4)):
        rng = np.random.default_rng(1)
        waves = ranks.Waves.of(pool, groups, 1e3, (many, 50, 1.0), rng)
        used = [(waves.directions[g] != 0).any(axis=0) for g in groups]
        assert (np.sum(used, axis=0) == expected).mean() > 0.9  # some draws are 0
        found = waves(pool) / ranks.COSINE
        assert np.abs(found.mean(axis=0)).mean() < 0.6
        assert waves.n == 50


def test_a_missing_number_has_a_place_in_every_feature() -> None:
    rng = np.random.default_rng(0)
    pool = pd.DataFrame({"a": rng.normal(size=300), "b": rng.integers(0, 2, 300) * 1.0})
    pool.loc[rng.random(300) < 0.2, :] = np.nan
    feature_map, schema = map_of(pool)
    assert feature_map.columns.bin_sizes[1] == 3
    given = pd.DataFrame({"a": [np.nan, 0.0], "b": [np.nan, 0.0]})
    missing, there = components(feature_map, schema, given)
    for piece in feature_map.pieces[:-1]:
        assert (missing[piece] != there[piece]).any()
