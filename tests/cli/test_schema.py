"""``mapl schema``, ``mapl sketch`` and ``mapl learn --schema``, on files."""

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from test_cli import run, table


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("schema")
    table(3000, 0).to_csv(path / "private.csv", index=False)
    table(200, 1).to_csv(path / "sample.csv", index=False)
    table(500, 2).to_csv(path / "test.csv", index=False)
    command = ("schema", "draft", path / "sample.csv", "--target", "rich")
    run(*command, "--groups", "person", "--out", path / "schema.json")
    return path


def learn(folder: Path, out: Path, *more: Any, code: int = 0) -> Any:
    command = ("learn", folder / "private.csv", "--schema", folder / "schema.json")
    return run(*command, "--epsilon", 4, "--out", out, *more, code=code)


def test_a_draft_is_shown_for_review_and_not_replaced(folder: Path) -> None:
    form = json.loads((folder / "schema.json").read_text())
    assert form["columns"]["age"]["kind"] == "integer"
    assert form["columns"]["town"]["categories"] == ["Bath", "Ely", "York"]
    assert form["target"] == {"column": "rich", "classes": ["no", "yes"]}
    assert form["unit"] == {"column": "person"}
    command = ("schema", "draft", folder / "sample.csv", "--target", "rich")
    again = (*command, "--out", folder / "schema.json")
    assert "--overwrite" in run(*again, code=2).stderr
    other = run(*command, "--out", folder / "other.json")
    assert "Review this draft" in other.stdout
    assert "widened by half" in other.stdout
    run(*command, "--out", folder / "other.json", "--overwrite")


def test_the_holder_is_told_what_does_not_fit(folder: Path) -> None:
    command = ("schema", "check", folder / "private.csv")
    command += ("--schema", folder / "schema.json")
    assert "not for publication" in run(*command).stdout
    found = json.loads(run(*command, "--json").stdout)
    assert found["records"] == 3000
    assert found["columns"]["age"]["out_of_range"] == 0


def test_no_public_file_is_needed(folder: Path, tmp_path: Path) -> None:
    shown = learn(folder, tmp_path / "out", "--test", folder / "test.csv", "--json")
    found = json.loads(shown.stdout)
    assert found["accuracy"] > 0.85
    assert found["auc"] > 0.9
    assert found["log_loss"] < 0.5
    assert found["made_up_records"] == 10_000
    assert found["public_points"] == 0
    assert "a record" not in found["guarantee"]  # persons, as the schema says
    labels = pd.read_parquet(tmp_path / "out" / "labels.parquet")
    assert list(labels.columns) == ["age", "town", "label"]
    page = (tmp_path / "out" / "report.html").read_text()
    assert "none: a data dictionary alone" in page
    run("certificate", "verify", tmp_path / "out")
    command = ("predict", tmp_path / "out", folder / "test.csv")
    run(*command, "--out", tmp_path / "predicted.csv")
    predicted = pd.read_csv(tmp_path / "predicted.csv")
    assert (predicted["prediction"] == predicted["rich"]).mean() > 0.85


def test_classes_and_columns_may_be_given_on_the_line(
    folder: Path, tmp_path: Path
) -> None:
    more = ("--classes", "no,yes", "--target", "rich", "--drop", "town")
    learn(folder, tmp_path / "out", *more)
    labels = pd.read_parquet(tmp_path / "out" / "labels.parquet")
    assert list(labels.columns) == ["age", "label"]


def test_an_estimator_is_given_encoded_columns(folder: Path, tmp_path: Path) -> None:
    learn(folder, tmp_path / "out", "--estimator", "tree", "--teachers", 20)


def test_public_records_go_with_a_schema(folder: Path, tmp_path: Path) -> None:
    public = folder / "public.csv"
    table(1200, 5).drop(columns="rich").to_csv(public, index=False)
    learn(folder, tmp_path / "many", "--public", public)
    assert len(pd.read_parquet(tmp_path / "many" / "labels.parquet")) == 1200
    same = learn(folder, tmp_path / "x", "--public", folder / "private.csv", code=2)
    assert "the private file itself" in same.stderr


def test_what_is_wrong_is_said_in_a_sentence(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    private = folder / "private.csv"
    nothing = run("learn", private, "--epsilon", 1, "--out", out, code=2)
    assert "'--schema' or '--public'" in nothing.stderr
    public = ("--public", folder / "sample.csv")
    missing = run("learn", private, *public, "--epsilon", 1, "--out", out, code=2)
    assert "Missing option '--target'" in missing.stderr
    assert (
        "says what is a category"
        in learn(folder, out, "--categories", "age", code=2).stderr
    )
    bare = folder / "bare.json"
    bare.write_text('{"columns": {"age": {"kind": "integer", "range": [0, 99]}}}')
    command = ("learn", private, "--schema", bare, "--epsilon", 1, "--out", out)
    assert "--target must be given" in run(*command, code=2).stderr
    no_classes = run(*command, "--target", "rich", code=2)
    assert "--classes must list" in no_classes.stderr
    typo = run(*command, "--target", "rich", "--drop", "aeg", code=2)
    assert "no column 'aeg'" in typo.stderr
    dropped = run(*command, "--target", "rich", "--drop", "age", code=2)
    assert "no column to learn from" in dropped.stderr
    text = folder / "text.json"
    text.write_text(
        '{"columns": {"age": {"kind": "integer", "range": [0, 99]}, '
        '"town": {"kind": "text"}}}'
    )
    command = ("learn", private, "--schema", text, "--epsilon", 4, "--out", out)
    shown = run(*command, "--target", "rich", "--classes", "no,yes")
    assert "free text needs --public: town" in shown.stderr
    assert not (tmp_path / "x").exists()


def test_a_folder_that_holds_something_is_not_written_to(
    folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "mine.txt").write_text("keep me")
    refused = learn(folder, tmp_path, "--overwrite", code=2)
    assert "holds 'mine.txt'" in refused.stderr
    learn(folder, tmp_path / "out")
    assert "earlier run" in learn(folder, tmp_path / "out", code=2).stderr
    learn(folder, tmp_path / "out", "--overwrite")


def test_a_plan_without_public_points_is_run_with_a_schema(
    folder: Path, tmp_path: Path
) -> None:
    planned = run("plan", "--records", 3000, "--epsilon", 4, "--json").stdout
    (tmp_path / "plan.json").write_text(planned)
    command = ("learn", folder / "private.csv", "--schema", folder / "schema.json")
    more = ("--plan", tmp_path / "plan.json", "--out", tmp_path / "out", "--json")
    found = json.loads(run(*command, *more).stdout)
    assert found["method"] == "moments"
    assert found["epsilon"] <= 4


def test_a_sketch_is_a_folder_that_may_be_published(
    folder: Path, tmp_path: Path
) -> None:
    command = ("sketch", folder / "private.csv", "--schema", folder / "schema.json")
    command += ("--epsilon", 2, "--rows", 500, "--out", tmp_path / "out")
    found = json.loads(run(*command, "--json").stdout)
    assert found["made_up_records"] == 500
    points = tmp_path / "out" / "points.parquet"
    assert len(pd.read_parquet(points)) == 500
    run("certificate", "verify", tmp_path / "out")
    again = run(*command, code=2)
    assert "--overwrite" in again.stderr
    run(*command, "--overwrite")
    pd.read_parquet(points)[:9].to_parquet(points)
    edited = run("certificate", "verify", points.parent, code=2)
    assert "digest differs" in edited.stderr
    assert "<svg" in (tmp_path / "out" / "report.html").read_text()
    fresh = (*command[:-4], "--rows", 0, "--out", tmp_path / "other")
    assert "rows must be" in run(*fresh, code=2).stderr


def test_a_model_without_probabilities_has_no_area() -> None:
    from mapl.cli.score import _ranking

    assert _ranking(object(), None, [], []) == {}
