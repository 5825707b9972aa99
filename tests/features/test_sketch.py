"""What a record adds to a sketch is bounded, its own, and can be read back."""

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mapl.features.cell_records import CellContributions
from mapl.features.grids import CategoryGrid, Grid, NumberGrid, cells_of, grid_of
from mapl.features.sketch import Sketch, SketchForm, drawn_table
from mapl.features.tables import GRID, CellMap, TableMap, one_hot_cells
from mapl.privacy.linear_map import LENGTH_UNIT, LinearMap
from mapl.privacy.moments import WEIGHT, NoisySum
from mapl.records.dictionary import Dictionary
from mapl.records.keys import group_keys, record_keys
from mapl.records.table import canonical_table

DICTIONARY = Dictionary.read(
    {
        "columns": {
            "age": {"kind": "integer", "range": [0, 120]},
            "pay": {"kind": "number", "range": [-5, 1e6]},
            "town": {"kind": "category", "categories": ["Bath", "York"]},
            "seen": {"kind": "time", "range": ["2020-01-01", "2025-01-01"]},
            "note": {"kind": "text"},
        }
    }
)
GRIDS = [grid_of(entry) for entry in DICTIONARY.columns.values()]
USED: list[Grid] = [grid for grid in GRIDS if grid is not None]
CELL = st.one_of(
    st.none(),
    st.integers(-(2**60), 2**60),
    st.floats(),
    st.sampled_from(["Bath", "York", "Ely", "", "2021-05-05", "-0.0", "nan", "1e999"]),
)
ROWS = st.lists(st.tuples(*[CELL] * 5), min_size=1, max_size=12)


def records(rows: Any, labels: Any, owners: Any = None) -> CellContributions:
    table = canonical_table([list(row) for row in rows], DICTIONARY.schema)
    codes = np.array(labels, dtype=np.int64)
    units = None if owners is None else group_keys(owners, len(codes))
    keys = None if owners is None else record_keys(table, codes)
    return CellContributions(table, codes, GRIDS, units=units, keys=keys)


FORM = SketchForm.of(USED, 3)


def total(rows: Any, labels: Any, owners: Any = None) -> Any:
    counts, weight = records(rows, labels, owners).histograms(FORM.sizes)
    return FORM.total(counts), weight


def naive(rows: Any, labels: Any) -> list[int]:
    """What single records add, in Python's integers."""
    table = canonical_table([list(row) for row in rows], DICTIONARY.schema)
    cells = [[int(c) for c in row] for row in cells_of(table, GRIDS)]
    out = [0] * sum(FORM.sizes)
    for row, label in zip(cells, labels, strict=True):
        if label < 0:
            continue
        start = 0
        for cell, size, n, root in zip(
            [*row, label], FORM.sizes, FORM.ordered, FORM.roots, strict=True
        ):
            if cell < n:
                for k in range(n - cell):
                    out[start + cell + k] += int(root[k])
            else:
                out[start + cell] += 4096
            start += size
    return out


@settings(max_examples=60, deadline=None)
@given(ROWS, st.data())
def test_one_record_adds_an_integer_vector_of_bounded_length(
    rows: Any, data: Any
) -> None:
    labels = data.draw(st.lists(st.integers(-1, 2), min_size=len(rows), max_size=99))
    labels = labels[: len(rows)]
    whole, weight = total(rows, labels)
    assert weight == 1
    assert whole.tolist() == naive(rows, labels)
    less, _ = total(rows[1:], labels[1:]) if len(rows) > 1 else (0 * whole, 1)
    moved = [int(v) for v in whole - less]
    assert sum(v * v for v in moved) <= FORM.squared_length


def test_the_bound_is_reached() -> None:
    moved, _ = total([(None, None, "York", None, "x")], [2])
    assert int((moved**2).sum()) == FORM.squared_length
    moved, _ = total([(0, -5.0, "York", "2020-01-01", "x")], [2])
    assert int((moved**2).sum()) > 0.99 * FORM.squared_length


@settings(max_examples=40, deadline=None)
@given(ROWS, st.data())
def test_a_person_adds_no_more_than_one_record(rows: Any, data: Any) -> None:
    labels = [0] * len(rows)
    owners = data.draw(
        st.lists(st.sampled_from("abc"), min_size=len(rows), max_size=len(rows))
    )
    whole, weight = total(rows, labels, owners)
    assert weight == WEIGHT
    kept = [i for i, owner in enumerate(owners) if owner != owners[0]]
    if kept:
        less, _ = total(
            [rows[i] for i in kept], [0] * len(kept), [owners[i] for i in kept]
        )
    else:
        less = 0 * whole
    squared = sum(int(v) ** 2 for v in whole - less)
    assert squared <= FORM.squared_length * WEIGHT**2
    order = data.draw(st.permutations(range(len(rows))))
    again, _ = total([rows[i] for i in order], labels, [owners[i] for i in order])
    assert (again == whole).all()


def test_planted_bugs_exceed_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    row = (0, -5.0, "York", "2020-01-01", "x")
    short = sum(max(int((r**2).sum()), 4096**2) for r in FORM.roots[1:])
    moved, _ = total([row], [2])
    assert int((moved**2).sum()) > short  # one column left out of S
    everybody = "mapl.features.cell_records.record_weights"
    monkeypatch.setattr(everybody, lambda sizes: np.full(sizes.sum(), float(WEIGHT)))
    moved, _ = total([row, row], [2, 2], ["a", "a"])
    assert sum(int(v) ** 2 for v in moved) > FORM.squared_length * WEIGHT**2


def test_columns_are_read_back() -> None:
    rng = np.random.default_rng(0)
    n = 20_000
    ages = rng.integers(20, 60, n)
    rows = [
        (int(a), None if i % 4 == 0 else 100.0, "Bath", "2021-05-05", None)
        for i, a in enumerate(ages)
    ]
    counts, _ = records(rows, ages % 3).histograms(FORM.sizes)
    sigma = 40 * 4096.0
    noisy = FORM.total(counts) + np.rint(rng.normal(size=sum(FORM.sizes)) * sigma)
    sketch = FORM.read(NoisySum(noisy.astype(float), sigma))
    assert sketch.n_units == pytest.approx(n, abs=300)
    assert sketch.class_counts == pytest.approx(np.bincount(ages % 3), abs=200)
    below_40 = sketch.shares[0][:40].sum()
    assert below_40 == pytest.approx((ages < 40).mean(), abs=0.03)
    assert sketch.shares[1][-1] == pytest.approx(0.25, abs=0.02)
    assert sketch.shares[2].tolist() == [1.0, 0.0, 0.0]
    for share in sketch.shares:
        assert share.sum() == pytest.approx(1)


def test_noise_alone_gives_shares_too() -> None:
    form = SketchForm.of([CategoryGrid(2)], 2)
    sketch = form.read(NoisySum(np.full(5, -4096.0 * 9), 4096.0))
    assert sketch.shares[0].tolist() == [1 / 3] * 3
    assert sketch.n_units == 1.0


def test_made_up_records_have_the_columns_of_the_dictionary() -> None:
    rng = np.random.default_rng(0)
    shares = [np.full(grid.n_cells, 1 / grid.n_cells) for grid in USED]
    sketch = Sketch(shares, 100.0, np.ones(2), 1.0)
    cells = sketch.draw(500, rng)
    table = drawn_table(DICTIONARY.schema, GRIDS, cells, rng)
    assert (cells_of(table, GRIDS) == cells).all()
    data = table.data
    assert data["note"].isna().all()
    assert data["age"].dropna().between(0, 120).all()
    assert (data["age"].dropna() % 1 == 0).all()
    full = sketch.draw(500, rng, missing=False)
    assert (full < [grid.n_cells - 1 for grid in USED]).all()
    nothing = Sketch([np.array([0.0, 1.0])], 1.0, np.ones(2), 1.0)
    assert nothing.draw(3, rng, missing=False).tolist() == [[1]] * 3


@pytest.mark.parametrize(("low", "high"), [(0, 1), (-3, 9), (0, 10**9), (-1e9, -5)])
@pytest.mark.parametrize("whole", [False, True])
def test_cells_cover_a_range_and_what_lies_beyond(
    low: float, high: float, whole: bool
) -> None:
    grid = NumberGrid.of(low, high, whole=whole)
    assert (np.diff(grid.edges) > 0).all()
    values = np.array([low, high, low - 1e6, high + 1e30, -np.inf, np.inf, np.nan])
    cells = grid.cells(values)
    last = grid.n_ordered - 1
    assert cells.tolist() == [0, last, 0, last, 0, last, grid.n_ordered]
    middles = grid.cells(grid.middles)
    assert middles.tolist() == list(range(grid.n_ordered))


# Features by look-up ----------------------------------------------------------------


def cell_map() -> CellMap:
    rng = np.random.default_rng(0)
    shares = [rng.dirichlet(np.ones(grid.n_cells)) for grid in USED]
    shares[2] = np.array([0.7, 0.3, 0.0])
    return CellMap.of(USED, Sketch(shares, 5000.0, np.ones(2), 1.0), 0.3)


def test_look_ups_are_products_with_the_tables() -> None:
    found = cell_map()
    rng = np.random.default_rng(1)
    cells = np.stack([rng.integers(0, n, 50) for n in found.sizes[:-1]], axis=1)
    sparse = one_hot_cells(cells, found.sizes[:-1])
    fast, slow = found.linear_map(), LinearMap(found.tables)
    dense = sparse.toarray()
    np.testing.assert_array_equal(fast.image(sparse), slow.image(dense))
    squares = (slow.image(dense) ** 2).sum(axis=1)
    lengths = fast.lengths(fast.block_lengths(sparse))
    np.testing.assert_array_equal(lengths, -(-squares // LENGTH_UNIT))
    assert fast.sound(sparse).all()
    too_long = TableMap([np.full((1, 1), 2.0**24)])
    one = one_hot_cells(np.zeros((1, 0), dtype=np.int64), [])
    assert too_long.lengths(too_long.block_lengths(one)).tolist() == [-1]


def test_a_record_that_is_too_long_adds_nothing() -> None:
    from mapl.privacy.moments import Block, bounded_sum

    huge = TableMap([np.array([[1.0], [2.0**24]]), np.ones((1, 1))])
    cells = one_hot_cells(np.array([[0], [1]]), [2])
    lengths = huge.lengths(huge.block_lengths(cells))
    assert lengths.tolist() == [1, -1]
    found = bounded_sum(Block(cells, lengths, np.full((2, 1), 3.0)), huge, 10**9)
    assert found[:, 0].tolist() == [3, 0, 3]


def test_features_have_a_mean_length_of_about_one_a_kind() -> None:
    found = cell_map()
    assert len(found.tables) == len(USED) + 1
    assert found.tables[-1].tolist() == [[GRID / 2]]
    assert np.abs(np.concatenate([t.ravel() for t in found.tables])).max() <= 2**17
    # Unlisted towns were never seen: they share one code.
    assert found.tables[2].shape == (3, 3)


def test_heavy_cells_are_bins_of_their_own_and_thin_ones_are_joined() -> None:
    grid = NumberGrid.of(0, 1000, whole=True)
    share = np.full(grid.n_cells, 0.5 / grid.n_cells)
    share[0] += 0.5
    sketch = Sketch([share], 1e9, np.ones(2), 1.0)
    table = CellMap.of([grid], sketch, 1.0).tables[0]
    bins = len(np.unique(table[:, 1:].round(), axis=0))
    assert 20 < bins < 32
    same_as_first = (table[:, 1:] == table[0, 1:]).all(axis=1)
    assert same_as_first.sum() == 1
    flat = np.zeros(grid.n_cells)
    flat[5] = 1.0
    one = CellMap.of([grid], Sketch([flat], 10.0, np.ones(2), 1.0), 1.0)
    assert np.isfinite(one.tables[0]).all()


def test_gradients_of_cells_are_those_of_dense_records() -> None:
    from mapl.privacy.gradients import exact_weights
    from mapl.privacy.moments import Block, bounded_sum
    from mapl.privacy.questions import Question

    rng = np.random.default_rng(2)
    found = cell_map()
    rows = [
        (int(rng.integers(0, 120)), float(rng.normal()), "York", "2022-02-02", None)
        for _ in range(70)
    ]
    labels = rng.integers(-1, 3, 70)
    owners = [f"{i // 3}" for i in range(70)]
    question = Question(
        exact_weights(rng.normal(size=(sum(found.sizes), 3)) / 10),
        0,
        int(GRID**2 * 2**22 / LENGTH_UNIT),
        Fraction(1, 2),
    )
    for own in (None, owners):
        contributions = records(rows, labels, own)
        contributions.show(found)
        grouped = own is not None
        for block in contributions.gradients(question):
            dense = block.cells.toarray()
            slow = LinearMap(found.tables)
            lengths = slow.lengths(slow.block_lengths(dense))
            other = Block(dense, lengths, block.residuals, block.unit_sizes)
            limit = question.squared_length
            np.testing.assert_array_equal(
                bounded_sum(block, found.linear_map(), limit, grouped=grouped),
                bounded_sum(other, slow, limit, grouped=grouped),
            )


def test_records_beyond_the_128th_of_a_person_count_nothing() -> None:
    rng = np.random.default_rng(0)
    rows = [
        (int(rng.integers(0, 120)), float(rng.normal()), "York", "2022-02-02", None)
        for _ in range(140)
    ]
    labels = rng.integers(0, 2, 140)
    many = records(rows, labels, ["a"] * 140)
    many.show(cell_map())
    assert sum(len(block[0]) for block in many._blocks()) == 128
    counts, weight = many.histograms(FORM.sizes)
    assert weight == WEIGHT
    assert counts[-1].sum() == 256


RANGES = st.tuples(
    st.floats(-1e150, 1e150, allow_subnormal=False),
    st.floats(-1e150, 1e150, allow_subnormal=False),
).filter(lambda pair: pair[0] < pair[1] and np.isfinite(pair[1] - pair[0]))


@given(
    st.one_of(RANGES, st.sampled_from([(0, 1), (-10, 10), (0, 120), (-1e-9, 1e9)])),
    st.booleans(),
    st.integers(0, 2**32 - 1),
)
@settings(deadline=None, max_examples=150)
def test_cells_are_found_as_by_search(
    limits: tuple[float, float], whole: bool, seed: int
) -> None:
    grid = NumberGrid.of(*limits, whole=whole)
    rng = np.random.default_rng(seed)
    low, high = grid.edges[0], grid.edges[-1]
    spread = low + (high - low) * rng.random(300)
    near = np.concatenate([np.nextafter(grid.edges, way) for way in (-np.inf, np.inf)])
    small = spread * 2.0 ** -rng.integers(0, 60, 300)
    odd = np.array([low, high, low - 1, high + 1, 0.0, np.nan, 1e308, -1e308])
    values = np.concatenate((spread, small, near, grid.edges, odd))
    found = np.searchsorted(grid.edges[1:-1], values, side="right")
    wanted = np.where(np.isnan(values), grid.n_ordered, found)
    np.testing.assert_array_equal(grid.cells(values), wanted)
