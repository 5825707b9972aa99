"""Neighbouring data sets differ in one chunk, and in nothing that is public.

Tables are generated with every odd value, in every container and file. `MAPL_FUZZ`
multiplies the number of cases; `make stress` runs ten thousand.
"""

import io
import warnings
from collections import Counter
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cases as fuzz
import numpy as np
import pandas as pd
import pytest
from cases import CONTAINERS, FILES, Case, cases, fuzzed, table_of
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import InvalidArgument
from sklearn.linear_model import LogisticRegression
from sklearn.tree import DecisionTreeClassifier

from mapl import PrivateClassifier
from mapl.features import maps
from mapl.features.contributions import Contributions
from mapl.features.copula import CopulaForm
from mapl.features.grids import CategoryGrid, Grid, NumberGrid
from mapl.features.maps import FeatureMap
from mapl.features.passes import Copula, Gradient, Gram
from mapl.features.sketch import Sketch, SketchForm
from mapl.privacy import moments, noisy_counts, pairs, soft_dissent
from mapl.privacy.gradients import WEIGHT_GRID, exact_weights
from mapl.privacy.linear_map import LENGTH_UNIT
from mapl.privacy.moments import MOST_RECORDS_EACH, WEIGHT
from mapl.privacy.questions import GramQuestion, Question
from mapl.records import cells, columns, containers, files, keys, table
from mapl.records.keys import chunk_rows, group_keys, record_keys, unit_keys
from mapl.records.labels import declared_classes, encode
from mapl.records.table import Table
from mapl.teachers.training import train

N_CHUNKS = 5
ONE = np.zeros(1)


def bits(part: Any, rows: Any) -> list[bytes]:
    """What a learner could see of each of some rows, to the last bit."""
    if hasattr(part, "indptr"):
        return [
            part[i].indices.tobytes() + part[i].data.tobytes() + b"%d" % part[i].nnz
            for i in rows
        ]
    if isinstance(part, pd.DataFrame):
        kinds = repr([str(kind) for kind in part.dtypes]).encode()
        listed = [part[name].tolist() for name in part.columns]
        return [kinds + repr([cell[i] for cell in listed]).encode() for i in rows]
    return [part[i].tobytes() for i in rows]


def units_of(made: Any, codes: Any, owners: Any) -> Any:
    """The units of records with these owners, as a fit has them."""
    if owners is None:
        return None
    return unit_keys(group_keys(owners, len(codes)), made, codes)


def chunk_contents(case: Case, folder: Path | None) -> list[list[list[bytes]]]:
    """For each neighbour, what is in each chunk, in order."""
    found = []
    for rows, labels, owners in case.neighbours():
        made = table_of(case, rows, folder)
        assert len(made) == len(rows) or case.container == "csv"
        if len(made) != len(rows):  # a line that cannot be read: alone
            return []
        codes = encode(labels, declared_classes(fuzz.CLASSES))
        units = units_of(made, codes, owners)
        chunks = chunk_rows(record_keys(made, codes), units, n_chunks=N_CHUNKS)
        assert sorted(np.concatenate(chunks).tolist()) == list(range(len(rows)))
        data = made.data
        found.append(
            [
                [b + b"%d" % codes[i] for b, i in zip(bits(data, c), c, strict=True)]
                for c in chunks
            ]
        )
    return found


def check_chunks(case: Case, folder: Path | None = None) -> None:
    found = chunk_contents(case, folder)
    if not found:
        return
    before, after, permuted = found
    changed = [j for j in range(N_CHUNKS) if before[j] != after[j]]
    assert len(changed) <= 1
    assert after == permuted
    for j in changed:  # what was there is there, in the same order
        rest = iter(after[j])
        assert all(any(record == other for other in rest) for record in before[j])
        new = Counter(after[j]) - Counter(before[j])
        assert sum(new.values()) == len(case.added)


@fuzzed(300, cases(tuple(CONTAINERS)))
def test_a_unit_changes_one_chunk(case: Case) -> None:
    check_chunks(case)


@fuzzed(100, cases(FILES))
def test_a_unit_changes_one_chunk_of_a_file(case: Case) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        check_chunks(case, Path(folder))


@fuzzed(60, cases(("list", "array", "pandas objects", "polars", "arrow")))
def test_the_container_does_not_matter(case: Case) -> None:
    """Typed containers hold less: what they hold has the same form everywhere."""
    held = fuzz.typed_columns(case.rows, case.kinds).values()
    rows = [list(row) for row in zip(*held, strict=True)]
    expected = canonical_bits(case, rows, "list")
    for container in ("array", "pandas objects", "polars", "arrow"):
        assert canonical_bits(case, rows, container) == expected, container


def canonical_bits(case: Case, rows: Any, container: str) -> list[bytes]:
    X = CONTAINERS[container](rows, case.kinds)
    made = table.canonical_table(X, case.schema)
    return bits(made.data, range(len(rows)))


# Sums over records ------------------------------------------------------------------


@lru_cache
def public_map(kinds: tuple[str, ...], container: str) -> FeatureMap:
    """A feature map of public points with these types, with few cosines."""
    usual = {
        "number": [0.0, 1.5, -3.0, 40.0],
        "text": ["York", "Bath", "7", None],
        "category": ["a", "b", None, "a"],
        "time": ["2020-01-01", "2021-05-05", None, "2020-07-01"],
        "duration": [None, 1, 2, 3],
    }
    rows = [
        [usual[kind][(i + j) % 4] for j, kind in enumerate(kinds)] for i in range(40)
    ]
    case = Case(kinds, rows, [], None, [], [], None, 0, 0, "list")
    if container in fuzz.OF_NUMBERS:
        case = replace(case, container=container)
    families = maps.FAMILIES
    maps.FAMILIES = ((0, 6, 1.0), (2, 6, 2.0))
    try:
        return FeatureMap.of(table_of(case, rows))[0]
    finally:
        maps.FAMILIES = families


def grids_of(case: Case, made: Table) -> list[Grid | None]:
    """Cells of the columns, as a dictionary would have them."""
    found: list[Grid | None] = []
    for column in made.schema.columns.values():
        if column.kind == "category":
            found.append(CategoryGrid(len(column.categories)))
        elif column.kind == "text":
            found.append(None)
        else:
            found.append(NumberGrid.of(-100.0, 20_000.0, whole=False))
    return found


def passes_of(case: Case, made: Table) -> list[tuple[Any, int]]:
    """All that a fit asks of records, with the bound of a unit's contribution."""
    feature_map = public_map(case.kinds, case.container)
    rng = np.random.default_rng(0)
    weights = exact_weights(rng.normal(size=(feature_map.linear_map.width, 3)) / 2000)
    step = exact_weights(rng.normal(size=weights.shape) / 2000)
    part, units = Fraction(1), np.full(len(feature_map.pieces), WEIGHT_GRID / 32.0)
    found: list[tuple[Any, int]] = [
        (Gradient(Question(weights, 2**30, part)), 2**30 * LENGTH_UNIT),
        (Gram(GramQuestion(weights, step, units, 2**20, part)), 2**20),
    ]
    grids = [grid for grid in grids_of(case, made) if grid is not None]
    if grids and case.container not in ("sparse", "scattered"):
        form = SketchForm.of(grids, 3)
        shares = [rng.dirichlet(np.full(g.n_cells, 0.1)) for g in grids]
        sketch = Sketch(shares, 1e5, np.ones(3), 1.0)
        copula = CopulaForm.of(grids, sketch, part).question
        found.append((Counted(form), form.squared_length))
        found.append((Copula(copula), copula.squared_length))
    return found


@dataclass(frozen=True)
class Counted:
    """Counts of cells as they are published."""

    form: SketchForm

    def total(self, records: Any) -> Any:
        return self.form.total(records.histograms(self.form.sizes))


def sums_of(case: Case) -> list[list[Any]]:
    """For each neighbour, all sums of what units contribute; and of the new unit."""
    feature_map = public_map(case.kinds, case.container)
    found = []
    for rows, labels, owners in (*case.neighbours(), case.alone()):
        made = table_of(case, rows)
        codes = encode(labels, declared_classes(fuzz.CLASSES))
        records = Contributions(
            *(made, codes, feature_map),
            units=units_of(made, codes, owners),
            keys=record_keys(made, codes),
            grids=grids_of(case, made),
            most_each=MOST_RECORDS_EACH,
        )
        found.append([asked.total(records) for asked, _ in passes_of(case, made)])
    return found


@fuzzed(120, cases(tuple(CONTAINERS)))
def test_a_unit_moves_a_sum_by_its_own_bounded_contribution(case: Case) -> None:
    check_sums(case)


def check_sums(case: Case) -> None:
    made = table_of(case, case.rows)
    bounds = [bound for _, bound in passes_of(case, made)]
    weight = 1 if case.groups is None else WEIGHT
    one = case.groups is None and len(case.added) == 1
    sums = zip(*sums_of(case), strict=True)
    for (before, after, permuted, alone), bound in zip(sums, bounds, strict=True):
        np.testing.assert_array_equal(after, permuted)
        moved = after - before
        if one:
            np.testing.assert_array_equal(moved, alone)
        if one or case.groups is not None:
            squared = sum(int(v) ** 2 for v in moved.reshape(-1))
            assert squared <= weight**2 * bound


def unbounded(left: Any, right: Any, *_: Any) -> Any:
    return left, right


def pool_of_one_record(self: Any, table: Any) -> Any:
    """A map that takes its scale from the records that it encodes."""
    found = ENCODE(self, table)
    shifted = found.numbers - found.numbers[:1]
    return replace(found, numbers=shifted.astype(np.int16))


ENCODE = FeatureMap.encode
PLANTED: dict[str, Any] = {
    "a record that is not shortened": (pairs, "_shortened", unbounded),
    "off-diagonal entries counted once": (
        pairs,
        "_pair_squares",
        lambda left, right: (left**2 * right**2).sum(axis=(1, 2)).astype(np.int64),
    ),
    "a pool that reads a private cell": (FeatureMap, "encode", pool_of_one_record),
}


@pytest.mark.parametrize("name", PLANTED)
def test_the_fuzzer_finds_a_sum_that_is_wrong(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    public_map.cache_clear()
    monkeypatch.setattr(*PLANTED[name])
    assert finds(check_sums, cases(("floats", "list"), kinds=("number",)), n=60)
    public_map.cache_clear()


# Files, line by line ----------------------------------------------------------------


@fuzzed(100, cases(("csv",)))
def test_a_line_changes_no_other_line(case: Case) -> None:
    import tempfile

    usual = [[1, "York", "a", "2020-01-01"][: len(case.kinds)] for _ in range(3)]
    with tempfile.TemporaryDirectory() as folder:
        alone = table_of(case, usual, Path(folder))
        together = table_of(case, [*usual[:1], *case.added, *usual[1:]], Path(folder))
    kept = bits(together.data, range(len(together)))
    expected = bits(alone.data, range(3))
    assert kept[0] == expected[0]
    assert kept[-2:] == expected[-2:]


# Teachers ---------------------------------------------------------------------------

LEARNERS: dict[str, Any] = {
    "tree": DecisionTreeClassifier(max_depth=3),
    "logistic": LogisticRegression(),
}


@fuzzed(40, cases(("floats", "list", "sparse"), kinds=("number",), n=40))
def test_a_unit_changes_the_votes_of_one_teacher(case: Case) -> None:
    points = np.linspace(-5, 5, 7 * len(case.kinds)).reshape(7, -1)
    for learner in LEARNERS.values():
        votes = []
        for rows, labels, owners in case.neighbours():
            made = table_of(case, rows)
            codes = encode(labels, declared_classes(fuzz.CLASSES))
            units = units_of(made, codes, owners)
            chunks = chunk_rows(record_keys(made, codes), units, n_chunks=N_CHUNKS)
            usable = (codes >= 0) & ~made.incomplete
            X = made.data
            if case.container == "list":
                X = X.to_numpy(dtype=np.float64)
            teachers = train(
                learner,
                X,
                codes,
                [c[usable[c]] for c in chunks],
                labels=np.array(fuzz.CLASSES),
                random_state=0,
            )
            votes.append(
                [b"" if t is None else t.vote(points).tobytes() for t in teachers]
            )
        before, after, permuted = votes
        assert sum(a != b for a, b in zip(before, after, strict=True)) <= 1
        assert after == permuted


# Everything that is public ----------------------------------------------------------


def published(
    fit: Callable[[], dict[str, Any]], patch: pytest.MonkeyPatch
) -> tuple[dict[str, Any], list[Any]]:
    """Run a fit without noise, on made-up votes; return all that is public, and the
    real votes.
    """
    real: list[Any] = []

    def collect(*args: Any, **kwargs: Any) -> Any:
        votes = COLLECT(*args, **kwargs)
        real.append(votes)
        made_up = np.zeros_like(votes)
        made_up[::2, ::3] = 1
        if votes.ndim == 3:  # probabilities
            made_up[:] = soft_dissent.on_grid(1.0 + made_up)
        return made_up

    def silent(sigma: Any, shape: Any, **_: Any) -> Any:
        return np.zeros(shape, dtype=np.int64)

    def nothing(block: Any, *_: Any, **__: Any) -> Any:
        shape = block.cells.shape[1], block.residuals.shape[1]
        return np.zeros(shape, dtype=np.int64)

    patch.setattr("mapl.methods.votes.collect_votes", collect)
    patch.setattr(noisy_counts, "discrete_gaussian", silent)
    patch.setattr(moments, "discrete_gaussian", silent)
    patch.setattr(soft_dissent, "discrete_gaussian", silent)
    patch.setattr(moments, "bounded_sum", nothing)
    out, err = io.StringIO(), io.StringIO()
    with (
        warnings.catch_warnings(record=True) as caught,
        redirect_stdout(out),
        redirect_stderr(err),
    ):
        warnings.simplefilter("always")
        try:
            seen = fit()
        except Exception as error:
            seen = {"error": f"{type(error).__name__}: {error}"}
    seen |= {"out": out.getvalue(), "err": err.getvalue()}
    seen["warnings"] = [str(warning.message) for warning in caught]
    return seen, real


COLLECT: Any = __import__("mapl.methods.votes").methods.votes.collect_votes


def fit_and_show(
    case: Case, method: str, rows: Any, labels: Any, owners: Any
) -> dict[str, Any]:
    public = np.linspace(-9, 9, 30 * len(case.kinds)).reshape(30, -1)
    X = CONTAINERS[case.container](rows, case.kinds)
    if case.container == "pandas":
        X = X.reset_index(drop=True)
    model = PrivateClassifier(
        DecisionTreeClassifier(max_depth=2),
        method=method,
        student=DecisionTreeClassifier(max_depth=2),
        epsilon=5,
        n_teachers=6,
        classes=fuzz.CLASSES,
        on_invalid="drop",
        random_state=0,
    )
    model.fit(X, labels, X_public=public, groups=owners)
    tree = getattr(model.student_, "tree_", None)  # none if there is one class
    tree = SimpleNamespace(feature=ONE, threshold=ONE) if tree is None else tree
    return {
        "certificate": model.certificate_,
        "labels": model.public_labels_.tolist(),
        "soft": model.soft_labels_.tolist(),
        "student": [tree.feature.tolist(), tree.threshold.tolist()],
        "attributes": sorted(vars(model)),
        "repr": repr(model),
    }


@pytest.mark.parametrize("method", ["votes", "moments", "both"])
@fuzzed(12, cases(("floats", "list", "array", "sparse"), kinds=("number",), n=30))
def test_nothing_public_depends_on_a_unit(method: str, case: Case) -> None:
    if case.container == "sparse":
        return  # the public records here are dense, which is refused alike
    with pytest.MonkeyPatch.context() as patch:
        shown = [
            published(lambda n=n: fit_and_show(case, method, *n), patch)
            for n in case.neighbours()
        ]
    first, second, third = (seen for seen, _ in shown)
    assert first == second == third
    if method == "moments":
        return
    check_votes([real[0] for _, real in shown])


@fuzzed(8, cases(FILES, n=20))
def test_nothing_that_the_command_writes_depends_on_a_unit(case: Case) -> None:
    import tempfile

    from click.testing import CliRunner

    from mapl.cli import main

    rng = np.random.default_rng(0)
    public = pd.DataFrame(
        {f"c{i}": public_column(k, rng) for i, k in enumerate(case.kinds)}
    )

    def learn(folder: Path, rows: Any, labels: Any, owners: Any) -> dict[str, Any]:
        extra = {"y": labels} | ({} if owners is None else {"who": owners})
        path = folder / f"private.{case.container}"
        fuzz.write_file(path, rows, case.kinds, extra)
        public.to_parquet(folder / "public.parquet")
        out = folder / "out"
        arguments = ["learn", str(path), "--target", "y", "--classes", "0,1"]
        arguments += ["--public", str(folder / "public.parquet"), "--epsilon", "5"]
        arguments += ["--teachers", "6", "--seed", "1", "--on-invalid", "drop"]
        arguments += ["--allow-overlap", "--out", str(out), "--estimator", "tree"]
        arguments += [] if owners is None else ["--groups", "who"]
        result = CliRunner().invoke(main, arguments)
        shown = {"code": result.exit_code, "output": result.output}
        shown["output"] = shown["output"].replace(str(folder), "")
        for file in sorted(out.glob("*")):
            content = file.read_bytes()
            plain = file.suffix in (".json", ".html", ".md")
            shown[file.name] = content if plain else len(content)
        shown.pop("certificate.json", None)  # holds the digest of model.skops
        return shown

    everything = []
    for rows, labels, owners in case.neighbours():
        with (
            tempfile.TemporaryDirectory() as folder,
            pytest.MonkeyPatch.context() as patch,
        ):
            run = lambda: learn(Path(folder), rows, labels, owners)  # noqa: B023, E731
            everything.append(published(run, patch))
    first, second, third = (seen for seen, _ in everything)
    assert first == second == third
    assert first["code"] == 0, first
    check_votes([real[0] for _, real in everything])


def check_votes(votes: list[Any]) -> None:
    """One unit changes one teacher at most, and the order of records none."""
    flat = [each.reshape(len(each), -1) for each in votes]
    assert (flat[0] != flat[1]).any(axis=1).sum() <= 1
    assert (flat[1] == flat[2]).all()


def public_column(kind: str, rng: Any) -> Any:
    values: dict[str, Any] = {
        "number": rng.normal(size=60),
        "text": rng.choice(["York", "Bath", "7"], 60),
        "category": rng.choice(list(fuzz.CATEGORIES), 60),
        "time": pd.date_range("2020-01-01", periods=60).to_numpy(),
    }
    return values[kind]


# The machine finds the holes that were there ----------------------------------------


def finds(check: Callable[[Case], None], strategy: Any, n: int = 400) -> bool:
    """Whether generated cases break a check."""
    chosen = settings(
        max_examples=n,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )
    try:
        given(strategy)(chosen(lambda case: check(case)))()
    except InvalidArgument:
        raise
    except Exception:  # an error that one record causes is a hole, too
        return True
    return False


def whole_column_numbers(column: Any) -> Any:
    """Numbers if all are, else nothing: one cell decides what the others become."""
    values = list(containers.cells_of(column))
    if not all(type(value) in (int, float) for value in values):
        return np.full(len(values), np.nan)
    return np.array(values, dtype=object).astype(float)


def whole_column_texts(column: Any) -> Any:
    """As numpy does: 1 is "1", and beside a float "1.0"."""
    values = list(containers.cells_of(column))
    numbers = all(type(value) in (int, float) for value in values)
    found = [str(float(v)) if numbers else cells.text(v) for v in values]
    return np.array([*found, None], dtype=object)[:-1]


def signed_zeros(values: Any) -> Any:
    values[~np.isfinite(values)] = np.nan
    return values


def lanes_of_one_zero(values: Any) -> Any:
    """Keys that take -0.0 for 0.0, which learners tell apart."""
    return NUMBER_LANES(np.asarray(values) + 0.0)


NUMBER_LANES, SPARSE_ROWS = keys._number_lanes, keys._sparse_rows


def times_with_now(value: Any) -> int:
    try:
        return int(pd.Timestamp(value).as_unit("ns").value)
    except Exception:
        return cells.NAT


def pandas_csv(path: Path, names: list[str]) -> Any:
    frame = pd.read_csv(path, on_bad_lines="skip", encoding_errors="replace")
    yield files.Block({name: frame[name] for name in names})


def by_position(rows: Any, units: Any, *, n_chunks: int, salt: int = 0) -> Any:
    return np.array_split(np.arange(len(rows)), n_chunks)


def natural_groups(groups: Any, n: int) -> Any:
    """One missing group makes floats of integers."""
    return GROUP_KEYS(pd.Series(groups).map("<{}>".format).tolist(), n)


def explicit_zeros(X: Any, schema: Any) -> Any:
    matrix = X.tocsr(copy=True)
    return table.Table(schema, [matrix], np.ones(matrix.shape[0], dtype=np.bool_))


def rows_without_zeros(matrix: Any, codes: Any) -> Any:
    own = matrix.copy()
    own.eliminate_zeros()
    return SPARSE_ROWS(own, codes)


def pandas_times(column: Any) -> Any:
    return columns._nanoseconds(column, "M", times_with_now)


def shown_by_pandas(kind: Any, values: Any) -> Any:
    """A type that pandas infers from the values."""
    return (
        table._with_nan(values) if kind.kind == "text" else PANDAS_COLUMN(kind, values)
    )


def texts_up_to_nul(texts: Any) -> Any:
    """As pandas groups texts before 3.1: the first of those alike stands for all."""
    known: dict[Any, Any] = {}
    for text in texts:
        known.setdefault(None if text is None else text.split("\0")[0], text)
    keys = list(known)
    places = [
        keys.index(None if text is None else text.split("\0")[0]) for text in texts
    ]
    return columns._objects([*known.values(), None]), np.array(places, dtype=np.int64)


PANDAS_COLUMN, GROUP_KEYS = table._pandas_column, group_keys
ME = __import__(__name__)
HOLES: dict[str, tuple[list[tuple[Any, str, Any]], str]] = {
    "numbers by column": ([(columns.KINDS, "number", whole_column_numbers)], "list"),
    "texts by column": ([(columns.KINDS, "text", whole_column_texts)], "list"),
    "types that pandas infers": ([(table, "_pandas_column", shown_by_pandas)], "list"),
    "times by pandas": ([(columns.KINDS, "time", pandas_times)], "list"),
    "signed zeros": (
        [
            (table, "canonical_floats", signed_zeros),
            (keys, "_number_lanes", lanes_of_one_zero),
        ],
        "floats",
    ),
    "explicit zeros": (
        [
            (table, "_sparse_table", explicit_zeros),
            (keys, "_sparse_rows", rows_without_zeros),
        ],
        "sparse",
    ),
    "csv by pandas": ([(files, "_csv_blocks", pandas_csv)], "csv"),
    "chunks by position": ([(ME, "chunk_rows", by_position)], "list"),
    "groups as they come": ([(ME, "group_keys", natural_groups)], "list"),
    "texts up to a NUL": (
        [(keys, "grouped", texts_up_to_nul), (columns, "grouped", texts_up_to_nul)],
        "list",
    ),
}


def check_zeros(case: Case) -> None:
    """Records with equal keys are equal in every bit."""
    made = table_of(case, [*case.rows, *case.added])
    digests = [row.tobytes() for row in record_keys(made, None)]
    seen = bits(made.data, range(len(digests)))
    for digest, record in zip(digests, seen, strict=True):
        twin = digests.index(digest)
        assert seen[twin] == record


@fuzzed(60, cases(tuple(CONTAINERS)))
def test_records_with_equal_keys_are_equal_in_every_bit(case: Case) -> None:
    check_zeros(case)


def check_any(case: Case) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        check_chunks(case, Path(folder))
        check_twice(case, Path(folder))
    if case.container not in FILES:
        check_zeros(case)


def check_twice(case: Case, folder: Path) -> None:
    """The same records give the same table at any time."""
    first, second = (
        bits(t.data, range(len(t)))
        for t in (table_of(case, case.rows, folder) for _ in range(2))
    )
    assert first == second


@pytest.mark.parametrize("name", HOLES)
def test_the_fuzzer_finds_a_hole_that_is_planted_again(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    patches, container = HOLES[name]
    for where, what, bug in patches:
        if isinstance(where, dict):
            monkeypatch.setitem(where, what, bug)
        else:
            monkeypatch.setattr(where, what, bug)
    assert finds(check_any, cases((container,)))


def test_the_fuzzer_finds_nothing_where_no_hole_is_planted() -> None:
    assert not finds(check_any, cases((*CONTAINERS, "csv")), n=60)
