"""A data dictionary: read, drafted, checked, and refused with a sentence."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mapl.errors import ParameterError
from mapl.features.grids import grid_of
from mapl.records.dictionary import (
    Dictionary,
    Entry,
    columns_by_schema,
    groups_by_schema,
)
from mapl.records.drafting import draft
from mapl.records.misfits import count_misfits
from mapl.records.schema import Column

FORM: dict[str, Any] = {
    "form": "mapl-schema/1",
    "columns": {
        "age": {"kind": "integer", "range": [0, 120], "missing": False},
        "pay": {"kind": "number", "range": [-1.5, 1e6], "source": "payroll manual"},
        "town": {"kind": "category", "categories": ["York", 7]},
        "seen": {"kind": "time", "range": ["2020-01-01", "2021-01-01"]},
        "note": {"kind": "text"},
    },
    "target": {"column": "ill", "classes": ["no", "yes"]},
    "unit": {"column": "person"},
}


def test_a_dictionary_is_read_and_written_alike(tmp_path: Path) -> None:
    path = tmp_path / "schema.json"
    path.write_text(json.dumps(FORM), encoding="utf-8-sig")
    found = Dictionary.read(str(path))
    assert Dictionary.read(found) is found
    assert Dictionary.read(found.to_json()) == found
    assert found.groups == "person"
    assert found.columns["town"].categories == ("York", "7")
    assert found.columns["seen"].limits == (18262.0, 18628.0)
    data = found.schema.cast(
        pd.DataFrame(
            {"age": ["7"], "pay": [1], "town": ["Ely"], "seen": [None], "note": ["a"]}
        )
    )
    assert data["age"].tolist() == [7.0]
    assert data["town"].isna().all()


def test_an_older_schema_is_still_read() -> None:
    found = Dictionary.read({"columns": {"wait": {"kind": "duration"}}})
    assert found.columns["wait"].kind == "number"
    assert set(found.to_json()) == {"form", "columns"}


def test_a_column_has_a_known_kind() -> None:
    with pytest.raises(ParameterError, match="must be one of number"):
        Column("odd")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"columns": {}}, "holds no schema"),
        ({"columns": {"a": 3}}, "must be an object"),
        ({"columns": {"a": {"kind": "odd"}}}, "must be one of number"),
        ({"columns": {"a": {"kind": "number", "x": 1}}}, "unknown field 'x'"),
        ({"columns": {"a": {"kind": "number", "missing": 2}}}, "true or false"),
        ({"columns": {"a": {"kind": "text", "range": [0, 1]}}}, "text has no range"),
        ({"columns": {"a": {"kind": "number", "range": [1]}}}, "list of two"),
        ({"columns": {"a": {"kind": "number", "range": [1, 1]}}}, "low < high"),
        ({"columns": {"a": {"kind": "number", "range": [True, 3]}}}, "low < high"),
        ({"columns": {"a": {"kind": "number", "range": [0, "9"]}}}, "low < high"),
        ({"columns": {"a": {"kind": "number", "range": [0, 1e200]}}}, "1e150"),
        ({"columns": {"a": {"kind": "time", "range": ["x", "y"]}}}, "low < high"),
        ({"columns": {"a": {"kind": "category"}}}, "must list its values"),
        ({"columns": {"a": {"kind": "number", "categories": ["x"]}}}, "has no cat"),
        ({"columns": {"a": {"kind": "category", "categories": "x"}}}, "be a list"),
        ({"columns": {"a": {"kind": "category", "categories": [1, "1"]}}}, "differ"),
        (
            {"columns": {"a": {"kind": "category", "categories": list(range(10_001))}}},
            "Call it text",
        ),
        ({"target": "ill"}, "target must be"),
        ({"target": {"column": "a", "classes": "ab"}}, "target must be"),
        ({"target": {"column": "a", "classes": [0, "0"]}}, "integers that differ"),
        ({"target": {"column": "a", "classes": [0.5]}}, "integers that differ"),
        ({"unit": "person"}, 'unit must be "record"'),
        ({"form": "mapl-schema/9"}, "Upgrade mapl"),
        ({"more": 1}, "unknown field 'more'"),
        (
            {
                "columns": {"ill": {"kind": "text"}},
            },
            "no column to learn from",
        ),
    ],
)
def test_what_is_wrong_with_a_dictionary_is_said(change: Any, message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        Dictionary.read({**FORM, **change})


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["kind", "range", "categories", "missing", "column", "a"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=8,
)
ENTRY = st.fixed_dictionaries(
    {"kind": st.sampled_from(["number", "integer", "category", "text", "time", 3])},
    optional={"range": JSON, "categories": JSON, "missing": JSON, "source": JSON},
)


@settings(max_examples=300, deadline=None)
@given(st.dictionaries(st.text(max_size=3), ENTRY | JSON, max_size=3), JSON, JSON)
def test_any_dictionary_is_read_or_refused(
    columns: Any, target: Any, unit: Any
) -> None:
    form = {"columns": columns, "target": target, "unit": unit}
    for given_form in (form, {"columns": columns}):
        try:
            found = Dictionary.read(given_form)
            found.require_ranges()
        except ParameterError:
            continue
        grids = [grid_of(entry) for entry in found.columns.values()]
        assert all(grid is None or grid.n_cells > 1 for grid in grids)


def test_files_that_hold_no_dictionary_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "schema.json"
    path.write_text("{")
    with pytest.raises(ParameterError, match="no JSON"):
        Dictionary.read(path)
    path.write_text("[]")
    with pytest.raises(ParameterError, match="holds no schema"):
        Dictionary.read(path)
    with pytest.raises(ParameterError, match="cannot be read"):
        Dictionary.read(tmp_path / "none.json")
    with pytest.raises(ParameterError, match="path, a dict or a Dictionary, got int"):
        Dictionary.read(3)


def test_the_published_form_of_schemas_matches_the_reader() -> None:
    from importlib.resources import files

    import jsonschema

    text = (files("mapl") / "data" / "schema.schema.json").read_text()
    schema = json.loads(text)
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    validator.validate(FORM)
    for change in (
        {"columns": {}},
        {"columns": {"a": {"kind": "odd"}}},
        {"columns": {"a": {"kind": "category"}}},
        {"columns": {"a": {"kind": "number", "x": 1}}},
        {"unit": "person"},
        {"more": 1},
    ):
        assert not validator.is_valid({**FORM, **change})


@pytest.mark.parametrize("kind", ["pandas", "polars", "arrow"])
def test_columns_and_units_go_by_name(kind: str) -> None:
    found = Dictionary.read(
        {
            "columns": {n: {"kind": "text"} for n in ("b", "a")},
            "unit": {"column": "who"},
        }
    )
    frame = pd.DataFrame({"a": ["1"], "who": ["x"], "b": ["2"], "c": ["3"]})
    table: Any = frame
    if kind == "polars":
        table = pl.DataFrame(frame.to_dict("list"))
    elif kind == "arrow":
        import pyarrow as pa

        table = pa.Table.from_pandas(frame)
    chosen = columns_by_schema(found, table)
    names = chosen.column_names if kind == "arrow" else list(chosen.columns)
    assert names == ["b", "a"]
    assert [str(v) for v in groups_by_schema(found, table, None)] == ["x"]
    assert groups_by_schema(found, table, "given") == "given"
    assert groups_by_schema(None, table, None) is None
    with pytest.raises(ParameterError, match="lacks b, a"):
        columns_by_schema(found, frame[["c"]])
    with pytest.raises(ParameterError, match="Pass groups="):
        groups_by_schema(found, np.zeros((2, 2)), None)


# Drafts -----------------------------------------------------------------------------


def sample() -> Any:
    return pd.DataFrame(
        {
            "age": [31, 54, None],
            "rate": [0.5, -2.5, 1.0],
            "flag": [0, 1, 1],
            "town": ["York", "Bath", None],
            "day": ["2020-01-05", "2021-03-04", "2020-07-07"],
            "blank": [None, None, None],
            "name": ["Ann", "Bob", "Cy"],
            "who": ["a", "b", "c"],
            "ill": ["no", "yes", "no"],
        }
    )


@pytest.mark.parametrize("ending", [".csv", ".parquet"])
def test_a_sample_becomes_a_draft(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"sample{ending}"
    table = pd.concat([sample()] * 60, ignore_index=True)
    table["name"] = [f"person {i}" for i in range(len(table))]
    (table.to_csv if ending == ".csv" else table.to_parquet)(path, index=False)
    found = draft(path, target="ill", groups="who")
    kinds = {name: entry.kind for name, entry in found.columns.items()}
    assert kinds == {
        "age": "integer",
        "rate": "number",
        "flag": "integer",
        "town": "category",
        "day": "time",
        "blank": "text",
        "name": "text",
    }
    assert found.columns["age"].range == (19, 66)
    assert found.columns["rate"].range == (-4.25, 2.75)
    assert found.columns["flag"].range == (0, 1)
    assert found.columns["town"].categories == ("Bath", "York")
    assert found.columns["day"].range == ("2019-06-07", "2021-10-02")
    assert found.classes == ("no", "yes")
    assert all(entry.source for entry in found.columns.values())
    assert Dictionary.read(found.to_json()) == found


def test_a_table_of_columns_becomes_a_draft(tmp_path: Path) -> None:
    path = tmp_path / "columns.csv"
    path.write_text(
        "Name,Type,Min,Max,Values\n"
        "age,Integer,0,120,\n"
        "rate,float,-1,1e3,\n"
        "town,categorical,,,York; Bath\n"
        "day,date,2020-01-01,2022-01-01,\n"
        "free,string,,,\n"
        "who,text,,,\n"
        'ill,category,,,"no,yes"\n'
    )
    found = draft(path, target="ill", groups="who")
    assert found.columns["age"] == Entry("integer", (0, 120), source="columns.csv.")
    assert found.columns["rate"].range == (-1.0, 1000.0)
    assert found.columns["town"].categories == ("York", "Bath")
    assert found.columns["day"].range == ("2020-01-01", "2022-01-01")
    assert found.classes == ("no", "yes")
    assert "who" not in found.columns
    with pytest.raises(ParameterError, match="lists no column 'else'"):
        draft(path, target="else")
    for line, message in (
        ("age,odd,0,1,", "must be one of number"),
        ("age,int,nan,1,", "low < high"),
        ("age,category,,,", "must list its values"),
    ):
        path.write_text(f"name,kind,min,max,values\n{line}\nill,text,,,\n")
        with pytest.raises(ParameterError, match=message):
            draft(path, target="ill")


def test_classes_that_are_numbers_stay_numbers(tmp_path: Path) -> None:
    path = tmp_path / "sample.csv"
    path.write_text("a,ill\n1,10\n2,9\n")
    assert draft(path, target="ill").classes == (9, 10)
    found = Dictionary.read({**FORM, "target": {"column": "ill", "classes": [0, 1]}})
    assert found.classes == (0, 1)
    assert found.class_names == ["0", "1"]


def test_ranges_of_times_may_be_dates() -> None:
    from datetime import date

    limits = [date(2020, 1, 1), date(2021, 1, 1)]
    form = {"columns": {"a": {"kind": "time", "range": limits}}}
    assert json.dumps(Dictionary.read(form).to_json())


def test_what_cannot_be_drafted_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "sample.csv"
    path.write_text("a,b\n")
    with pytest.raises(ParameterError, match="no records to draft"):
        draft(path, target="a")
    path.write_text("a,b\n1,2\n")
    with pytest.raises(ParameterError, match="Column 'c' is not in"):
        draft(path, target="c")
    path.write_text("a\n1\n")
    with pytest.raises(ParameterError, match="other columns"):
        draft(path, target="a")


def test_the_holder_learns_what_does_not_fit(tmp_path: Path) -> None:
    path = tmp_path / "private.csv"
    path.write_text(
        "age,pay,town,seen,note,ill,person\n"
        "200,5,York,2020-05-05,x,no,1\n"
        "x,1e9,Ely,2031-01-01,,maybe,2\n"
        ",,,,,,\n"
    )
    found = count_misfits(path, Dictionary.read(FORM))["columns"]
    assert found["age"] == {
        "kind": "number",
        "missing": 1,
        "does_not_fit": 1,
        "out_of_range": 1,
    }
    assert found["pay"]["out_of_range"] == 1
    assert found["town"]["does_not_fit"] == 1
    assert found["seen"]["out_of_range"] == 1
    assert found["ill"]["does_not_fit"] == 1
    assert found["person"] == {
        "kind": "group",
        "missing": 1,
        "does_not_fit": 0,
        "out_of_range": 0,
    }
    open_target = {**FORM, "target": {"column": "ill"}}
    free = count_misfits(path, Dictionary.read(open_target))["columns"]
    assert free["ill"]["does_not_fit"] == 0
