"""Files, folders, URLs, datasets and queries, in parts that hold every record once."""

import os
import sqlite3
import warnings
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mapl.errors import ParameterError
from mapl.records import cells, sources
from mapl.records.columns import convert, distinct_texts
from mapl.records.containers import distinct_cells
from mapl.records.csv_records import reading
from mapl.records.files import blocks, column_names
from mapl.records.sources import FilePart, Query, Source

FRAME = pd.DataFrame({"a": np.arange(1000), "b": [f"t{i % 7}" for i in range(1000)]})


def numbers(source: Source, rows: int = 64) -> list[int]:
    found: list[int] = []
    for part in source.parts:
        for block in part.blocks(["b", "a"], rows):
            found += [int(a) for a in convert(block.columns["a"], "number")]
    return found


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "_PART_ROWS", 200)
    monkeypatch.setattr(sources, "_PART_BYTES", 1000)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    data = tmp_path / "data"
    data.mkdir()
    FRAME[:400].to_parquet(data / "0.parquet", row_group_size=50, index=False)
    FRAME[400:700].to_csv(data / "1.csv", index=False)
    FRAME[700:].to_csv(data / "2.csv.gz", index=False)
    (data / "notes.md").write_text("not a table")
    return data


@pytest.mark.usefixtures("small_parts")
def test_every_record_is_in_one_part(folder: Path) -> None:
    whole = list(range(1000))
    files = sorted(str(path) for path in folder.glob("*.*") if path.suffix != ".md")
    for given_ in (folder, str(folder), files, [folder / "0.parquet", *files[1:]]):
        source = Source.of(given_)
        assert sorted(numbers(source)) == whole
        assert len(source.parts) >= 5
    assert Source.of(source) is source
    assert sorted(numbers(Source.of(f"{folder}/*.parquet"))) == whole[:400]
    assert Source.of(folder / "1.csv").has_file(folder / "1.csv")
    assert not Source.of(folder / "1.csv").has_file(folder / "2.csv.gz")
    assert str(Source.of(files)).endswith("0.parquet and others")
    assert repr(Source.of(folder / "1.csv")).startswith("Source(")


@pytest.mark.usefixtures("small_parts")
def test_urls_are_read_by_fsspec(folder: Path) -> None:
    for given_ in (f"file://{folder}", f"file://{folder}/*.*[vzt]"):
        assert sorted(numbers(Source.of(given_))) == list(range(1000))
    assert len(numbers(Source.of(f"file://{folder}/1.csv"))) == 300
    with pytest.raises(ParameterError, match="There is no file"):
        Source.of(f"file://{folder}/*.nothing")
    with pytest.raises(ParameterError, match="cannot be read"):
        Source.of("nothing-like-it://x/y.csv")


def test_remote_readers_that_are_missing_are_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import fsspec

    def missing(*_: Any, **__: Any) -> Any:
        raise ImportError("Install s3fs.")

    monkeypatch.setattr(fsspec, "open", missing)
    with pytest.raises(ParameterError, match=r"Install s3fs. pip install 'mapl"):
        Source.of(f"file://{folder}/1.csv")


@given(st.lists(st.text('ab,"\r\n;x1', max_size=12), max_size=60), st.integers(1, 80))
@settings(deadline=None, max_examples=60)
def test_a_csv_that_is_cut_anywhere_has_the_same_lines(
    texts: list[str], size: int
) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        path = Path(name) / "x.csv"
        path.write_bytes(("a,b\n" + "\n".join(texts)).encode())
        whole = [
            block.columns["a"]
            for block in FilePart(str(path), stamp=sources._stamp(str(path))).blocks(
                ["a"], 7
            )
        ]
        patch.setattr(sources, "_PART_BYTES", size)
        cut = [
            block.columns["a"]
            for part in Source.of(path).parts
            for block in part.blocks(["a"], 7)
        ]
        assert list(chain(*cut)) == list(chain(*whole))


@pytest.mark.usefixtures("small_parts")
def test_a_dataset_may_have_folders_as_columns(tmp_path: Path) -> None:
    parted = pa.Table.from_pandas(FRAME)
    pq.write_to_dataset(parted, tmp_path / "d", partition_cols=["b"])
    dataset = ds.dataset(tmp_path / "d", partitioning="hive")
    assert sorted(numbers(Source.of(dataset))) == list(range(1000))
    plain = ds.dataset(pa.Table.from_pandas(FRAME))
    assert sorted(numbers(Source.of(plain))) == list(range(1000))


def test_a_query_is_read_in_batches(tmp_path: Path) -> None:
    import sqlite3
    from contextlib import closing

    with closing(sqlite3.connect(tmp_path / "x.db")) as database:
        FRAME.to_sql("t", database, index=False)
    url = f"sqlite:///{tmp_path}/x.db"
    source = Source.of(Query(url, "SELECT b, a FROM t"))
    assert source.names == ["b", "a"]
    assert source.moving
    assert sorted(numbers(source)) == list(range(1000))
    with pytest.raises(ParameterError, match=r"The query cannot be read"):
        Source.of(Query(url, "SELECT nothing FROM nowhere"))
    with pytest.raises(ParameterError, match="no password"):
        Query("postgresql://me:secret@host/db", "SELECT 1")


def test_what_cannot_be_read_names_itself(folder: Path) -> None:
    (folder / "9.parquet").write_bytes(b"PAR1 nonsense")
    with pytest.raises(ParameterError, match=r"9.parquet cannot be read as a table"):
        Source.of(folder)
    with pytest.raises(ParameterError, match="There is no file"):
        Source.of(folder / "*.nothing")
    with pytest.raises(ParameterError, match="at least one file"):
        Source.of([])
    source = Source.of(folder / "1.csv")
    with pytest.raises(ParameterError, match="Column 'c' is not in"):
        source.check_columns(["a", "c"])
    with pytest.raises(ParameterError, match=r"1.csv"):
        list(source.parts[0].blocks(["c"], 10))
    with pytest.raises(ParameterError, match=r"0.parquet"):
        list(Source.of(folder / "0.parquet").parts[0].blocks(["c"], 10))
    FRAME[:10].to_csv(folder / "1.csv", index=False)
    with pytest.raises(ParameterError, match="was changed during the fit"):
        list(source.parts[0].blocks(["a"], 10))


def test_a_damaged_fragment_names_itself(tmp_path: Path) -> None:
    FRAME.to_parquet(tmp_path / "x.parquet", row_group_size=100)
    dataset = ds.dataset(tmp_path / "x.parquet")
    data = bytearray((tmp_path / "x.parquet").read_bytes())
    data[10:2000] = bytes(1990)
    (tmp_path / "x.parquet").write_bytes(data)
    with pytest.raises(ParameterError, match=r"x.parquet cannot be read"):
        numbers(Source.of(dataset))


def test_a_file_counts_once(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ParameterError, match="is named twice"):
        Source.of([f"{folder}/*.csv", folder / "1.csv"])
    (folder / "link.csv").symlink_to(folder / "1.csv")
    with pytest.raises(ParameterError, match="is named twice, or is a link"):
        Source.of(folder)
    url = f"file://{folder}/1.csv"
    with pytest.raises(ParameterError, match="is named twice"):
        Source.of([url, url])


def test_a_change_of_remote_files_and_datasets_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    FRAME.to_parquet(path)
    given_ = [Source.of(f"file://{path}"), Source.of(ds.dataset(path))]
    FRAME[:900].to_parquet(path)
    for source in given_:
        with pytest.raises(ParameterError, match="was changed during the fit"):
            numbers(source)


def test_datasets_that_guess_types_or_are_empty_are_refused(tmp_path: Path) -> None:
    FRAME.to_csv(tmp_path / "x.csv")
    with pytest.raises(ParameterError, match="must be Parquet"):
        Source.of(ds.dataset(tmp_path / "x.csv", format="csv"))
    (tmp_path / "nothing").mkdir()
    empty = ds.dataset(tmp_path / "nothing", schema=pa.schema([("a", pa.int64())]))
    with pytest.raises(ParameterError, match="no files"):
        Source.of(empty)


def test_a_flipped_bit_is_noticed_where_pages_have_checksums(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    plain = {"compression": "none", "use_dictionary": False}
    pq.write_table(pa.Table.from_pandas(FRAME), path, write_page_checksum=True, **plain)
    data = bytearray(path.read_bytes())
    data[200] ^= 1
    path.write_bytes(data)
    with pytest.raises(ParameterError, match="cannot be read"):
        numbers(Source.of(path))


def test_a_part_keeps_the_format_of_its_csv(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_bytes("a|b\n1|é\n2|e\n".encode("latin-1"))
    with reading(sep="|", encoding="latin-1"):
        source = Source.of(tmp_path / "x.csv")
    (block,) = [b for b in source.parts[0].blocks(["b"], 10) if len(b.columns["b"])]
    assert block.columns["b"] == ["é", "e"]


# Arrow columns ----------------------------------------------------------------------

ODD = st.sampled_from(["1", "1.0", "nan", "true", "2020-01-01T00:00:00"])
TEXTS = st.lists(st.one_of(st.none(), st.text(max_size=6), ODD), max_size=30)


@given(TEXTS, st.sampled_from(["string", "large_string", "dictionary", "chunked"]))
@settings(deadline=None, max_examples=200)
def test_arrow_texts_are_what_each_cell_is_by_itself(
    values: list[str | None], form: str
) -> None:
    column: Any = pa.array(values, pa.string())
    if form == "large_string":
        column = pa.array(values, pa.large_string())
    if form == "dictionary":
        column = column.dictionary_encode()
    if form == "chunked":
        half = len(values) // 2
        column = pa.chunked_array([column[:half], column[half:]])
    wanted = [cells.text(value) for value in values]
    assert convert(column, "text").tolist() == wanted
    texts, places = distinct_texts(column)
    assert texts[places].tolist() == wanted
    some = tuple(sorted({text for text in wanted[::2] if text is not None}))
    codes = convert(column, "category", some).tolist()
    assert codes == [some.index(t) if t in some else -1 for t in wanted]


INTEGERS = st.lists(
    st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1)), min_size=1, max_size=20
)


@given(INTEGERS)
@settings(deadline=None, max_examples=200)
def test_arrow_integers_with_gaps_are_rounded_one_by_one(
    values: list[int | None],
) -> None:
    found = convert(pa.array(values, pa.int64()), "number")
    np.testing.assert_array_equal(found, [cells.number(value) for value in values])


def test_other_arrow_columns_are_read_cell_by_cell() -> None:
    truth = pa.array([True, None, False])
    np.testing.assert_array_equal(convert(truth, "number"), [1.0, np.nan, 0.0])
    odd = pa.array(["7", None])
    np.testing.assert_array_equal(convert(odd, "number"), [7.0, np.nan])
    assert distinct_cells(pa.array([1, 2])) is None
    assert distinct_cells(["x"]) is None
    nothing = pa.chunked_array([], pa.string())
    assert convert(nothing, "text").tolist() == []
    raw = pa.array([b"\xff", b"a"], pa.binary())
    broken = pa.Array.from_buffers(pa.string(), 2, raw.buffers())
    assert convert(broken, "text").tolist() == [cells.text("\udcff"), "a"]


# Each file once ---------------------------------------------------------------------


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "data" / "x y.parquet"
    path.parent.mkdir()
    pq.write_table(pa.Table.from_pandas(FRAME), path, row_group_size=200)
    return path


def spellings(path: Path) -> list[Any]:
    """Ways to name a file twice, by itself and as a dataset."""
    (path.parent / "link.parquet").symlink_to(path)
    os.link(path, path.parent / "hard.parquet")
    own, tables = ds.dataset(path), ds.dataset(pa.Table.from_pandas(FRAME))
    lower = pafs.SubTreeFileSystem(str(path.parent), pafs.LocalFileSystem())
    below = ds.dataset(path.name, filesystem=lower)
    return [
        [path, f"file://{path}"],
        [f"file://{path}", f"local://{path}"],
        [path, path.parent / "." / path.name],
        [path, f"{path.parent}/../data/{path.name}"],
        [path, path.parent / "link.parquet"],
        [path, path.parent / "hard.parquet"],
        [path, f"{path.parent}/*.parquet"],
        [path.parent, f"file://{path}"],
        ds.dataset([str(path), str(path)], format="parquet"),
        ds.dataset([own, own]),
        ds.dataset([own, ds.dataset(path.parent / "link.parquet")]),
        ds.dataset([own, below]),
        ds.dataset([tables, tables]),
    ]


@pytest.mark.parametrize("i", range(13))
def test_no_file_counts_twice(file: Path, i: int) -> None:
    with pytest.raises(ParameterError, match="named twice"):
        Source.of(spellings(file)[i])


@settings(max_examples=100, deadline=None)
@given(
    scheme=st.sampled_from(["http", "HTTP"]),
    host=st.sampled_from(["host", "HOST", "host:80", "me@host", "host."]),
    path=st.sampled_from(["/a/b.csv", "/a//b.csv", "/a/./b.csv", "/%61/b.csv"]),
    end=st.sampled_from(["", "#part"]),
)
def test_a_url_has_one_spelling(scheme: str, host: str, path: str, end: str) -> None:
    found = sources._canonical_url(f"{scheme}://{host}{path}{end}")
    assert found == "http://host/a/b.csv?"
    for other in ("http://host:8080/a/b.csv", "http://host/a/c.csv", "s3://a/b.csv"):
        assert sources._canonical_url(other) != found


def test_what_a_program_keeps_in_a_folder_is_not_read(file: Path) -> None:
    for place in (".ipynb_checkpoints", "_temporary", "more"):
        (file.parent / place).mkdir()
        (file.parent / place / "copy.parquet").write_bytes(file.read_bytes())
    for name in ("._x.parquet", ".x.parquet", "_x.parquet"):
        (file.parent / name).write_bytes(file.read_bytes())
    expected = [str(file.parent / "more" / "copy.parquet"), str(file)]
    assert Source.of(file.parent).paths == expected
    found = Source.of(f"file://{file.parent}").paths
    assert found == [f"file://{path}" for path in expected]


def test_slices_of_a_table_are_different_records() -> None:
    table = pa.Table.from_pandas(FRAME)
    halves = ds.dataset([ds.dataset(table[:300]), ds.dataset(table[300:])])
    assert sorted(numbers(Source.of(halves))) == list(range(1000))


# Excel ------------------------------------------------------------------------------


def sheet(path: Path, rows: Any) -> Path:
    import openpyxl

    book = openpyxl.Workbook()
    for row in rows:
        book.active.append(row)
    book.save(path)
    return path


def test_a_row_of_a_sheet_decides_about_itself_alone(tmp_path: Path) -> None:
    usual = [["a", "b"], [1, 2], [3], [], [None, 4]]
    wide = [5, 6, 7, 8]
    for rows, unreadable in ((usual, 0), ([*usual[:2], wide, *usual[2:]], 1)):
        path = sheet(tmp_path / "x.xlsx", rows)
        assert column_names(path) == ["a", "b"]
        (block,) = [b for b in blocks(path, ["b", "a"]) if b.columns["a"]]
        assert block.columns == {"b": [2, None, 4], "a": [1, 3, None]}
        assert block.n_unreadable == unreadable
    path = sheet(tmp_path / "y.xlsx", [["a", "b", "x"], [1, 2, None, None]])
    import openpyxl

    book = openpyxl.load_workbook(path)
    book.active["C1"] = None
    book.active["C1"].number_format = "0.0"  # a cell of no value, which is written
    book.save(path)
    assert column_names(path) == ["a", "b"]
    padded = path
    assert [b.n_unreadable for b in blocks(padded, ["a"])] == [0, 0]


def test_a_text_that_is_not_utf_8_is_a_cell_like_others(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE t (b TEXT, a INTEGER)")
    connection.execute("INSERT INTO t VALUES ('c', 1), (CAST(X'ff61' AS TEXT), 2)")
    connection.commit()
    connection.close()
    (part,) = Source.of(Query(f"sqlite:///{path}", "SELECT b, a FROM t")).parts
    found = part.blocks(["b", "a"], 9)
    block = max(found, key=lambda block: len(block.columns["a"]))
    assert [str(b)[-1] for b in block.columns["b"]] == ["c", "a"]
    assert list(block.columns["a"]) == [1, 2]


def test_files_of_a_dataset_have_one_type_a_column(tmp_path: Path) -> None:
    for i, values in enumerate(([1, 2], ["3", "x"])):
        pq.write_table(pa.table({"a": values}), tmp_path / f"{i}.parquet")
    files = [str(tmp_path / f"{i}.parquet") for i in range(2)]
    with pytest.raises(ParameterError, match="'a' has different types"):
        Source.of(ds.dataset(files, schema=pa.schema([("a", pa.int64())])))
    assert len(Source.of(files).paths) == 2


def test_slices_that_overlap_are_refused() -> None:
    table = pa.Table.from_pandas(FRAME)
    for cut in (299, 0):
        halves = ds.dataset([ds.dataset(table[:300]), ds.dataset(table[cut:])])
        with pytest.raises(ParameterError, match="named twice"):
            Source.of(halves)


def test_a_byte_order_mark_is_none_inside_a_file(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_bytes('\ufeffb,a\n"\ufeffx\ny",1\n\ufeffz,2\n'.encode())
    assert column_names(path) == ["b", "a"]
    (part,) = Source.of(path).parts
    found = part.blocks(["b", "a"], 9)
    block = max(found, key=lambda block: len(block.columns["a"]))
    texts, places = distinct_texts(block.columns["b"])
    assert texts[places].tolist() == ["\ufeffx\ny", "\ufeffz"]


def test_the_header_of_an_old_mac_is_none(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_bytes(b'a,"b\rc"\n1,2\n')
    with pytest.raises(ParameterError, match="no line of column names"):
        column_names(path)


def test_an_odd_workbook_says_nothing(tmp_path: Path) -> None:
    """Openpyxl warns of dates that it cannot read, with the cell."""
    path = sheet(tmp_path / "x.xlsx", [["a", "b"], [1, 2]])
    import openpyxl

    book = openpyxl.load_workbook(path)
    book.active["A2"] = 1e9
    book.active["A2"].number_format = "yyyy-mm-dd"
    book.save(path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (block,) = [b for b in blocks(path, ["b", "a"]) if b.columns["a"]]
    assert block.columns["b"] == [2]


def test_files_elsewhere_are_told_apart_by_url_and_content() -> None:
    import fsspec

    memory = fsspec.filesystem("memory")
    for name in ("a.parquet", "b.parquet"):
        with memory.open(f"/{name}", "wb") as file:
            pq.write_table(pa.Table.from_pandas(FRAME), file)
    urls = ["memory://a.parquet", "memory://b.parquet"]
    assert len({repr(sources._identities(url)) for url in urls}) == 2
    with pytest.raises(ParameterError, match="named twice"):
        Source.of([urls[0], "memory:///a.parquet"])
    found = ds.dataset(["/a.parquet"], filesystem=memory, format="parquet")
    (fragment,) = found.get_fragments()
    assert sources._url_of(fragment) == urls[0].replace("//", "///")
    with pytest.raises(ParameterError, match="named twice"):
        Source.of(ds.dataset([found, found]))
    mocked = SimpleNamespace(type_name="s3")
    odd = SimpleNamespace(filesystem=mocked, path="bucket/a.parquet")
    assert sources._url_of(odd) == "s3://bucket/a.parquet"


def test_a_store_that_knows_contents_tells_copies(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import fsspec
    from fsspec.implementations.memory import MemoryFileSystem

    info = {"size": 9, "ETag": "abc", "name": "/a"}
    monkeypatch.setattr(MemoryFileSystem, "info", lambda *_, **__: info)
    assert fsspec.filesystem("memory").info("/a") == info
    first, second = (sources._identities(f"memory://{name}") for name in "ab")
    assert len(first & second) == 1


def test_a_query_to_postgresql_is_read_too(postgres: Any) -> None:
    import psycopg

    with psycopg.connect(postgres.get_uri(), autocommit=True) as connection:
        connection.execute("CREATE TABLE people (b TEXT, a INTEGER)")
        connection.execute("INSERT INTO people VALUES ('c', 1), ('d', 2)")
    url = postgres.get_uri().replace("postgresql://", "postgresql+psycopg://")
    (part,) = Source.of(Query(url, "SELECT b, a FROM people ORDER BY a")).parts
    block = max(part.blocks(["b", "a"], 9), key=lambda b: len(b.columns["a"]))
    assert list(block.columns["b"]) == ["c", "d"]
