"""One report, four forms, and conditions on it."""

import contextlib
import json
import re
from fractions import Fraction
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
import pandas as pd
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from sklearn.datasets import make_classification

import mapl
from mapl import CertificateError, ParameterError, PrivateClassifier
from mapl.cli import main
from mapl.privacy.events import GaussianEvent
from mapl.publish import certificate
from mapl.publish.conditions import Condition, events_of, fields_of
from mapl.publish.report import FILES, Report
from mapl.service.served import ServedModel

SCHEMA = json.loads((files("mapl.data") / "report.schema.json").read_text())
SCORE: dict[str, Any] = {
    "accuracy": 0.8,
    "always_most_frequent": 0.6,
    "classes": ["<b>", "y|es"],
    "confusion": [[5, 1], [1, 3]],
    "per_class": {
        "<b>": {"recall": 0.8, "precision": 0.9},
        "y|es": {"recall": 0.7, "precision": 0.6},
    },
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    X, y = make_classification(600, 4, random_state=0)
    model = PrivateClassifier(epsilon=2, classes=[0, 1], random_state=0)
    out = tmp_path_factory.mktemp("report") / "model"
    model.fit(X[:300], y[:300], X_public=X[300:]).save(out)
    return out


def made(**changes: Any) -> Report:
    signed = certificate.make(
        [GaussianEvent(sigma=Fraction(40), steps=100)],
        delta=1e-5,
        **certificate.protection(grouped=False),
        mechanism="dissent",
        public={
            "n_teachers": 250,
            "n_public": 900,
            "privacy": "records",
            "assumed": "nothing <i>private</i>",
            "classes_declared": True,
        },
        ledger="in memory",
    )
    return Report.of(
        signed | changes,
        {"<b>": 7, "y|es": 0},
        learner="Tree(depth=`3`)",
        columns=["a*b", "<c>"],
        spending=[(900, 0.4), (900, 1.1)],
        score=SCORE,
    )


# Four forms -----------------------------------------------------------------------


def test_a_folder_has_all_four_forms_and_they_are_certified(folder: Path) -> None:
    assert {path.name for path in folder.iterdir()} >= set(FILES)
    signed = certificate.read(folder / "certificate.json")
    assert set(FILES) <= signed["files"].keys()
    found = Report.read(folder)
    assert found.html() == (folder / "report.html").read_text()
    assert found.html(printed=True) == (folder / "report-print.html").read_text()
    assert found.card() == (folder / "README.md").read_text()
    assert found.to_json() == (folder / "report.json").read_text()
    assert found.guarantee == signed["guarantee"]
    assert found.events == signed["events"]


def test_the_json_keeps_to_its_schema(folder: Path) -> None:
    for report in (Report.read(folder), made(), made(epsilon=None)):
        jsonschema.validate(json.loads(report.to_json()), SCHEMA)


def test_nothing_in_a_page_or_card_is_markup_of_a_stranger() -> None:
    report = made()
    for page in (report.html(), report.html(printed=True)):
        assert "<b>" not in page
        assert "<i>private" not in page
        assert "&lt;b&gt;" in page
    assert 'class="printed"' in report.html(printed=True)
    card = report.card()
    assert "\\<b\\>" in card
    assert "y\\|es" in card
    assert "a\\*b" in card
    assert "80.0 %" in card
    assert card.startswith("---\nlibrary_name: mapl\n")


def test_a_release_without_a_guarantee_says_so() -> None:
    assert "There is no guarantee." in made(epsilon=None).card()


def test_used_budget_never_shows_as_more_than_all() -> None:
    assert [step["used"] for step in made().spending] == [0.4, 1.0]


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"form": "mapl report/2"}', '{"form": "mapl report/1"}']
)
def test_what_is_no_report_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(CertificateError, match="not a report"):
        Report.of_json(text.encode(), tmp_path / "report.json")
    with pytest.raises(CertificateError, match=r"holds no certificate\.json"):
        Report.read(tmp_path)


# Conditions -----------------------------------------------------------------------


def holds(text: str, score: Any = SCORE, **changes: Any) -> bool:
    report = made(**changes)
    names = ("epsilon", "delta", "unit", "neighbours", "mechanism", "ledger", "public")
    signed = {name: getattr(report, name) for name in names} | {"signature": None}
    signed["events"] = report.events
    fields = fields_of(signed, score)
    return Condition.parse(text).holds(fields, events_of({"events": report.events}))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("epsilon <= 1", True),
        ("epsilon<=0.9", False),
        ("epsilon(1e-9) <= 1", False),
        ("epsilon( 1e-5 ) < 1", True),
        ("delta == 1e-5", True),
        ("unit == a record", True),
        ("unit != 'a record'", False),
        ("mechanism == dissent", True),
        ("classes_declared == true", True),
        ("classes_declared == false", False),
        ("ledger == true", False),
        ("teachers >= 250", True),
        ("accuracy >= 0.81", False),
        ("key != x", False),  # there is none
    ],
)
def test_conditions_hold_or_not(text: str, expected: bool) -> None:
    assert holds(text) is expected


def test_a_missing_figure_satisfies_nothing() -> None:
    assert not holds("epsilon <= 1000", epsilon=None)
    assert not holds("accuracy >= 0", score=None)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "epsilon",
        "epsilon = 1",
        "epsilon <= ",
        "epsilon <= one",
        "delta(1e-5) <= 1",
        "epsilon(2) <= 1",
        "epsilon(x) <= 1",
        "epsilon(1-1) <= 1",
        "magic == 1",
        "unit <= a record",
        "unit == record",
        "ledger == yes",
        "privacy == none",
        "epsilon <= 1 and delta <= 1",
    ],
)
def test_what_is_no_condition_is_refused(text: str) -> None:
    with pytest.raises(ParameterError, match="--that"):
        holds(text)


@given(st.text(max_size=30))
def test_any_text_is_a_condition_or_refused(text: str) -> None:
    with contextlib.suppress(ParameterError):
        assert Condition.parse(text).text == text


@pytest.mark.parametrize("value", ["nan", "inf", "1e999", "1_0", "\uff19", "0x1", ""])
def test_odd_numbers_are_refused(value: str) -> None:
    with pytest.raises(ParameterError, match="--that"):
        holds(f"epsilon <= {value}")


@pytest.mark.parametrize(
    "accuracy", [float("nan"), float("inf"), "0.9", [1], {}, True, 10**19, -1]
)
def test_odd_scores_are_refused(accuracy: Any) -> None:
    with pytest.raises(CertificateError):
        holds("accuracy != 0", score={"accuracy": accuracy})


@pytest.mark.parametrize(
    "public",
    [
        {"n_teachers": 10**400},
        {"n_teachers": float("nan")},
        {"n_teachers": "20"},
        {"n_teachers": True},
        {"n_teachers": [1]},
        {"classes_declared": "yes"},
    ],
)
def test_odd_fields_are_refused(public: Any) -> None:
    with pytest.raises(CertificateError):
        holds("epsilon <= 1", public=made().public | public)
    for ledger in (None, [], 1):
        with pytest.raises((CertificateError, AssertionError)):
            assert holds("ledger == true", ledger=ledger)
    with pytest.raises(CertificateError, match="not one"):
        holds("epsilon <= 1", score=[1])


def test_a_guarantee_for_labels_is_not_one_for_records(tmp_path: Path) -> None:
    """What is private follows from how neighbours differ."""
    said = certificate.protection(grouped=False, privacy="labels")
    signed = certificate.make(
        [GaussianEvent(sigma=Fraction(40), steps=100)],
        delta=1e-5,
        **said,
        mechanism="dissent",
        public={"privacy": "records"},
        ledger="in memory",
    )
    with pytest.raises(CertificateError, match="two different things"):
        certificate.verify(signed)
    assert not holds("privacy == records", **said)


def test_a_report_must_be_certified_and_say_the_same(
    folder: Path, tmp_path: Path
) -> None:
    for path in folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    signed = certificate.read(tmp_path / "certificate.json")
    report = json.loads((tmp_path / "report.json").read_text())
    for lie in ({"epsilon": 0.1}, {"in_plain_words": "<b>"}, {"events": []}):
        (tmp_path / "report.json").write_text(json.dumps(report | lie))
        others = [p for p in tmp_path.iterdir() if p.name != "certificate.json"]
        certificate.write(
            certificate.with_files(signed, others), tmp_path / "certificate.json"
        )
        with pytest.raises(CertificateError, match="something else"):
            Report.read(tmp_path)
    few = [tmp_path / "report.html"]
    certificate.write(
        certificate.with_files(signed, few), tmp_path / "certificate.json"
    )
    with pytest.raises(CertificateError, match="says nothing about report"):
        Report.read(tmp_path)
    done = run("check", tmp_path, "--that", "epsilon <= 2")
    assert done.exit_code == 2
    assert "'README.md', which was not certified" in done.stderr


def test_no_text_in_a_card_becomes_a_link() -> None:
    odd = "see https://evil.example www.evil.example a@b.c ~~x~~ $y$ \x1b[1m \u202e"
    card = Report.of(
        {**vars(made()), "public": made().public}, {}, columns=[odd]
    ).card()
    for markup in ("https://evil", "www.evil", " a@b", "~~x", "$y$", "\x1b", "\u202e"):
        assert markup not in card


# The commands ---------------------------------------------------------------------


def run(*args: Any) -> Any:
    return CliRunner().invoke(main, ["report", *map(str, args)])


def test_a_folder_is_checked_with_an_exit_code(folder: Path) -> None:
    done = run("check", folder, "--that", "epsilon <= 2", "--that", "delta <= 1e-5")
    assert done.exit_code == 0
    epsilon = certificate.read(folder / "certificate.json")["epsilon"]
    assert done.stdout.splitlines() == [
        f"holds: epsilon <= 2 (it is {epsilon})",
        "holds: delta <= 1e-5 (it is 1e-05)",
    ]
    done = run("check", folder, "--that", "epsilon <= 1", "--json")
    assert done.exit_code == 1
    one = {"condition": "epsilon <= 1", "holds": False, "found": epsilon}
    shown = json.loads(done.stdout)
    (caution,) = shown.pop("cautions")
    assert shown == {"holds": False, "conditions": [one]}
    assert "which nothing here vouches for" in caution
    assert caution in done.stderr
    key = re.findall("key ([0-9a-f]{16})", caution)[0]
    for sure in (("--that", f"key == {key}"), ("--public-key", public_key(folder))):
        done = run("check", folder, "--that", "epsilon <= 2", *sure)
        assert (done.exit_code, done.stderr) == (0, "")
    done = run("check", folder, "--that", "epsilon(1e-9) <= 1")
    assert "(it is 2." in done.stdout or "(it is 3." in done.stdout
    done = run("check", folder, "--that", "accuracy >= 0.1")
    assert "the report has none" in done.stdout
    assert run("check", folder, "--that", "epsilon < =").exit_code == 2
    assert run("check", folder, "--that", "accuracy >= 0.5").exit_code == 1
    assert run("check", folder).exit_code == 2


def public_key(folder: Path) -> Path:
    """A file with the key that signed a folder."""
    path = folder.with_name("holder.pub")
    signed = certificate.read(folder / "certificate.json")
    path.write_text(signed["signature"]["public_key"])
    return path


def signed_anew(folder: Path, made: Any, names: Any) -> None:
    """Certify these files of a folder, with a valid signature."""
    files = [folder / name for name in names]
    made = certificate.with_files(made, files)
    certificate.write(made, folder / "certificate.json")


def test_a_signature_does_not_vouch_for_a_model_that_it_does_not_cover(
    folder: Path, tmp_path: Path
) -> None:
    """However valid it is, and whoever's: the model may be anybody's."""
    for path in folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    made = certificate.read(tmp_path / "certificate.json")
    names = set(made["files"]) - {"model.skops"}
    signed_anew(tmp_path, made, names)
    key = public_key(tmp_path)
    pd.DataFrame({"x": [1.0]}).to_csv(tmp_path.parent / "data.csv", index=False)
    with pytest.raises(CertificateError, match="says nothing about model"):
        mapl.load(tmp_path, public_key=key)
    with pytest.raises(CertificateError, match="says nothing about model"):
        ServedModel(tmp_path)
    out = ("--out", tmp_path.parent / "predicted.csv")
    command = ["predict", tmp_path, tmp_path.parent / "data.csv", *out]
    done = CliRunner().invoke(main, list(map(str, command)))
    assert (done.exit_code, "says nothing about model.skops" in done.stderr) == (
        2,
        True,
    )
    done = run("check", tmp_path, "--that", "epsilon <= 9", "--public-key", key)
    assert (done.exit_code, "not certified" in done.stderr) == (2, True)


def test_the_bytes_that_were_verified_are_loaded(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that is exchanged after it was verified is not loaded."""
    for path in folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    verify = certificate.verify

    def then_exchange(*args: Any, **kwargs: Any) -> float:
        found = verify(*args, **kwargs)
        (tmp_path / "model.skops").write_bytes(b"another model")
        return found

    monkeypatch.setattr(certificate, "verify", then_exchange)
    with pytest.raises(CertificateError, match="not the file that was certified"):
        mapl.load(tmp_path)


def test_a_certificate_without_a_release_satisfies_nothing(
    folder: Path, tmp_path: Path
) -> None:
    for path in folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    old = certificate.read(tmp_path / "certificate.json")
    made = certificate.make(
        [],
        delta=1e-5,
        **certificate.protection(grouped=False),
        **{name: old[name] for name in ("mechanism", "public", "ledger")},
    )
    signed_anew(tmp_path, made, old["files"])
    for wanted in ("epsilon <= 9", "delta <= 1", "epsilon(1e-6) <= 9", "epsilon >= 0"):
        done = run(
            "check", tmp_path, "--that", wanted, "--public-key", public_key(tmp_path)
        )
        assert done.exit_code == 1
        assert "the report has none" in done.stdout
        assert "lists no release" in done.stderr


def test_an_edited_folder_is_refused_whatever_is_asked(
    folder: Path, tmp_path: Path
) -> None:
    for path in folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    report = json.loads((tmp_path / "report.json").read_text())
    (tmp_path / "report.json").write_text(json.dumps(report | {"epsilon": 0.1}))
    for args in (("check", tmp_path, "--that", "epsilon <= 9"), ("show", tmp_path)):
        done = run(*args)
        assert done.exit_code == 2
        assert "not the file that was certified" in done.stderr
    key = tmp_path / "key.pem"
    key.write_text("no key")
    done = run("check", folder, "--that", "epsilon <= 9", "--public-key", key)
    assert done.exit_code == 2


def test_each_form_is_shown(folder: Path, tmp_path: Path) -> None:
    for form, name in zip(("html", "print", "json", "markdown"), FILES, strict=True):
        out = tmp_path / name
        assert run("show", folder, "--format", form, "--out", out).exit_code == 0
        assert out.read_text() == (folder / name).read_text()
    assert "# A private classifier" in run("show", folder).stdout
    assert run("show", folder, "--format", "pdf").exit_code == 2


def test_labels_of_the_report_are_those_of_the_points(folder: Path) -> None:
    labels = pd.read_parquet(folder / "labels.parquet")["label"]
    counts = {str(k): int(n) for k, n in labels.value_counts().items()}
    found = Report.read(folder).labels
    assert {k: n for k, n in found.items() if n} == counts
