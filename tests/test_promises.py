"""What docs/stability.md promises: files that earlier versions wrote, names, codes.

The files in tests/promises are never made again: a new version adds a folder.
"""

import inspect
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

import mapl
from mapl import Ledger, PrivateClassifier, accounting
from mapl.cli import main
from mapl.privacy.events import from_json
from mapl.publish import certificate
from mapl.publish.report import Report

PLACE = Path(__file__).parent / "promises"
VERSIONS = sorted(path.name for path in PLACE.iterdir() if path.is_dir())
# 0.1.0 was not published: what it charged is kept, its models are learned again.
UNPUBLISHED = ("0.1.0", "before-0.1")
published = pytest.mark.parametrize(
    "old", [v for v in VERSIONS if v not in UNPUBLISHED], indirect=True
)
SCHEMA = {
    "columns": {
        "age": {"kind": "integer", "range": [0, 120]},
        "town": {"kind": "category", "categories": ["Bath", "Ely", "York"]},
    }
}


@pytest.fixture(params=VERSIONS)
def old(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """What a version wrote, as a copy, with its keys in place."""
    folder = tmp_path / "old"
    shutil.copytree(PLACE / request.param, folder)
    for path in (folder / "budget.db", *(folder / "state").iterdir()):
        path.chmod(0o600)
    (folder / "state").chmod(0o700)
    monkeypatch.setenv("MAPL_STATE", str(folder / "state"))
    return folder


def people() -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    table = pd.DataFrame(
        {"age": rng.integers(20, 90, 3000), "town": rng.choice(["York", "Bath"], 3000)}
    )
    ill = (table["age"] > 55) & (table["town"] == "York")
    return table, np.where(ill, "yes", "no")


@published
def test_old_folders_load_and_predict_the_same(old: Path) -> None:
    expected = json.loads((old / "expected.json").read_text())
    records = pd.DataFrame(expected["records"])
    model = mapl.load(old / "folder")
    assert model.predict(records).tolist() == expected["labels"]
    found = model.predict_proba(records)
    assert found == pytest.approx(np.array(expected["probabilities"]), abs=1e-5)


def test_old_certificates_verify(old: Path) -> None:
    read = certificate.read(old / "folder" / "certificate.json")
    epsilon = certificate.verify(read, folder=old / "folder")
    assert epsilon == read["epsilon"]
    done = CliRunner().invoke(main, ["certificate", "verify", str(old / "folder")])
    assert done.exit_code == 0


def test_old_reports_are_read(old: Path) -> None:
    if not (old / "folder" / "report.json").exists():  # before 0.1
        with pytest.raises(mapl.CertificateError, match=r"report\.json"):
            Report.read(old / "folder")
        return
    assert Report.read(old / "folder").epsilon <= 1  # type: ignore[operator]


@pytest.mark.parametrize("old", UNPUBLISHED, indirect=True)
def test_models_of_0_1_0_say_that_they_are_to_be_learned_again(old: Path) -> None:
    with pytest.raises(mapl.CertificateError, match=r"earlier than mapl 0\.2"):
        mapl.load(old / "folder")


def test_old_ledgers_open(old: Path) -> None:
    assert Ledger(f"sqlite:///{old}/budget.db").balance("people").epsilon_spent > 0.9


@published
def test_the_same_fit_is_free(old: Path) -> None:
    url = f"sqlite:///{old}/budget.db"
    before = Ledger(url).balance("people").epsilon_spent
    assert 0.9 < before <= 1
    model = PrivateClassifier(
        schema=SCHEMA,
        epsilon=1,
        classes=["no", "yes"],
        random_state=0,
        ledger=url,
        dataset="people",
    ).fit(*people())
    assert model.paid_before_
    assert Ledger(url).balance("people").epsilon_spent == before
    expected = json.loads((old / "expected.json").read_text())
    found = model.predict_proba(pd.DataFrame(expected["records"]))
    assert found == pytest.approx(np.array(expected["probabilities"]), abs=1e-5)


EVENTS = json.loads((PLACE / "events.json").read_text())


@pytest.mark.parametrize("known", EVENTS, ids=lambda known: known["event"]["kind"])
def test_events_never_change_their_meaning(known: Any) -> None:
    event = from_json(known["event"])
    assert event.to_json() == known["event"]
    found = accounting.epsilon([event], delta=1e-5)
    assert found == pytest.approx(known["epsilon"], rel=1e-6)


def signatures() -> dict[str, list[str]]:
    """Return the parameters of every public name that can be called."""
    found = {}
    for name in mapl.__all__:
        thing = getattr(mapl, name)
        if inspect.isclass(thing) and issubclass(thing, Exception | Warning):
            found[name] = []
        elif callable(thing):
            found[name] = list(inspect.signature(thing).parameters)
        else:
            found[name] = []
    return found


def test_public_names_and_their_parameters_stay() -> None:
    promised = json.loads((PLACE / "names.json").read_text())
    found = signatures()
    for name, parameters in promised.items():
        assert name in found
        kept = [p for p in found[name] if p in parameters]
        assert kept == parameters, name


def test_commands_and_options_stay() -> None:
    promised = json.loads((PLACE / "commands.json").read_text())
    found = commands()
    for name, options in promised.items():
        assert set(options) <= set(found[name]), name


def commands() -> dict[str, list[str]]:
    """Return the options of every command."""
    found = {}
    for name, command in main.commands.items():
        inner = getattr(command, "commands", None) or {"": command}
        for own, each in inner.items():
            options = [o for p in each.params for o in p.opts if o.startswith("--")]
            found[f"{name} {own}".strip()] = sorted(options)
    return found


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("certificate verify {}/folder", 0),
        ("report check {}/folder --that epsilon<0.1", 1),
        ("report check {}/folder --that epsilon", 2),
        ("certificate verify {}/state", 2),
        ("ledger show sqlite:///{}/none.db", 2),
        ("ledger show sqlite:///{}/damaged.db", 4),
    ],
)
def test_exit_codes_stay(
    command: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """3 is held by tests/cli/test_cli.py, 5 by tests/audit/test_audit.py."""
    folder = tmp_path / "old"
    shutil.copytree(PLACE / VERSIONS[0], folder)
    monkeypatch.setenv("MAPL_STATE", str(folder / "state"))
    for path in (folder / "state").iterdir():
        path.chmod(0o600)
    (folder / "damaged.db").write_bytes(
        (folder / "budget.db").read_bytes().replace(b"people", b"peopel")
    )
    done = CliRunner().invoke(main, command.format(folder).split())
    assert done.exit_code == code, done.output
