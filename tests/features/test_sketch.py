"""What a record adds to a sketch is bounded, its own, and can be read back."""

from fractions import Fraction
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import spearmanr

from mapl.features import contributions
from mapl.features.contributions import Contributions
from mapl.features.copula import CopulaForm, independent
from mapl.features.grids import CategoryGrid, Grid, NumberGrid, cells_of, grid_of
from mapl.features.passes import Copula as Together
from mapl.features.sketch import Sketch, SketchForm, drawn_table
from mapl.privacy.moments import MOST_RECORDS_EACH, WEIGHT, NoisySum
from mapl.privacy.pairs import PairBlock, bounded_pair_sum
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


def records(rows: Any, labels: Any, owners: Any = None) -> Contributions:
    table = canonical_table([list(row) for row in rows], DICTIONARY.schema)
    codes = np.array(labels, dtype=np.int64)
    units = None if owners is None else group_keys(owners, len(codes))
    keys = None if owners is None else record_keys(table, codes)
    shape: dict[str, Any] = {"units": units, "keys": keys, "grids": GRIDS}
    return Contributions(table, codes, most_each=MOST_RECORDS_EACH, **shape)


FORM = SketchForm.of(USED, 3)


def total(rows: Any, labels: Any, owners: Any = None) -> Any:
    made = records(rows, labels, owners)
    return FORM.total(made.histograms(FORM.sizes)), WEIGHT if made.grouped else 1


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

    def everybody(sizes: Any) -> Any:
        return np.full(sizes.sum(), float(WEIGHT))

    monkeypatch.setattr(contributions, "record_weights", everybody)
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
    counts = records(rows, ages % 3).histograms(FORM.sizes)
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
    copula = independent(USED, sketch)
    cells = copula.draw(500, rng)
    table = drawn_table(DICTIONARY.schema, GRIDS, cells, rng)
    assert (cells_of(table, GRIDS) == cells).all()
    data = table.data
    assert data["note"].isna().all()
    assert data["age"].dropna().between(0, 120).all()
    assert (data["age"].dropna() % 1 == 0).all()
    full = copula.draw(500, rng, missing=False)
    assert (full < [grid.n_cells - 1 for grid in USED]).all()
    nothing = Sketch([np.array([0.0, 1.0])], 1.0, np.ones(2), 1.0)
    empty = independent([CategoryGrid(1)], nothing)
    assert empty.draw(3, rng, missing=False).tolist() == [[1]] * 3


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


# Together ---------------------------------------------------------------------------


def sketch_of(cells: Any, grids: list[Grid]) -> Sketch:
    n = len(cells)
    pairs = zip(cells.T, grids, strict=True)
    shares = [np.bincount(own, minlength=grid.n_cells) / n for own, grid in pairs]
    return Sketch(shares, float(n), np.ones(2), 1.0)


def correlated(n: int) -> tuple[Any, list[Grid]]:
    """Two numbers that go together, a town that goes with both, and gaps that come
    together.
    """
    rng = np.random.default_rng(0)
    common = rng.normal(size=n)
    grids: list[Grid] = [NumberGrid.of(-5, 5, whole=False) for _ in range(2)]
    grids.append(CategoryGrid(3))
    a, b = (common + 0.5 * rng.normal(size=n) for _ in range(2))
    gap = rng.random(n) < 0.3
    a[gap], b[gap] = np.nan, np.nan
    town = np.digitize(common, [-0.5, 0.5])
    columns = [grids[0].cells(a), grids[1].cells(b), grids[2].cells(town)]
    return np.stack(columns, axis=1).astype(np.uint16), grids


def exact_sum(form: CopulaForm, cells: Any) -> Any:
    asked = form.question
    z = asked.scores[cells[:, asked.columns] + asked.starts]
    return z.T @ z


def test_made_up_records_go_together_as_records_do() -> None:
    cells, grids = correlated(20_000)
    sketch = sketch_of(cells, grids)
    form = CopulaForm.of(grids, sketch, Fraction(1, 2))
    assert form.gaps == [0, 1]
    found = form.read(NoisySum(exact_sum(form, cells), 1.0))
    drawn = found.draw(20_000, np.random.default_rng(1))
    for table in (cells, drawn):
        gaps = table[:, :2] == [g.n_cells - 1 for g in grids[:2]]
        both = ~gaps.any(axis=1)
        assert gaps.mean(axis=0) == pytest.approx([0.3, 0.3], abs=0.01)
        assert np.corrcoef(gaps.T)[0, 1] > 0.7
        ranked = spearmanr(table[both]).statistic
        assert ranked[0, 1] == pytest.approx(0.79, abs=0.03)
        assert ranked[0, 2] > 0.55
    for own, grid, share in zip(drawn.T, grids, sketch.shares, strict=True):
        counted = np.bincount(own, minlength=grid.n_cells) / len(drawn)
        np.testing.assert_allclose(counted, share, atol=0.002)
    full = found.draw(500, np.random.default_rng(1), missing=False)
    assert (full < [g.n_cells - 1 for g in grids]).all()


def test_correlations_that_noise_drowns_are_none() -> None:
    cells, grids = correlated(2000)
    form = CopulaForm.of(grids, sketch_of(cells, grids), Fraction(1, 2))
    rng = np.random.default_rng(0)
    sigma = 1e9
    noisy = exact_sum(form, cells) + rng.normal(size=(5, 5)) * sigma
    found = form.read(NoisySum(noisy, sigma)).correlations
    assert np.abs(found - np.eye(5)).max() < 0.95
    assert np.linalg.eigvalsh(found).min() > 0
    assert np.diag(found) == pytest.approx(np.ones(5))


def test_every_record_moves_the_correlations_within_their_bound() -> None:
    """All 10 x 5 x 3 records there are, and all pairs of them as one person."""
    grids: list[Grid] = [CategoryGrid(9), CategoryGrid(4), CategoryGrid(2)]
    shares = [np.full(g.n_cells, 0.001) for g in grids]
    for share in shares:
        share[0] = 1 - share[1:].sum()  # so that other cells are far out
    sketch = Sketch(shares, 1e4, np.ones(2), 1.0)
    form = CopulaForm.of(grids, sketch, Fraction(1, 2))
    asked, moved = form.question, []
    for cells in product(*(range(grid.n_cells) for grid in grids)):
        z = asked.scores[np.array(cells) + asked.starts][None, None, :]
        one = bounded_pair_sum(PairBlock(z, z), asked.squared_length)
        moved.append(one)
        assert sum(int(v) ** 2 for v in one.ravel()) <= asked.squared_length
        assert one.any() == z.any()
    longest = max(sum(int(v) ** 2 for v in one.ravel()) for one in moved)
    assert longest > 0.95 * asked.squared_length  # the bound is reached
    for first, second in product(moved[::7], moved[::11]):
        person = (WEIGHT // 2) * (first + second)
        squared = sum(int(v) ** 2 for v in person.ravel())
        assert squared <= asked.squared_length * WEIGHT**2


@settings(max_examples=40, deadline=None)
@given(ROWS, st.integers(0, 9))
def test_a_records_scores_are_bounded_and_its_own(rows: Any, seed: int) -> None:
    rng = np.random.default_rng(seed)
    shares = [rng.dirichlet(np.full(grid.n_cells, 0.1)) for grid in USED]
    form = CopulaForm.of(USED, Sketch(shares, 1e4, np.ones(2), 1.0), Fraction(1, 2))
    labels = [0] * len(rows)

    def summed(rows: Any, owners: Any = None) -> Any:
        made = records(rows, labels[: len(rows)], owners)
        return Together(form.question).total(made)

    whole = summed(rows)
    alone = sum(summed([row]) for row in rows)
    np.testing.assert_array_equal(whole, alone)
    for row in rows:
        moved = sum(int(v) ** 2 for v in summed([row]).ravel())
        assert moved <= form.question.squared_length
    person = sum(int(v) ** 2 for v in summed(rows, ["a"] * len(rows)).ravel())
    assert person <= form.question.squared_length * WEIGHT**2


def test_records_beyond_the_128th_of_a_person_count_nothing() -> None:
    rng = np.random.default_rng(0)
    rows = [
        (int(rng.integers(0, 120)), float(rng.normal()), "York", "2022-02-02", None)
        for _ in range(140)
    ]
    labels = rng.integers(0, 2, 140)
    many = records(rows, labels, ["a"] * 140)
    assert sum(len(block[0]) for block in many._blocks()) == 128
    counts = many.histograms(FORM.sizes)
    assert counts[-1].sum() == 256


def test_a_range_that_is_next_to_nothing_has_cells() -> None:
    grid = NumberGrid.of(0, 1e-305, whole=False)
    values = np.array([np.nan, -1.0, 0.0, 5e-306, 1.0])
    assert grid.cells(values).tolist()[:2] == [grid.n_ordered, 0]
    assert grid.cells(values)[-1] == grid.n_ordered - 1


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
