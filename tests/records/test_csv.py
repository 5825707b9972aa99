"""CSV files are read by RFC 4180: records, not lines."""

import csv
import io
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mapl.errors import ParameterError
from mapl.records import csv_records, files, sources
from mapl.records.csv_records import reading
from mapl.records.files import blocks, record_starts

ALPHABET = 'aé7",;\n\r\t\0 '
fields = st.text(ALPHABET, max_size=5)
records = st.tuples(fields, fields).filter(lambda record: any(record))
writers = st.fixed_dictionaries(
    {
        "lineterminator": st.sampled_from(["\n", "\r\n"]),
        "delimiter": st.sampled_from(",;|\t"),
    }
)


def written(rows: Any, **how: Any) -> bytes:
    """Records as a program writes them that follows the standard."""
    out = io.StringIO(newline="")
    writer = csv.writer(out, quoting=csv.QUOTE_ALL, **how)
    writer.writerow(["p", "q"])
    writer.writerows(rows)
    return out.getvalue().encode()


def read(found: Any) -> tuple[list[Any], int]:
    """All records of some blocks, and how many could not be read."""
    rows, unreadable = [], 0
    for block in found:
        rows += zip(block.columns["p"], block.columns["q"], strict=True)
        unreadable += block.n_unreadable
    return rows, unreadable


def wanted(rows: Any) -> list[Any]:
    return [tuple(cell or None for cell in row) for row in rows]


@settings(max_examples=300, deadline=None)
@given(rows=st.lists(records, max_size=8), how=writers)
def test_a_record_may_hold_line_breaks(
    rows: Any, how: Any, tmp_path_factory: Any
) -> None:
    path = tmp_path_factory.mktemp("csv") / "a.csv"
    path.write_bytes(written(rows, **how))
    with reading(sep=how["delimiter"]):
        assert read(blocks(path, ["p", "q"], rows=3)) == (wanted(rows), 0)


@settings(max_examples=200, deadline=None)
@given(rows=st.lists(records, max_size=12), how=writers, size=st.integers(1, 40))
def test_parts_of_a_file_have_each_record_once(
    rows: Any, how: Any, size: int, tmp_path_factory: Any
) -> None:
    path = tmp_path_factory.mktemp("csv") / "a.csv"
    path.write_bytes(written(rows, **how))
    with pytest.MonkeyPatch.context() as patch, reading(sep=how["delimiter"]):
        patch.setattr(sources, "_PART_BYTES", size)
        parts = sources.Source.of(str(path)).parts
        found = [read(part.blocks(["p", "q"], 2)) for part in parts]
    assert [row for rows, _ in found for row in rows] == wanted(rows)
    assert not any(unreadable for _, unreadable in found)


naive = st.lists(st.text('a,"\r ', max_size=6), min_size=1, max_size=6)


@settings(max_examples=300, deadline=None)
@given(lines=naive)
def test_a_line_without_an_opening_quote_changes_no_other_one(
    lines: Any, tmp_path_factory: Any
) -> None:
    """Whatever one line holds, unless a field begins with a quote."""
    lines = [",".join(f.lstrip('"') for f in line.split(",")) for line in lines]
    path = tmp_path_factory.mktemp("csv") / "a.csv"
    usual = ["1,2", '"3\n4",5', "6,7"]
    seen = []
    for some in (usual, [*usual[:2], *lines, *usual[2:]]):
        path.write_bytes("\n".join(["p,q", *some]).encode())
        seen.append(read(blocks(path, ["p", "q"]))[0])
    expected = [("1", "2"), ("3\n4", "5"), ("6", "7")]
    assert seen[0] == expected
    assert seen[1][:2] == expected[:2]
    assert seen[1][-1] == expected[-1]


@pytest.mark.parametrize(
    ("content", "rows", "unreadable"),
    [
        ('p,q\n1,2\n"3,4\n5,6\n', [("1", "2")], 1),  # never closed: to the end
        ('p,q\n1,2\n"3"x,4\n5,6\n', [("1", "2"), ("5", "6")], 1),
        ('p,q\n1,5" disk\n5,6\n', [("1", '5" disk'), ("5", "6")], 0),
        ('p,q\n1,"2\n\n3"\n\n5,6', [("1", "2\n\n3"), ("5", "6")], 0),
        ("p,q\n1,2\r3\n5,6\n", [("5", "6")], 1),
        ('"p","q"\n"a""b",c\n', [('a"b', "c")], 0),
        ('p,q\n"a\nb",c,d\n5,6\n', [("5", "6")], 1),
    ],
)
def test_records_that_cannot_be_read_are_one_each(
    tmp_path: Path, content: str, rows: Any, unreadable: int
) -> None:
    path = tmp_path / "a.csv"
    path.write_text(content, newline="")
    assert read(blocks(path, ["p", "q"])) == (rows, unreadable)


def test_a_record_without_an_end_takes_no_memory(
    tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setattr(csv_records, "_LONGEST_RECORD", 100)
    path = tmp_path / "a.csv"
    path.write_text('p,q\n1,"2\n' + "3,4\n" * 500 + '",5\n6,7\n')
    assert read(blocks(path, ["p", "q"])) == ([("6", "7")], 1)


def test_names_may_hold_line_breaks(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b'\xef\xbb\xbf"p\n1",q\na,b\n')
    assert files.column_names(path) == ["p\n1", "q"]
    assert files.csv_layout(path)["sep"] == ","
    assert record_starts(path, [3, 8]) == [11]


def test_a_second_record_with_too_many_cells_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text('p,q\n"1\n2",3,4\n')
    with pytest.raises(ParameterError, match="2 names and 3 cells"):
        files.csv_layout(path)
