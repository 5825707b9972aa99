"""Whatever a file holds, a command ends with a sentence: no traceback, no crash, and no
private byte in any message.
"""

import io
import json
import os
import pickle
import shutil
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from cases import fuzzed
from click.testing import CliRunner
from hypothesis import strategies as st

from commands import with_overlap
from mapl.cli import main
from mapl.publish import apart, certificate

SECRET = "s3cr3t"


def run(*arguments: Any) -> Any:
    """Run a command; it ends by itself, with a known exit code."""
    arguments = with_overlap(arguments)
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result
    assert result.exit_code in (0, 2, 3, 4), (result.exit_code, result.output)
    assert "Traceback" not in result.output
    return result


changes = st.lists(
    st.tuples(st.floats(0, 1, exclude_max=True), st.binary(max_size=3)),
    min_size=1,
    max_size=4,
)


def mutated(data: bytes, edits: list[tuple[float, bytes]]) -> bytes:
    """Overwrite bytes here and there; an empty edit cuts the file off."""
    for place, new in edits:
        at = int(place * len(data))
        data = data[:at] + new + data[at + len(new) :] if new else data[:at]
    return data


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A published folder, a ledger, and records."""
    path = tmp_path_factory.mktemp("commands")
    rng = np.random.default_rng(0)
    for name, n in (("private", 300), ("public", 80)):
        frame = pd.DataFrame({"a": rng.normal(size=n), "t": rng.choice(["x", "y"], n)})
        if name == "private":
            frame["y"] = np.where(frame["a"] > 0, "yes", "no")
        frame.to_csv(path / f"{name}.csv", index=False)
    os.environ["MAPL_STATE"] = str(path / "state")
    url = f"sqlite:///{path}/budget.db"
    run(*f"ledger create {url} --dataset d --epsilon 9 --delta 1e-4".split())
    for estimator in ("tree", "boosting"):
        run(
            *("learn", path / "private.csv", "--target", "y", "--classes", "no,yes"),
            *("--public", path / "public.csv", "--epsilon", 4, "--teachers", 20),
            *("--estimator", estimator, "--out", path / estimator),
            *("--ledger", url, "--dataset", "d"),
        )
        assert (path / estimator / "model.skops").exists()
    return path


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner),
    max_leaves=5,
)


@fuzzed(40, edits=changes)
def test_certificates(folder: Path, edits: Any) -> None:
    good = (folder / "tree" / "certificate.json").read_bytes()
    path = folder / "edited.json"
    path.write_bytes(mutated(good, edits))
    run("certificate", "verify", path)


@fuzzed(60, field=st.sampled_from(certificate._FIELDS), value=values)
def test_certificates_with_another_value(folder: Path, field: str, value: Any) -> None:
    form = json.loads((folder / "tree" / "certificate.json").read_text())
    path = folder / "edited.json"
    path.write_text(json.dumps(form | {field: value}))
    run("certificate", "verify", path)


@fuzzed(30, edits=changes, model=st.sampled_from(["tree", "boosting"]))
def test_models(folder: Path, edits: Any, model: str) -> None:
    """Of a stranger, who signs what was changed."""
    target = folder / "stranger"
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(folder / model, target)
    path = target / "model.skops"
    table = pickle.dumps(pd.read_csv(folder / "public.csv", dtype=str))
    sent = mutated(path.read_bytes(), edits), table
    given = io.BytesIO(b"".join(struct.pack("<Q", len(one)) + one for one in sent))
    said = io.BytesIO()
    apart.answer_all(path, given, said)  # as in the process that `mapl predict` starts
    (size,) = struct.unpack("<Q", said.getvalue()[:8])
    assert json.loads(said.getvalue()[8 : 8 + size])


@fuzzed(30, edits=changes)
def test_ledgers(folder: Path, edits: Any) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MAPL_STATE", str(folder / "state"))
        path = folder / "budget.db"
        good = path.read_bytes()
        try:
            path.write_bytes(mutated(good, edits))
            url = f"sqlite:///{path}"
            for command in ("show", "history", "verify"):
                run("ledger", command, url)
        finally:
            for beside in folder.glob("budget.db-*"):
                beside.unlink()
            path.write_bytes(good)


@fuzzed(60, edits=changes)
def test_schemas(folder: Path, edits: Any) -> None:
    good = b'{"columns": {"a": {"kind": "number"}, "t": {"kind": "text"}}}'
    path = folder / "schema.json"
    path.write_bytes(mutated(good, edits))
    run("check", folder / "private.csv", "--schema", path)


@fuzzed(40, value=values)
def test_schemas_of_other_values(folder: Path, value: Any) -> None:
    path = folder / "schema.json"
    for form in (value, {"columns": value}, {"columns": {"a": value}}):
        path.write_text(json.dumps(form))
        run("check", folder / "private.csv", "--schema", path)


lines = st.lists(
    st.sampled_from(
        [
            "1.5,x,yes",
            f"{SECRET},x,no",
            f'"{SECRET}',
            f'{SECRET}",""',
            f"1,{SECRET},{SECRET}",
            f"1,x,yes,{SECRET}",
            "",
            ",,",
            f"\x00{SECRET}",
            "1e999,\u00fc,yes",
        ]
    ).map(str.encode)
    | st.binary(max_size=8).map(lambda b: SECRET.encode() + b),
    max_size=12,
)


@fuzzed(20, content=lines, drop=st.booleans(), parquet=st.booleans())
def test_private_files(
    folder: Path, content: list[bytes], drop: bool, parquet: bool
) -> None:
    path = folder / ("odd.parquet" if parquet else "odd.csv")
    path.write_bytes(b"a,t,y\n" + b"\n".join(content) + b"\n")
    result = run(
        *("learn", path, "--target", "y", "--classes", "no,yes", "--epsilon", 4),
        *("--public", folder / "public.csv", "--teachers", 3, "--allow-overlap"),
        *("--on-invalid", "drop" if drop else "error", "--out", folder / "odd"),
        "--overwrite",
    )
    assert SECRET not in result.output
    assert result.exit_code == (0 if drop and not parquet else result.exit_code)
    checked = run("check", path, "--schema", folder / "public.csv")
    assert SECRET not in checked.output


words = st.sampled_from(
    [
        *("learn", "predict", "certificate", "verify", "ledger", "show", "check"),
        *("clean", "plan", "create", "--help", "--json", "--target", "y", "--classes"),
        *("no,yes", "--epsilon", "1", "0", "nan", "-1", "1e400", "--delta", "--out"),
        *("--public", "--teachers", "auto", "--schema", "--groups", "--seed", "", "ü"),
        *("schema", "draft", "sketch", "--overwrite", "--rows", "--drop"),
        *("sqlite:///none.db", "postgresql://me:s3cr3t@127.0.0.1:1/x", "--on-invalid"),
    ]
)


@fuzzed(120, arguments=st.lists(words, max_size=8), use=st.booleans())
def test_arguments(folder: Path, arguments: list[str], use: bool) -> None:
    if use:
        arguments = [*arguments, str(folder / "private.csv")]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("MAPL_STATE", str(folder / "state"))
        result = run(*arguments)
    if arguments[:1] == ["ledger"]:  # elsewhere it is the name of a file
        assert SECRET not in result.output


def test_an_unexpected_error_is_one_line_without_its_message(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError(SECRET)

    monkeypatch.setattr("mapl.records.misfits.count_misfits", broken)
    command = ["check", str(folder / "private.csv"), "--schema"]
    command.append(str(folder / "public.csv"))
    result = CliRunner().invoke(main, command)
    assert result.exit_code == 1
    assert "an unexpected RuntimeError at test_commands.py" in result.output
    assert SECRET not in result.output
    monkeypatch.setenv("MAPL_DEBUG", "")  # which the next line sets
    monkeypatch.setattr("sys.argv", ["mapl", *command, "--debug"])
    with pytest.raises(RuntimeError):
        main(standalone_mode=False)
