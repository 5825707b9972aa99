"""The commands, run as people run them, on files."""

import io
import json
import pickle
import subprocess
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

from commands import with_overlap
from mapl.cli import main
from mapl.cli.inputs import Inputs
from mapl.cli.output import errors_in_one_line
from mapl.errors import CertificateError, ParameterError
from mapl.publish import apart, bundle, report
from mapl.publish.bundle import FILES, TRUSTED_TYPES
from mapl.records.files import column_names, read_private
from mapl.records.schema import Column, Schema


def run(*arguments: Any, code: int = 0) -> Any:
    arguments = with_overlap(arguments)
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert result.exit_code == code, result.output
    return result


def table(n: int, seed: int) -> Any:
    rng = np.random.default_rng(seed)
    age = rng.integers(18, 90, n)
    town = rng.choice(["York", "Bath", "Ely"], n)
    rich = age + 20 * (town == "Bath") + rng.normal(0, 8, n) > 60
    frame = pd.DataFrame(
        {"age": age, "town": town, "rich": np.where(rich, "yes", "no")}
    )
    frame["person"] = np.arange(n) % (n // 2)
    return frame


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("files")
    private = table(3000, 0)
    private.loc[3, "age"] = None
    private["age"] = private["age"].astype(object)
    private.loc[4, "age"] = "unknown"
    private.loc[5, "town"] = None
    private.loc[6, "rich"] = None
    private["only_private"] = 1
    private.to_csv(path / "private.csv", index=False)
    public = table(800, 1).drop(columns=["rich", "person"]).assign(only_public="x")
    public.to_parquet(path / "public.parquet")
    table(500, 2).to_csv(path / "test.csv", index=False)
    return path


def learn(folder: Path, out: Path, *more: Any, code: int = 0) -> Any:
    return run(
        "learn",
        folder / "private.csv",
        "--target",
        "rich",
        "--public",
        folder / "public.parquet",
        "--epsilon",
        4,
        "--teachers",
        30,
        "--overwrite",
        "--out",
        out,
        *more,
        code=code,
    )


@pytest.fixture(scope="module")
def learned(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("out")
    more = ("--classes", "no,yes", "--groups", "person", "--test", folder / "test.csv")
    result = learn(folder, out, *more, "--test-is-public", "--json")
    assert "not in the private file: only_public" in result.stderr
    assert "only_private" not in result.stderr  # without a header, it is a record
    shown = json.loads(result.stdout)
    assert shown["accuracy"] > 0.75
    assert shown["epsilon"] <= 4
    assert shown["answered"] + shown["abstained"] == 800
    assert shown["answered"] > 500
    return out


def test_learn_writes_what_may_be_published_and_nothing_else(learned: Path) -> None:
    names = {path.name for path in learned.iterdir()}
    assert names == set(FILES)
    labels = pd.read_parquet(learned / "labels.parquet")
    assert labels.columns.tolist() == ["age", "town", "label"]
    assert set(labels["label"].dropna()) == {"no", "yes"}
    page = (learned / "report.html").read_text()
    assert "at most a factor" in page
    assert "Accuracy" in page
    for name in ("certificate.json", "report.html"):  # model.skops has chance names
        text = (learned / name).read_text()
        assert "2999" not in text  # the number of private records
        assert "3000" not in text


def test_a_score_that_is_not_public_stays_on_the_terminal(
    folder: Path, tmp_path: Path
) -> None:
    more = ("--classes", "no,yes", "--test", folder / "test.csv", "--mechanism")
    result = learn(folder, tmp_path, *more, "noisy-max")
    assert "accuracy" in result.stdout
    page = (tmp_path / "report.html").read_text()
    assert "Accuracy" not in page
    assert "no answer" in page


@pytest.mark.parametrize(
    ("privacy", "unit", "epsilon", "expected"),
    [
        ("records", "a record", 1.0, "hold a certain record or do not"),
        ("records", "all records of one group", 1.0, "hold the records of a certain"),
        ("labels", "a record", 1.0, "a certain record may be labelled in two ways"),
        ("records", "a record", 0.0, "probability of at most 50.1%"),  # delta
    ],
)
def test_a_report_says_what_epsilon_means(
    learned: Path, privacy: str, unit: str, epsilon: float, expected: str
) -> None:
    signed = json.loads((learned / "certificate.json").read_text())
    signed |= {"unit": unit, "epsilon": epsilon}
    signed["public"] |= {"privacy": privacy}
    page = " ".join(report.Report.of(signed, {"no": 1}).html().split())
    assert expected in page
    assert ("at most 73.2%" in page) == (epsilon == 1)  # 73.11, rounded up
    worthless = report.Report.of(signed | {"epsilon": None}, {"no": 1}).html()
    assert "In plain words" not in worthless


def test_a_model_that_teachers_corrected_loads_and_predicts(
    folder: Path, tmp_path: Path
) -> None:
    out, few = tmp_path / "out", ("--classes", "no,yes", "--teachers", 9)
    learn(folder, out, "--estimator", "tree", *few)
    signed = json.loads((out / "certificate.json").read_text())
    assert signed["mechanism"] == "both"
    assert "teachers that disagree" in (out / "report.html").read_text()
    found = tmp_path / "labels.csv"
    run("predict", out, folder / "test.csv", "--out", found)
    assert set(pd.read_csv(found)["prediction"]) <= {"no", "yes"}
    records = pd.read_csv(folder / "test.csv", dtype=str)
    path = out / "model.skops"
    here = apart._predicted(path, bundle.load_model(path), records)["labels"]
    assert here == pd.read_csv(found)["prediction"].tolist()


def test_a_student_of_votes_alone_loads_and_predicts(
    folder: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    learn(folder, out, "--method", "votes", "--classes", "no,yes")
    signed = json.loads((out / "certificate.json").read_text())
    assert signed["mechanism"] == "dissent"
    records = pd.read_csv(folder / "test.csv", dtype=str)
    path = out / "model.skops"
    model = bundle.load_model(path)
    found = apart._predicted(path, model, records)
    assert set(found["labels"]) <= {"no", "yes"}
    assert sorted(bundle.column_names_of(model)) == ["age", "town"]


def test_an_estimator_without_any_record_is_a_fit_too(
    folder: Path, tmp_path: Path
) -> None:
    private = tmp_path / "private.csv"
    pd.read_csv(folder / "private.csv").head(0).to_csv(private, index=False)
    public = ("--public", folder / "public.parquet", "--epsilon", 1)
    more = ("--classes", "no,yes", "--estimator", "tree", "--on-invalid", "drop")
    out = ("--out", tmp_path / "out", "--teachers", 5, "--allow-overlap")
    run("learn", private, "--target", "rich", *public, *more, *out)


@pytest.mark.filterwarnings("ignore::mapl.PrivacyWarning")
def test_any_estimator_by_name_or_path(folder: Path, tmp_path: Path) -> None:
    for name in ("tree", "boosting", "sklearn.naive_bayes.BernoulliNB"):
        few = ("--teachers", 2, "--epsilon", 20, "--classes-from-data")
        learn(folder, tmp_path / "model", "--estimator", name, *few)
        out = tmp_path / "labels.csv"
        run("predict", tmp_path / "model", folder / "test.csv", "--out", out)
        assert len(pd.read_csv(out)) == 500


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_predict_labels_a_file(
    learned: Path, folder: Path, tmp_path: Path, ending: str
) -> None:
    out = tmp_path / f"labels.{ending}"
    result = run("predict", learned, folder / "test.csv", "--out", out, "--json")
    assert json.loads(result.stdout)["records"] == 500
    labelled = pd.read_csv(out) if ending == "csv" else pd.read_parquet(out)
    assert (labelled["prediction"] == labelled["rich"]).mean() > 0.75


def test_certificate_verify_recomputes_and_refuses(
    learned: Path, tmp_path: Path
) -> None:
    path = learned / "certificate.json"
    shown = json.loads(run("certificate", "verify", path, "--json").stdout)
    assert shown["holds"]
    assert shown["files"] == str(learned)
    assert shown["not_covered"] == []
    assert "Ask the holder whether that is theirs" in shown["proves"]
    tampered = json.loads(path.read_text())
    tampered["epsilon"] = 0.1
    other = tmp_path / "certificate.json"
    other.write_text(json.dumps(tampered))
    assert "claims 0.1" in run("certificate", "verify", other, code=2).stderr
    other.write_text(path.read_text())
    assert "not checked" in run("certificate", "verify", other).stdout
    refused = run("certificate", "verify", path, "--model", other, code=2)
    assert "is not the model that was certified" in refused.stderr


def test_a_model_with_code_in_it_is_not_loaded(
    learned: Path, tmp_path: Path, folder: Path
) -> None:
    import skops.io

    from mapl import certificate

    for name in ("certificate.json", "model.skops"):
        (tmp_path / name).write_bytes((learned / name).read_bytes())
    skops.io.dump(CliRunner(), tmp_path / "model.skops")
    out = ("--out", tmp_path / "labels.csv")
    assert (
        "digest differs"
        in run("predict", tmp_path, folder / "test.csv", *out, code=2).stderr
    )
    signed = certificate.read(tmp_path / "certificate.json")
    resigned = certificate.with_files(signed, [tmp_path / "model.skops"])
    certificate.write(resigned, tmp_path / "certificate.json")
    refused = run("predict", tmp_path, folder / "test.csv", *out, code=2)
    assert "not trusted: click.testing.CliRunner" in refused.stderr


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--target", "wealth"], "Column 'wealth' is not in"),
        (["--groups", "nobody"], "Column 'nobody' is not in"),
        (["--epsilon", "0"], "epsilon must be a finite number > 0, got 0.0"),
        (["--estimator", "magic"], "estimator must be one of logistic"),
        (["--mechanism", "magic"], "mechanism must be one of"),
        (["--classes", "a,b"], "label that is not among classes"),
    ],
)
def test_input_errors_are_one_line_and_exit_2(
    folder: Path, tmp_path: Path, more: list[str], message: str
) -> None:
    result = learn(folder, tmp_path / "out", *["--classes", "no,yes"], *more, code=2)
    assert message in result.stderr
    assert not (tmp_path / "out").exists()


def test_unreadable_files_show_none_of_their_lines(
    folder: Path, tmp_path: Path
) -> None:
    for suffix, message in ((".csv", "a line that cannot be read"), (".pq", "a table")):
        bad = tmp_path / f"private{suffix}"
        bad.write_text('rich,age\n"secret')
        result = run(
            *("learn", bad, "--target", "rich", "--public", folder / "public.parquet"),
            *("--epsilon", 1, "--out", tmp_path / "out", "--classes", "no,yes"),
            code=2,
        )
        assert message in result.stderr
        assert "secret" not in result.output
    other = tmp_path / "other.csv"
    pd.DataFrame({"z": [1], "rich": ["yes"]}).to_csv(other, index=False)
    kwargs = ("--target", "rich", "--epsilon", 1, "--out", tmp_path / "out")
    kwargs += ("--classes", "no,yes")
    none = run("learn", other, "--public", folder / "public.parquet", *kwargs, code=2)
    assert "no column in common" in none.stderr


def test_columns_that_are_missing_are_named(
    learned: Path, folder: Path, tmp_path: Path
) -> None:
    short = tmp_path / "short.csv"
    pd.DataFrame({"age": [1]}).to_csv(short, index=False)
    out = ("--out", tmp_path / "labels.csv")
    message = run("predict", learned, short, *out, code=2).stderr
    assert "Column 'town' is not in" in message
    more = ("--classes", "no,yes", "--test", short)
    message = learn(folder, tmp_path / "out", *more, code=2).stderr
    assert "Column 'town' is not in" in message


def test_shared_columns_are_not_reported_as_left_out(
    capsys: pytest.CaptureFixture[str],
) -> None:
    frame = table(2, 0)
    schema = Schema.of_numbers_and_texts(frame)
    Inputs(frame, Path("p.csv"), schema, [], "rich", None).show_columns()
    assert "only in one" not in capsys.readouterr().err


def test_budget_errors_exit_3(
    monkeypatch: pytest.MonkeyPatch, folder: Path, tmp_path: Path
) -> None:
    expensive = SimpleNamespace(
        delta=lambda *_, **__: 1.0, epsilon=lambda events, **_: 9.0 * len(events)
    )
    monkeypatch.setattr("mapl.ledger.rules.accounting", expensive)
    refused = learn(folder, tmp_path / "out", "--classes", "no,yes", code=3)
    assert "Budget exceeded" in refused.stderr


def test_a_ledger_keeps_the_budget_of_all_commands(
    folder: Path, tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path}/budget.db"
    kwargs = ("--ledger", url, "--dataset", "folk", "--classes", "no,yes", "--seed")
    out = tmp_path / "out"
    assert "no ledger" in learn(folder, out, *kwargs, 1, code=2).stderr
    made = run(
        *("ledger", "create", url, "--dataset", "folk", "--epsilon", 5),
        *("--delta", 1e-4, "--json"),
    )
    assert json.loads(made.stdout)["epsilon_spent"] == 0
    for _ in range(2):  # the same again costs nothing
        learn(folder, out, *kwargs, 1)
    assert "'folk' exceeded" in learn(folder, out, *kwargs, 2, code=3).stderr
    (found,) = json.loads(run("ledger", "show", url, "--json").stdout)["datasets"]
    assert 3.9 < found["epsilon_spent"] <= 4
    assert (found["epsilon_limit"], found["delta_limit"]) == (5, 1e-4)
    assert (found["name"], found["delta_spent"]) == ("folk", 1e-5)
    picture = tmp_path / "spent.png"
    shown = run("ledger", "show", url, "--plot", picture).stdout
    assert "folk" in shown
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert "moments" in run("ledger", "history", url, "--dataset", "folk").stdout
    assert run("ledger", "history", url, "--dataset", "kin", code=2).stderr
    rows = json.loads(run("ledger", "history", url, "--json").stdout)["rows"]
    assert rows[2]["event"]["kind"] == "moments/1"
    assert json.loads(run("ledger", "verify", url, "--json").stdout)["holds"]
    for ending in ("csv", "json"):
        file = tmp_path / f"history.{ending}"
        run("ledger", "export", url, "--out", file)
        assert "left" not in file.read_text()
        assert "sealed" not in file.read_text()
    assert len(pd.read_csv(tmp_path / "history.csv")) == len(rows)

    checked = run("certificate", "verify", out, "--ledger", url).stdout
    assert url in checked
    other = f"sqlite:///{tmp_path}/other.db"
    run("ledger", "create", other, "--dataset", "a", "--epsilon", 5, "--delta", 1e-4)
    wrong = run("certificate", "verify", out, "--ledger", other, code=2)
    assert "no such rows" in wrong.stderr
    learn(folder, out, "--classes", "no,yes")
    none = run("certificate", "verify", out, "--ledger", url, code=2)
    assert "names no ledger" in none.stderr

    damaged = bytearray((tmp_path / "budget.db").read_bytes())
    position = damaged.index(b"PrivateClassifier, moments")
    damaged[position] ^= 1
    (tmp_path / "budget.db").write_bytes(damaged)
    assert run("ledger", "verify", url, code=4).stderr


def test_a_plot_needs_matplotlib(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite:///{tmp_path}/budget.db"
    run("ledger", "create", url, "--dataset", "a", "--epsilon", 5, "--delta", 1e-4)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    message = run("ledger", "show", url, "--plot", tmp_path / "a.png", code=2).stderr
    assert "pip install 'mapl[plot]'" in message


def test_learn_shows_the_type_of_each_column(folder: Path, tmp_path: Path) -> None:
    public = pd.read_parquet(folder / "public.parquet")
    public["name"] = [f"n{i}" for i in range(len(public))]
    private = pd.read_csv(folder / "private.csv").assign(name="x")
    public.to_csv(tmp_path / "public.csv", index=False)
    private.to_csv(tmp_path / "private.csv", index=False)
    kwargs = (
        "--target",
        "rich",
        "--epsilon",
        4,
        "--classes",
        "no,yes",
        "--teachers",
        9,
    )
    files = (tmp_path / "private.csv", "--public", tmp_path / "public.csv")
    out = ("--out", tmp_path / "out", "--overwrite")
    message = run("learn", *files, *kwargs, *out).stderr
    assert "Numbers: age" in message
    assert "Categories: town\n" in message
    assert "Left out, nearly every value differs: name" in message
    assert "name" not in pd.read_parquet(tmp_path / "out" / "labels.parquet")
    pd.read_csv(files[2])[["name"]].to_csv(tmp_path / "names.csv", index=False)
    only = (files[0], "--public", tmp_path / "names.csv")
    refused = run("learn", *only, *kwargs, *out, code=2).stderr
    assert "Nearly every value differs in each column" in refused
    left_out = "Records without a 'rich', if any, are left out"
    assert left_out in message
    private.dropna(subset="rich").to_csv(tmp_path / "private.csv", index=False)
    message = run("learn", *files, *kwargs, *out, "--drop", "name, town").stderr
    assert left_out in message  # whether there are any is private
    assert "Categories" not in message
    assert "differs" not in message


def test_more_input_errors_are_one_line(
    folder: Path, tmp_path: Path, learned: Path
) -> None:
    classes = ("--classes", "no,yes")
    same = ("--public", folder / "private.csv")
    message = learn(folder, tmp_path / "out", *classes, *same, code=2).stderr
    assert "--public is the private file itself" in message
    (tmp_path / "none.csv").write_text("age,town\n")
    none = ("--public", tmp_path / "none.csv")
    message = learn(folder, tmp_path / "out", *classes, *none, code=2).stderr
    assert "none.csv has no records" in message
    frame = pd.read_csv(folder / "private.csv")
    public = ("--public", folder / "public.parquet")
    kwargs = ("--target", "rich", "--epsilon", 4, "--out", tmp_path / "out", *classes)
    frame.to_csv(tmp_path / "carets.csv", index=False, sep="^")
    message = run("learn", tmp_path / "carets.csv", *public, *kwargs, code=2).stderr
    assert "Say it with --sep" in message
    strange = pd.read_csv(folder / "test.csv").assign(rich="perhaps")
    strange.to_csv(tmp_path / "strange.csv", index=False)
    exam = ("--test", tmp_path / "strange.csv")
    message = learn(folder, tmp_path / "out", *classes, *exam, code=2).stderr
    assert "not among --classes no,yes" in message
    strange.assign(rich=None).to_csv(tmp_path / "strange.csv", index=False)
    message = learn(folder, tmp_path / "out", *classes, *exam, code=2).stderr
    assert "no record with a 'rich'" in message
    scaler = ("--estimator", "sklearn.preprocessing.StandardScaler")
    assert (
        "classifier" in learn(folder, tmp_path / "o", *classes, *scaler, code=2).stderr
    )
    assert not (tmp_path / "out").exists()
    frame.head(0).to_csv(tmp_path / "empty.csv", index=False)
    out = ("--out", tmp_path / "labels.csv")
    message = run("predict", learned, tmp_path / "empty.csv", *out, code=2).stderr
    assert "has no records" in message
    for name in ("certificate.json",):
        (tmp_path / name).write_bytes((learned / name).read_bytes())
    message = run("predict", tmp_path, folder / "test.csv", *out, code=2).stderr
    assert "model.skops was certified, and is not there" in message


def test_codes_keep_their_zeros(learned: Path, folder: Path, tmp_path: Path) -> None:
    frame = pd.read_csv(folder / "test.csv").assign(zip="00501")
    frame.to_csv(tmp_path / "data.csv", index=False)
    run("predict", learned, tmp_path / "data.csv", "--out", tmp_path / "out.csv")
    assert set(pd.read_csv(tmp_path / "out.csv", dtype=str)["zip"]) == {"00501"}


def test_help_and_version_and_demo(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "learn" in run("--help").output
    assert "mapl" in run("--version").output
    called: list[int] = []
    monkeypatch.setattr("mapl.cli.demo.run_demo", lambda: called.append(1))
    run("demo")
    assert called


def test_a_closed_pipe_is_not_an_error_message() -> None:
    mapl = Path(sys.executable).with_name("mapl")
    sizes = "--records 3000 --queries 90 --epsilon 1"
    found = subprocess.run(
        f"{mapl} plan {sizes} | true", shell=True, capture_output=True, text=True
    )
    assert found.returncode == 0
    assert found.stderr == ""

    @errors_in_one_line
    def message() -> None:
        raise BrokenPipeError

    with pytest.raises(BrokenPipeError):  # which click knows what to do with
        message()


def test_numbers_that_are_names(tmp_path: Path) -> None:
    for name, n in (("private", 3000), ("public", 800)):
        frame = table(n, n).drop(columns="person")
        frame["zip"] = np.where(frame.pop("town") == "Bath", "01234", "1234")
        frame.to_csv(tmp_path / f"{name}.csv", index=False)
    learned, asked, message = (tmp_path / name for name in ("out", "a.csv", "b.csv"))
    command = ("learn", tmp_path / "private.csv", "--target", "rich", "--epsilon", 8)
    command += ("--public", tmp_path / "public.csv", "--out", learned, "--seed", 1)
    command += ("--classes", "no,yes", "--teachers", 30, "--categories")
    wrong = run(*command, "zap", code=2)
    assert "'zap' is not among the columns that are learned from" in wrong.stderr
    result = run(*command, "zip")
    assert "Numbers: age\nCategories: zip" in result.stderr
    labels = pd.read_parquet(learned / "labels.parquet")
    assert set(labels["zip"]) == {"01234", "1234"}
    asked.write_text("age,zip\n50,01234\n50,1234\n")
    run("predict", learned, asked, "--out", message)
    assert pd.read_csv(message)["prediction"].tolist() == ["yes", "no"]


UNWRITABLE = """
from sklearn.linear_model import LogisticRegression

class Apart(LogisticRegression):
    def fit(self, X, y):
        self.left_ = (number for number in range(1))
        return super().fit(X, y)
"""


def test_models_that_cannot_be_saved_are_refused_before_the_charge(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = ("--estimator", "sklearn.neural_network.MLPClassifier")
    result = learn(folder, tmp_path / "out", "--classes", "no,yes", *network, code=2)
    assert "cannot be checked: sklearn.neural_network" in result.stderr
    assert "Nothing was released" in result.stderr
    (tmp_path / "kept_apart.py").write_text(UNWRITABLE)
    monkeypatch.syspath_prepend(str(tmp_path))
    apart = ("--estimator", "kept_apart.Apart")
    result = learn(folder, tmp_path / "out", "--classes", "no,yes", *apart, code=2)
    assert "types that are not trusted" in result.stderr
    fails = ("--estimator", "sklearn.naive_bayes.MultinomialNB")
    result = learn(folder, tmp_path / "out", "--classes", "no,yes", *fails, code=2)
    assert "estimator fails on the public records" in result.stderr
    assert not (tmp_path / "out").exists()


def test_a_class_may_be_called_na(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    ages, na = rng.integers(20, 90, 600), ("EU", "NA")
    table = pd.DataFrame({"age": ages, "region": [na[int(age > 55)] for age in ages]})
    table["near"] = table["region"].where(rng.random(600) < 0.9, "")
    table["who"] = [f"p{i}" for i in range(600)]
    table.loc[:9, "who"] = "NA"  # as R writes what is missing
    table.to_csv(tmp_path / "private.csv", index=False)
    table.to_csv(tmp_path / "public.csv", index=False)
    kwargs = ("--target", "region", "--epsilon", 8, "--delta", 1e-4, "--groups", "who")
    files = (tmp_path / "private.csv", "--public", tmp_path / "public.csv")
    test = ("--test", tmp_path / "private.csv", "--teachers", 20)
    run_ = ("learn", *files, *kwargs, *test, "--out", tmp_path / "out", "--json")
    run_ += ("--allow-overlap", "--overwrite")
    result = run(*run_, "--classes", "EU,NA")
    assert "Records without a 'who', if any, each count as a person" in result.stderr
    assert json.loads(result.stdout)["accuracy"] > 0.9
    labels = pd.read_parquet(tmp_path / "out" / "labels.parquet")
    assert set(labels["near"].dropna()) == {"EU", "NA"}
    few = run(*run_, "--classes", "EU,US")  # where NA is nothing again
    assert json.loads(few.stdout)["always_most_frequent"] == 1
    renamed = table.rename(columns={"near": "label"})
    renamed.to_csv(tmp_path / "public.csv", index=False)
    renamed.to_csv(tmp_path / "private.csv", index=False)
    assert "--drop label" in run(*run_, "--classes", "EU,NA", code=2).stderr


@pytest.mark.filterwarnings("default")
def test_warnings_are_one_line(folder: Path, tmp_path: Path) -> None:
    result = learn(folder, tmp_path, "--teachers", 2, "--classes-from-data")
    (line,) = [line for line in result.stderr.splitlines() if "classes were" in line]
    assert line.startswith("Warning: classes were read from y")


def test_endings_say_what_is_written(learned: Path, folder: Path) -> None:
    result = run("predict", learned, folder / "test.csv", "--out", "a.xlsx", code=2)
    assert "--out must end in .csv, .parquet" in result.stderr
    result = run("ledger", "export", "sqlite:///none.db", "--out", "a.xlsx", code=2)
    assert "--out must end in .csv, .parquet, .json" in result.stderr


def test_no_cell_has_a_part_in_the_text_of_another() -> None:
    """One record without a number makes floats of all integers, in pandas and files."""
    public = pd.DataFrame({"zip": pd.Series([7, 8, 9], dtype=object)})
    schema = Schema.of_numbers_and_texts(public)
    encoder, _ = schema.fit_encoder(schema.cast(public))
    whole = encoder.transform(schema.cast(pd.DataFrame({"zip": [7, 8, 9]})))
    holed = encoder.transform(schema.cast(pd.DataFrame({"zip": [7, 8, 9, None]})))
    assert (holed[:3] == whole).all()
    for unit in ("s", "ns"):  # times are no numbers
        times = pd.DataFrame({"zip": np.array(["2020-01-01"], f"M8[{unit}]")})
        assert np.isnan(Column("number").convert(times["zip"])).all()
    assert whole.sum() == 3


def test_yes_and_no_are_categories(tmp_path: Path) -> None:
    for name, n in (("private", 2000), ("public", 600)):
        frame = table(n, n)[["rich"]]
        frame["flag"] = np.where(frame["rich"] == "yes", "TRUE", "FALSE")
        frame.to_csv(tmp_path / f"{name}.csv", index=False)
    command = ("learn", tmp_path / "private.csv", "--target", "rich", "--epsilon", 8)
    command += ("--public", tmp_path / "public.csv", "--out", tmp_path / "out")
    command += ("--classes", "no,yes", "--teachers", 20, "--json", "--test")
    shown = json.loads(run(*command, tmp_path / "private.csv").stdout)
    assert shown["accuracy"] > 0.95


def test_a_file_without_a_header_is_not_shown(folder: Path, tmp_path: Path) -> None:
    text = (folder / "private.csv").read_text().partition("\n")[2]
    (tmp_path / "private.csv").write_text(text)
    first = text.partition(",")[0]
    public = ("--public", folder / "public.parquet", "--out", tmp_path / "out")
    command = ("learn", tmp_path / "private.csv", "--target", "rich", *public)
    command += ("--classes", "no,yes")
    message = run(*command, "--epsilon", 1, code=2).stderr
    assert "Is there a line of column names" in message
    assert first not in message.replace(str(tmp_path), "")


def test_a_missing_folder_is_an_error(learned: Path, folder: Path) -> None:
    out = "/no/such/folder/a.csv"
    message = run("predict", learned, folder / "test.csv", "--out", out, code=2).stderr
    assert "None" not in message
    assert "/no/such/folder" in message


def test_learn_runs_exactly_what_was_planned(folder: Path, tmp_path: Path) -> None:
    sizes = ("--records", 3000, "--queries", 800, "--epsilon", 4, "--teachers", 30)
    written = run("plan", *sizes, "--json").stdout
    planned = json.loads(written)
    path = tmp_path / "plan.json"
    path.write_text(written)
    inputs = ("learn", folder / "private.csv", "--target", "rich", "--classes")
    inputs += ("no,yes", "--public", folder / "public.parquet", "--plan", path)
    for mechanism in (None, "noisy-max"):
        out = tmp_path / str(mechanism)
        more = () if mechanism is None else ("--mechanism", mechanism)
        run(*inputs, "--out", out, *more)
        name = mechanism or planned["recommended"]
        (form,) = [m for m in planned["mechanisms"] if m["name"] == name]
        signed = json.loads((out / "certificate.json").read_text())
        assert signed["events"] == [form["event"]]
        assert signed["public"]["n_teachers"] == (30 if mechanism else 0)
    for option in ("--epsilon", "--delta", "--teachers", "--records"):
        refused = run(*inputs, "--out", tmp_path / "no", option, "1", code=2)
        assert f"Leave {option} out" in refused.stderr
    for wrong in ("", "[]", '{"asked": 3}', "{}"):
        path.write_text(wrong)
        refused = run(*inputs, "--out", tmp_path / "no", code=2)
        assert "holds no plan" in refused.stderr
    other = json.loads(run("plan", *sizes, "--queries", 9, "--json").stdout)
    path.write_text(json.dumps(other))
    refused = run(*inputs, "--out", tmp_path / "no", code=2)
    assert "public points, got 800" in refused.stderr
    assert not (tmp_path / "no").exists()


def test_epsilon_is_required_unless_there_is_a_plan(
    folder: Path, tmp_path: Path
) -> None:
    inputs = ("learn", folder / "private.csv", "--target", "rich")
    inputs += ("--public", folder / "public.parquet", "--out", tmp_path / "no")
    assert "Missing option '--epsilon'" in run(*inputs, code=2).stderr


# Sealed -----------------------------------------------------------------------------


def test_classes_must_be_declared_or_given_up(folder: Path, tmp_path: Path) -> None:
    for more in ((), ("--classes", "no,yes", "--classes-from-data")):
        message = learn(folder, tmp_path / "out", *more, code=2).stderr
        assert "--classes must list all labels" in message
        assert "--classes-from-data" in message


def test_a_copy_of_the_private_file_is_not_public(tmp_path: Path) -> None:
    frame = table(600, 0).assign(income=np.random.default_rng(0).normal(size=600))
    frame.to_csv(tmp_path / "private.csv", index=False)
    frame.drop(columns="rich").to_parquet(tmp_path / "public.parquet")
    command = ("learn", tmp_path / "private.csv", "--target", "rich", "--epsilon", 4)
    command += ("--public", tmp_path / "public.parquet", "--classes", "no,yes")
    command += ("--teachers", 9, "--drop", "person", "--out", tmp_path / "out")
    for kept in (600, 1):
        public = frame[:kept].drop(columns="rich")
        other = public.assign(income=np.random.default_rng(1).normal(size=kept))
        pd.concat([public, other]).to_parquet(tmp_path / "public.parquet")
        done = CliRunner().invoke(main, list(map(str, command)))
        assert done.exit_code == 2
        assert "pass allow_overlap=True" in done.stderr
        assert not (tmp_path / "out").exists()
    run(*command, "--allow-overlap")
    assumed = json.loads((tmp_path / "out" / "certificate.json").read_text())["public"]
    assert "the features of those people are published" in assumed["assumed"]


def odd_file(folder: Path) -> Path:
    """Fifty good records, and some that cannot be read or do not fit."""
    rng = np.random.default_rng(0)
    lines = [
        f"{age},York,{'yes' if age > 50 else 'no'}" for age in rng.integers(90, size=50)
    ]
    bad = [
        "40,York",
        "41,York,yes,",
        "x,York,no",
        "43,York,maybe",
        ",,",
    ]
    path = folder / "odd.csv"
    path.write_bytes(
        "\n".join(["age,town,rich", *lines, *bad]).encode()
        + b'\n\xff,a,no\n42,"York,yes\n'  # the last one never ends
    )
    return path


def test_check_tells_the_holder_what_does_not_fit(tmp_path: Path, folder: Path) -> None:
    path = odd_file(tmp_path)
    command = ("check", path, "--schema", folder / "public.parquet", "--target", "rich")
    command += ("--classes", "no,yes")
    # the public file has a column that the private one lacks
    assert "only_public" in run(*command, code=2).stderr
    public = pd.read_parquet(folder / "public.parquet").drop(columns="only_public")
    public.to_parquet(tmp_path / "public.parquet")
    command = ("check", path, "--schema", tmp_path / "public.parquet")
    labels = ("--target", "rich", "--classes", "no,yes", "--groups", "town")
    shown = run(*command, *labels)
    assert "not for publication" in shown.stdout
    found = json.loads(run(*command, *labels, "--json").stdout)
    assert found["unreadable_lines"] == 4
    assert found["records"] == 53
    assert found["columns"]["age"] == {
        "kind": "number",
        "missing": 1,
        "does_not_fit": 1,
        "out_of_range": 0,
    }
    assert found["columns"]["rich"] == {
        "kind": "label",
        "missing": 1,
        "does_not_fit": 1,
        "out_of_range": 0,
    }
    assert found["columns"]["town"]["kind"] == "group"
    assert "given together" in run(*command, "--target", "rich", code=2).stderr


@pytest.mark.parametrize("on_invalid", ["error", "drop"])
def test_lines_that_cannot_be_read_are_refused_or_dropped(
    tmp_path: Path, folder: Path, on_invalid: str
) -> None:
    path = odd_file(tmp_path)
    command = ("learn", path, "--target", "rich", "--classes", "no,yes", "--epsilon", 4)
    command += ("--public", folder / "public.parquet", "--teachers", 3)
    command += ("--overwrite", "--out", tmp_path / "out", "--on-invalid", on_invalid)
    result = run(*command, code=2 if on_invalid == "error" else 0)
    assert ("a line that cannot be read" in result.stderr) == (on_invalid == "error")
    wrong = run(*command[:-1], "perhaps", code=2)
    assert "--on-invalid must be one of 'error', 'drop'" in wrong.stderr


@pytest.mark.parametrize("ending", [".gz", ".bz2", ".xz"])
def test_compressed_files_are_read(folder: Path, tmp_path: Path, ending: str) -> None:
    frame = pd.read_csv(folder / "private.csv", dtype=str)
    frame.to_csv(tmp_path / f"private.csv{ending}", index=False)
    names = column_names(tmp_path / f"private.csv{ending}")
    assert names == column_names(folder / "private.csv")


def test_quoted_cells_may_hold_commas(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text('a,b\n"x, ""y""",1\nz,\n\n')
    schema = Schema({"a": Column("text"), "b": Column("number")})
    file = read_private(path, schema, target="a")
    assert file.texts["a"] == ['x, "y"', "z"]
    assert file.readable
    assert file.table.incomplete.tolist() == [False, True]


def test_headers_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    for content, message in ((b'"a', "no line of column names"), (b"a,a", "one name")):
        path.write_bytes(content)
        with pytest.raises(ParameterError, match=message):
            column_names(path)
    path.write_bytes(b"y,a\r0,1.5\r")  # lines of an old Mac
    with pytest.raises(ParameterError, match="no line of column names"):
        column_names(path)
    path.write_bytes(b"\xef\xbb\xbfa,b\n")
    assert column_names(path) == ["a", "b"]


def test_nothing_is_charged_if_the_folder_cannot_be_written(
    folder: Path, tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path}/budget.db"
    run(*("ledger", "create", url, "--dataset", "d", "--epsilon", 9, "--delta", 1e-4))
    (tmp_path / "file").write_text("")
    more = ("--classes", "no,yes", "--ledger", url, "--dataset", "d")
    learn(folder, tmp_path / "file" / "out", *more, code=2)
    (found,) = json.loads(run("ledger", "show", url, "--json").stdout)["datasets"]
    assert found["releases"] == 0


def test_models_that_cannot_be_checked_are_refused_before_the_charge(
    folder: Path, tmp_path: Path
) -> None:
    more = (
        "--classes",
        "no,yes",
        "--estimator",
        "sklearn.neighbors.KNeighborsClassifier",
    )
    message = learn(folder, tmp_path / "out", *more, code=2).stderr
    assert "cannot be published as a file" in message


def test_a_folder_that_mapl_did_not_write_is_refused(
    learned: Path, folder: Path, tmp_path: Path
) -> None:
    import skops.io
    from sklearn.linear_model import LogisticRegression

    from mapl import certificate

    X, y = np.arange(8.0)[:, None], np.arange(8) % 2
    model = tmp_path / "model.skops"
    skops.io.dump(LogisticRegression().fit(X, y), model)
    signed = certificate.with_files(
        certificate.read(learned / "certificate.json"), [model]
    )
    certificate.write(signed, tmp_path / "certificate.json")
    out = ("--out", tmp_path / "labels.csv")
    message = run("predict", tmp_path, folder / "test.csv", *out, code=2).stderr
    assert "cannot be read as a model" in message
    with pytest.raises(CertificateError, match="cannot be read as a model"):
        bundle.load_model(model)
    skops.io.dump({"a": Path}, model)
    with pytest.raises(CertificateError, match="types that are not trusted"):
        bundle.load_model(model)
    whole = skops.io.load(learned / "model.skops", trusted=sorted(TRUSTED_TYPES))
    whole.steps[-1][1].weights = np.ones((99, 1))
    skops.io.dump(whole, model)
    certificate.write(
        certificate.with_files(signed, [model]), tmp_path / "certificate.json"
    )
    message = run("predict", tmp_path, folder / "test.csv", *out, code=2).stderr
    assert "leads out of its bounds" in message
    model.write_bytes(b"no archive")
    certificate.write(
        certificate.with_files(signed, [model]), tmp_path / "certificate.json"
    )
    message = run("predict", tmp_path, folder / "test.csv", *out, code=2).stderr
    assert "cannot be read as a model" in message


def starts(code: str) -> Any:
    """What starts a process that does something else."""
    return lambda *_: [sys.executable, "-c", code]


def test_a_model_that_crashes_does_so_apart(
    folder: Path, learned: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = pd.read_csv(folder / "test.csv", dtype=str)
    path = learned / "model.skops"
    model = bundle.load_model(path)
    found = apart._predicted(path, model, records)
    assert set(found["labels"]) == {"no", "yes"}
    assert found["classes"] == ["no", "yes"]
    np.testing.assert_allclose(np.sum(found["shares"], axis=0), 1)
    given, said, data = io.BytesIO(), io.BytesIO(), path.read_bytes()
    apart._send(given, data)
    apart._send(given, pickle.dumps(records))
    given.seek(0)
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdin", SimpleNamespace(buffer=given))
        patch.setattr(sys, "stdout", SimpleNamespace(buffer=said))
        apart.serve(str(path))
    said.seek(0)
    assert json.loads(apart._receive(said) or b"")["columns"] == ["age", "town"]
    assert json.loads(apart._receive(said) or b"")["labels"] == found["labels"]
    many = pd.concat([records] * 2000)
    with apart.ModelApart(path, data) as running:
        running._process.kill()
        running._process.wait()
        with pytest.raises(CertificateError, match="crashed, or took too long"):
            running.predict(many)
    with apart.ModelApart(path, data) as running:
        running._process.kill()
        with pytest.raises(CertificateError, match="crashed, or took too long"):
            running.predict(records)
    no_json = "import sys; sys.stdout.buffer.write(b'\\3' + b'\\0' * 7 + b'{{{')"
    no_json += "; sys.stdout.flush(); sys.stdin.buffer.read()"
    for code in ("import os; os.abort()", no_json):
        monkeypatch.setattr(apart, "command", starts(code))
        with (
            pytest.raises(CertificateError, match="crashed, or took too long"),
            apart.ModelApart(path, data),
        ):
            pass
    said_badly = "import os; os.write(1, b'\\3' + bytes(7) + b'{[x')"
    monkeypatch.setattr(apart, "command", starts(said_badly))
    with pytest.raises(CertificateError, match="crashed"), apart.ModelApart(path, data):
        pass
    monkeypatch.setattr(apart, "command", starts("import os; os.write(1, b'x' * 8)"))
    with pytest.raises(CertificateError, match="crashed"), apart.ModelApart(path, data):
        pass
    broken = records.assign(age="x").drop(columns="town")
    with pytest.raises(CertificateError, match="fails on these records"):
        apart._predicted(path, model, broken)


def test_folders_where_files_should_be_are_refused_before_the_charge(
    folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "out" / "labels.parquet").mkdir(parents=True)
    message = learn(folder, tmp_path / "out", "--classes", "no,yes", code=2).stderr
    assert "holds 'labels.parquet'" in message


def test_names_are_shown_as_they_are(tmp_path: Path) -> None:
    """Not as markup, and without what a terminal would obey."""
    url = f"sqlite:///{tmp_path}/budget.db"
    for name in ("[/x]", "trial[a]", "bell\x07"):
        run("ledger", "create", url, "--dataset", name, "--epsilon", 1, "--delta", 1e-5)
    shown = run("ledger", "show", url).stdout
    assert "[/x]" in shown
    assert "trial[a]" in shown
    assert "bell?" in shown


@pytest.mark.filterwarnings("ignore::mapl.PrivacyWarning")
def test_a_test_file_of_other_classes_has_no_score(
    folder: Path, tmp_path: Path
) -> None:
    other = pd.read_csv(folder / "test.csv").assign(rich="perhaps")
    other.to_csv(tmp_path / "test.csv", index=False)
    more = ("--classes-from-data", "--test", tmp_path / "test.csv")
    message = learn(folder, tmp_path / "out", *more, code=2).stderr
    assert "none of the classes" in message
    assert (tmp_path / "out" / "model.skops").exists()


# Scores and baselines ---------------------------------------------------------------


@pytest.mark.parametrize("texts", [0, 1])
def test_a_baseline_of_numbers_alone(texts: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"a": rng.normal(size=3000), "b": rng.normal(size=3000)})
    words = rng.choice(list("abcdefgh"), (3000, 6))
    if texts:
        frame["note"] = [" ".join(row) for row in words]
    frame["y"] = np.where(frame["a"] > 0, "yes", "no")
    for name, rows in (("private", slice(2000)), ("test", slice(2000, 2500))):
        frame[rows].to_csv(tmp_path / f"{name}.csv", index=False)
    public = frame[2500:].drop(columns="y")
    public.to_csv(tmp_path / "public.csv", index=False)
    command = ("learn", tmp_path / "private.csv", "--public", tmp_path / "public.csv")
    command += ("--target", "y", "--classes", "no,yes", "--epsilon", 4, "--json")
    command += ("--test", tmp_path / "test.csv", "--baseline", "--out", tmp_path / "o")
    found = json.loads(run(*command).stdout)
    assert found["without_privacy_PRIVATE_accuracy"] > 0.95


def with_ids(folder: Path) -> dict[str, Path]:
    """Records with an ID column, a schema that knows it, and public ones."""
    frame = table(3000, 1).assign(income=np.random.default_rng(1).normal(size=3000))
    frame["id"] = [f"P{i:05}" for i in range(3000)]
    frame["town"] = frame["town"].where(frame["age"] > 20)
    found = {name: folder / f"{name}.csv" for name in ("private", "test", "public")}
    frame.to_csv(found["private"], index=False)
    frame[:500].to_csv(found["test"], index=False)
    other = frame[:300].assign(income=np.random.default_rng(2).normal(size=300))
    other.drop(columns="rich").to_csv(found["public"], index=False)
    found["schema"] = folder / "schema.json"
    columns: dict[str, Any] = {
        "age": {"kind": "integer", "range": [0, 120]},
        "income": {"kind": "number", "range": [-4, 4]},
        "town": {"kind": "category", "categories": ["York", "Bath", "Ely"]},
        "id": {"kind": "text"},
    }
    found["schema"].write_text(json.dumps({"columns": columns}))
    return found


@pytest.mark.parametrize("kind", ["schema", "public"])
def test_a_baseline_leaves_out_what_the_model_leaves_out(
    kind: str, tmp_path: Path
) -> None:
    """An ID column once became a code a record: 16 GB for 30,000 of them."""
    files = with_ids(tmp_path)
    command = ("learn", files["private"], f"--{kind}", files[kind], "--target", "rich")
    command += ("--classes", "no,yes", "--epsilon", 4, "--test", files["test"])
    done = run(*command, "--baseline", "--json", "--out", tmp_path / "out")
    found = json.loads(done.stdout)
    assert found["without_privacy_PRIVATE_accuracy"] > 0.9
    assert "Released: epsilon" in done.stderr
    labels = pd.read_parquet(tmp_path / "out" / "labels.parquet")
    assert kind == "schema" or "id" not in labels
    assert labels.get("id", labels["label"][:0]).isna().all()  # of made-up records
    assert "P00001" not in (tmp_path / "out" / "report.html").read_text()
    with zipfile.ZipFile(tmp_path / "out" / "model.skops") as parts:
        assert not any(b"P0000" in parts.read(name) for name in parts.namelist())


def test_what_can_fail_fails_before_the_charge_or_after_the_summary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = with_ids(tmp_path)
    url = f"sqlite:///{tmp_path}/budget.db"
    run("ledger", "create", url, "--dataset", "d", "--epsilon", 9, "--delta", 1e-4)
    command = ("learn", files["private"], "--schema", files["schema"], "--target")
    command += ("rich", "--classes", "no,yes", "--epsilon", 1, "--test", files["test"])
    command += ("--ledger", url, "--dataset", "d", "--json", "--out", tmp_path / "out")

    def fails(*_: Any, **__: Any) -> Any:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr("mapl.cli.learn.baseline_score", fails)
        assert "MemoryError" in run(*command, "--baseline", code=1).stderr
    shown = json.loads(run("ledger", "show", url, "--json").stdout)
    assert shown["datasets"][0]["epsilon_spent"] == 0
    with monkeypatch.context() as patch:
        patch.setattr("mapl.cli.learn.score_model", fails)
        done = run(*command, code=1)
    assert json.loads(done.stdout)["epsilon"] <= 1
    assert "Released: epsilon 0.99" in done.stderr
    assert (tmp_path / "out" / "model.skops").exists()
