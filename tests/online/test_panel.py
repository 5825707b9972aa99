"""Panels: trained for nothing, opened for a price, asked once for each request."""

import json
import os
import shutil
import signal
from contextlib import nullcontext
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner
from odd_learners import Prints
from sklearn.linear_model import LogisticRegression

import mapl
from mapl import Ledger, Panel, PrivateClassifier
from mapl.cli import main
from mapl.errors import (
    BudgetExceededError,
    LedgerError,
    MechanismStateError,
    NotOpenError,
    ParameterError,
    RequestConflictError,
)
from mapl.ledger.online import OnlineJob
from mapl.online.encoder import QuickEncoder
from mapl.online.panel import Answers, Question
from mapl.online.training import train_panel
from mapl.privacy.sparse_vector import SparseVector
from mapl.records.private import private_records
from mapl.records.schema import Schema
from mapl.records.table import canonical_table
from mapl.release.online import OnlineLabeler, Request

N, K = 4000, 300


def frame(seed: int, n: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    towns = rng.choice(["Bath", "York"], n)
    found = pd.DataFrame({"a": rng.normal(size=n), "town": towns})
    found["y"] = np.where(found["a"] * 3 + (found["town"] == "Bath") > 0, "yes", "no")
    return found


DATA, POOL = frame(0, N), frame(1, 500)[["a", "town"]]
CLEAR = pd.DataFrame({"a": [4.0, -4.0, 5.0], "town": ["Bath", "York", "York"]})
UNCLEAR = pd.DataFrame({"a": np.linspace(-0.5, 0.1, 40), "town": "Bath"})


def make_panel(
    folder: Path, url: str, estimator: Any = None, *, epsilon: float = 12.0
) -> Panel:
    if not Path(url.removeprefix("sqlite:///")).exists():
        Ledger(url, create=True).create("d", epsilon=epsilon, delta=1e-3)
    schema = Schema.of_numbers_and_texts(POOL)
    codes = (DATA["y"] == "yes").to_numpy().astype(np.int64)
    private = private_records(
        canonical_table(DATA[["a", "town"]], schema),
        codes,
        None,
        takes_missing=True,
        on_invalid="error",
    )
    return train_panel(
        folder,
        LogisticRegression() if estimator is None else estimator,
        private,
        public=schema.cast(POOL),
        schema=schema,
        classes=np.array(["no", "yes"]),
        n_teachers=K,
        ledger=url,
        dataset="d",
        seed=0,
    )


def question(panel: Panel, frame: pd.DataFrame, *more: str) -> Question:
    return Question(canonical_table(frame, panel.schema), *more)


@pytest.fixture
def panel(tmp_path: Path) -> Panel:
    return make_panel(tmp_path / "panel", f"sqlite:///{tmp_path}/budget.db")


def test_a_panel_answers_where_teachers_agree(tmp_path: Path, url: str) -> None:
    panel = make_panel(tmp_path / "panel", url)
    assert Ledger(panel.public["ledger"]).balance("d").epsilon_spent == 0
    with pytest.raises(NotOpenError, match="is not open"):
        panel.ask(CLEAR)
    panel.open(epsilon=4, cutoff=2)
    assert Ledger(panel.public["ledger"]).balance("d").epsilon_spent > 3
    again = Panel.load(panel.folder)
    found = again.ask(CLEAR, id="one")
    assert found.labels == ["yes", "no", "yes"]
    assert found.abstained == [False] * 3
    shown = again.show()
    assert shown["requests_answered"] == 1
    assert shown["abstentions_left"] == 2
    assert repr(again) == f"Panel({str(panel.folder)!r})"


def test_a_request_is_answered_once(panel: Panel) -> None:
    panel.open(epsilon=1, mechanism="dissent", queries=100)
    first = panel.ask(UNCLEAR, id="x")
    for _ in range(2):
        assert Panel.load(panel.folder).ask(UNCLEAR, id="x") == first
    with pytest.raises(RequestConflictError, match="other records"):
        panel.ask(CLEAR, id="x")
    assert panel.show()["requests_answered"] == 1
    assert "abstentions_left" not in panel.show()
    panel.ask(UNCLEAR)
    assert panel.show()["requests_answered"] == 2


def test_a_sparse_vector_halts_after_its_cutoff(panel: Panel) -> None:
    panel.open(epsilon=2, cutoff=3)
    found = panel.ask(UNCLEAR)
    assert sum(found.abstained) >= 3
    assert panel.show()["abstentions_left"] == 0
    with pytest.raises(BudgetExceededError, match="as many answers as were paid for"):
        Panel.load(panel.folder).ask(CLEAR)
    panel.close()
    panel.open(epsilon=2, cutoff=3)
    assert panel.ask(CLEAR).labels[:1] in (["yes"], [None])


def test_what_is_not_in_the_budget_is_refused(panel: Panel) -> None:
    with pytest.raises(BudgetExceededError):
        panel.open(epsilon=50)
    assert not Panel.load(panel.folder).is_open
    with pytest.raises(ParameterError, match="would answer nothing"):
        panel.open(epsilon=0.1)
    with pytest.raises(ParameterError, match="mechanism must be"):
        panel.open(epsilon=1, mechanism="noisy-max")
    with pytest.raises(ParameterError, match="goes with mechanism 'dissent'"):
        panel.open(epsilon=1, guess="x")
    with pytest.raises(ParameterError, match="is not open"):
        panel.close()
    panel.open(epsilon=2, cutoff=3)
    with pytest.raises(ParameterError, match="Close it first"):
        panel.open(epsilon=2, cutoff=3)


def test_a_published_model_may_be_the_guess(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/budget.db"
    panel = make_panel(tmp_path / "panel", url)
    model = PrivateClassifier(epsilon=2, classes=["no", "yes"])
    model.fit(DATA[["a", "town"]], DATA["y"], X_public=POOL, allow_overlap=True).save(
        tmp_path / "model"
    )
    panel.open(epsilon=6, mechanism="dissent", guess=tmp_path / "model", queries=20)
    for _ in range(2):
        found = panel.ask(CLEAR)
        assert found.labels == ["yes", "no", "yes"]
    panel.close()
    other = PrivateClassifier(epsilon=2, classes=["high", "low"])
    labels = np.where(DATA["a"] > 0, "high", "low")
    other.fit(DATA[["a", "town"]], labels, X_public=POOL, allow_overlap=True).save(
        tmp_path / "other"
    )
    with pytest.raises(ParameterError, match="classes of the panel"):
        panel.open(epsilon=1, mechanism="dissent", guess=tmp_path / "other")
    more = DATA.assign(b=DATA["a"] ** 2)
    model.fit(
        more[["a", "b", "town"]],
        DATA["y"],
        X_public=POOL.assign(b=POOL["a"] ** 2),
        allow_overlap=True,
    ).save(tmp_path / "more")
    with pytest.raises(ParameterError, match="needs the column 'b'"):
        panel.open(epsilon=1, mechanism="dissent", guess=tmp_path / "more")


def test_what_is_kept_is_encrypted_and_bound(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/budget.db"
    panel = make_panel(tmp_path / "panel", url)
    secret = (panel.folder / "teachers.bin").read_bytes()
    assert b"LogisticRegression" not in secret
    assert (panel.folder / "teachers.bin").stat().st_mode & 0o777 == 0o600
    assert panel.folder.stat().st_mode & 0o777 == 0o700
    public = json.loads((panel.folder / "panel.json").read_text())
    Ledger(url).create("other", epsilon=9, delta=1e-3)
    (panel.folder / "panel.json").write_text(json.dumps(public | {"dataset": "other"}))
    with pytest.raises(LedgerError, match="another ledger or data set"):
        Panel.load(panel.folder).open(epsilon=2, cutoff=3)
    (panel.folder / "panel.json").write_text(json.dumps(public | {"form": "x/9"}))
    with pytest.raises(ParameterError, match="unknown to this version"):
        Panel.load(panel.folder)
    (panel.folder / "panel.json").write_text("nonsense")
    with pytest.raises(ParameterError, match="holds no panel"):
        Panel.load(panel.folder)
    with pytest.raises(ParameterError, match="is there already"):
        make_panel(panel.folder, url)
    with pytest.raises(ParameterError, match="scikit-learn's own"):
        make_panel(tmp_path / "new", url, Prints())


def test_processes_take_turns(tmp_path: Path, url: str) -> None:
    panel = make_panel(tmp_path / "panel", url)
    panel.open(epsilon=2, mechanism="dissent", queries=400)

    def run(start: int) -> None:
        own = Panel.load(panel.folder)
        for i in range(5):
            own.ask(UNCLEAR[i : i + 20], id=f"{start}-{i}")

    children = [get_context("fork").Process(target=run, args=(i,)) for i in range(3)]
    for child in children:
        child.start()
    for child in children:
        child.join()
    assert [child.exitcode for child in children] == [0, 0, 0]
    assert panel.show()["requests_answered"] == 15


@pytest.mark.parametrize("moment", ["commit_questions", "commit_replies"])
@pytest.mark.parametrize("mechanism", ["sparse-vector", "dissent"])
def test_a_killed_request_is_asked_again(
    tmp_path: Path, mechanism: str, moment: str
) -> None:
    url = f"sqlite:///{tmp_path}/budget.db"
    panel = make_panel(tmp_path / "panel", url)
    panel.open(epsilon=4, mechanism=mechanism, cutoff=5)

    def run() -> None:
        def killed(*_: Any) -> None:
            os.kill(os.getpid(), signal.SIGKILL)

        setattr(OnlineJob, moment, killed)
        Panel.load(panel.folder).ask(CLEAR, id="x")

    child = get_context("fork").Process(target=run)
    child.start()
    child.join()
    assert child.exitcode == -signal.SIGKILL
    found = Panel.load(panel.folder).ask(CLEAR, id="x")
    assert Panel.load(panel.folder).ask(CLEAR, id="x") == found
    assert panel.show()["requests_answered"] == 1


def test_who_does_not_wait_is_refused(
    panel: Panel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With another state folder the file lock is another one: the ledger notices."""
    panel.open(epsilon=1, mechanism="dissent", queries=100)
    other = Panel.load(panel.folder)
    committed = OnlineJob.commit_questions

    def between(self: OnlineJob, *args: Any) -> None:
        monkeypatch.setattr(OnlineJob, "commit_questions", committed)
        with monkeypatch.context() as patch:
            patch.setattr("mapl.ledger.turns.locked", lambda *_, **__: nullcontext())
            other.ask(UNCLEAR, id="other")
        committed(self, *args)

    monkeypatch.setattr(OnlineJob, "commit_questions", between)
    with pytest.raises(LedgerError, match="does not wait for its turn"):
        panel.ask(UNCLEAR, id="mine")
    assert panel.show()["requests_answered"] == 1
    panel.ask(UNCLEAR, id="mine")


def test_questions_are_asked_together(panel: Panel) -> None:
    panel.open(epsilon=8, mechanism="dissent", queries=100)
    questions = [
        question(panel, CLEAR, "one", "ann"),
        question(panel, UNCLEAR, "two"),
        question(panel, CLEAR, "one"),
        question(panel, UNCLEAR, "one"),
        question(panel, CLEAR[:1]),
    ]
    found = panel.ask_together(questions)
    assert found[0] == found[2]
    assert isinstance(found[3], RequestConflictError)
    first, two, *_ = found
    assert isinstance(first, Answers)
    assert isinstance(two, Answers)
    assert (len(first.labels), len(two.labels)) == (3, 40)
    assert Panel.load(panel.folder).ask_together(questions[:4])[:3] == found[:3]
    notes = panel.ledger.newest_answers("d", n=10)
    assert sorted(note["queries"] for note in notes) == [1, 3, 40]
    assert notes[-1]["by"] == "ann"


def test_another_panel_in_the_folder_is_noticed(panel: Panel, tmp_path: Path) -> None:
    url = panel.public["ledger"]
    other = make_panel(tmp_path / "other", url)
    shutil.copy(other.folder / "panel.json", panel.folder)
    with pytest.raises(LedgerError, match="holds another panel"):
        panel.ask(CLEAR)
    (panel.folder / "panel.json").unlink()
    with pytest.raises(LedgerError, match="is gone, or damaged"):
        panel.ask(CLEAR)


def test_a_changed_data_set_is_noticed_while_it_runs(panel: Panel) -> None:
    """Or the budget of another data set would pay for these teachers."""
    panel.open(epsilon=2, mechanism="dissent", queries=100)
    panel.ask(CLEAR)
    panel.ledger.create("other", epsilon=99, delta=1e-3)
    public = json.loads((panel.folder / "panel.json").read_text())
    changed = json.dumps(public | {"dataset": "other"})
    (panel.folder / "panel.json").write_text(changed)
    for act in (lambda: panel.ask(CLEAR), panel.show, panel.close):
        with pytest.raises(LedgerError, match="holds another panel"):
            act()
    with pytest.raises(LedgerError, match="cannot be decrypted"):
        Panel.load(panel.folder).show()
    assert panel.ledger.balance("other").epsilon_spent == 0


def test_only_opening_pays(panel: Panel) -> None:
    panel.open(epsilon=2, mechanism="dissent", queries=100)
    spent = panel.balance().epsilon_spent
    public = json.loads((panel.folder / "panel.json").read_text())
    forged = {**public["openings"][0], "number": 2}
    public["openings"] = [public["openings"][0] | {"closed": True}, forged]
    (panel.folder / "panel.json").write_text(json.dumps(public))
    for act in (panel.show, panel.can_answer, lambda: panel.ask(CLEAR)):
        with pytest.raises(NotOpenError, match="was not paid for"):
            act()
    assert panel.balance().epsilon_spent == spent


def test_an_opening_that_was_not_written_answers_nothing(
    panel: Panel, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError("No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("mapl.online.panel.write_for_owner", full)
        with pytest.raises(OSError, match="No space"):
            panel.open(epsilon=1, mechanism="dissent")
    before = panel.balance().epsilon_spent
    panel.open(epsilon=5, mechanism="dissent")
    assert panel.balance().epsilon_spent > before + 4


def test_a_name_holds_beyond_an_opening(panel: Panel) -> None:
    panel.open(epsilon=1, mechanism="dissent", queries=100)
    first = panel.ask(UNCLEAR, id="x")
    panel.close()
    panel.open(epsilon=2, mechanism="dissent", queries=100)
    assert panel.ask(UNCLEAR, id="x") == first
    with pytest.raises(RequestConflictError):
        panel.ask(CLEAR, id="x")
    panel.ask(CLEAR, id="y")


def test_what_comes_after_the_halt_is_not_answered(panel: Panel) -> None:
    panel.open(epsilon=2, cutoff=3)
    asked = [question(panel, UNCLEAR, f"q{i}") for i in range(4)]
    found = panel.ask_together(asked)
    assert isinstance(found[0], Answers)
    assert isinstance(found[-1], BudgetExceededError)
    assert len(panel.ledger.newest_answers("d", n=10)) < 4
    again = Panel.load(panel.folder).ask_together(asked)
    assert again[0] == found[0]
    assert isinstance(again[-1], BudgetExceededError)


def test_a_turn_is_not_waited_for_without_end(
    tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    panel = make_panel(tmp_path / "panel", url)
    panel.open(epsilon=1, mechanism="dissent")
    monkeypatch.setattr("mapl.ledger.turns._SECONDS", 1)
    other = Panel.load(panel.folder)
    with (
        panel._labeler(panel.public["openings"][-1])._job.turn(),
        pytest.raises(LedgerError, match="No turn to ask"),
    ):
        other.ask(CLEAR)


def test_a_ledger_file_that_is_gone_is_not_written_to(panel: Panel) -> None:
    panel.open(epsilon=1, mechanism="dissent")
    panel.ask(CLEAR)
    path = Path(panel.public["ledger"].removeprefix("sqlite:///"))
    path.rename(path.with_suffix(".away"))
    with pytest.raises(LedgerError, match="removed or replaced"):
        panel.ask(CLEAR)
    path.with_suffix(".away").rename(path)
    panel.ask(CLEAR)


@pytest.mark.parametrize("columns", [["a", "town"], ["a"], ["town"]])
def test_the_quick_encoder_is_exact(columns: list[str]) -> None:
    rng = np.random.default_rng(0)
    public = frame(0, 300).assign(b=rng.normal(size=300) ** 3)
    public.loc[rng.random(300) < 0.1, ["a", "town"]] = None
    kept = public[[*columns, "b"] if "a" in columns else columns]
    schema = Schema.of_numbers_and_texts(kept)
    encoder, _ = schema.fit_encoder(schema.cast(kept))
    asked = frame(1, 200).assign(b=1.5).replace("York", "Oslo")
    asked.loc[::7, ["a", "town"]] = None
    table = canonical_table(asked[kept.columns], schema)
    quick = QuickEncoder(encoder).transform(table)
    assert (quick == encoder.transform(table.data)).all()


def test_hidden_noise_is_refused(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/budget.db"
    ledger = Ledger(url, create=True)
    ledger.create("d", epsilon=9, delta=1e-3)
    job = ledger.online_job("d", b"x", delta=1e-5)
    job.begin(0)
    labeler = OnlineLabeler(
        job,
        lambda: SparseVector(
            noise_scale=20, threshold=400, cutoff=2, threshold_noise_scale=10
        ),
    )
    labeler.open()
    assert repr(labeler) == "OnlineLabeler()"
    votes = np.ones((200, 1), dtype=np.int64)
    with pytest.raises(MechanismStateError, match="without hidden noise"):
        labeler.ask([Request("a", b"", 1, "me")], votes, None, n_classes=2)


def run(*args: Any, code: int = 0) -> Any:
    done = CliRunner().invoke(main, [str(arg) for arg in args])
    assert done.exit_code == code, done.output + done.stderr
    return done


def test_panels_from_the_shell(tmp_path: Path) -> None:
    url, folder = f"sqlite:///{tmp_path}/budget.db", tmp_path / "panels" / "one"
    DATA.to_csv(tmp_path / "private.csv", index=False)
    POOL.to_csv(tmp_path / "public.csv", index=False)
    CLEAR.to_csv(tmp_path / "new.csv", index=False)
    run("ledger", "create", url, "--dataset", "d", "--epsilon", 6, "--delta", 1e-3)
    files = (tmp_path / "private.csv", "--public", tmp_path / "public.csv")
    kinds = ("--target", "y", "--classes", "no,yes", "--teachers", K)
    where = ("--ledger", url, "--dataset", "d", "--panel", folder)
    run("panel", "train", *files, *kinds, *where)
    assert "no" in run("panel", "list", folder.parent).stdout
    run("panel", "open", folder, "--epsilon", 4, "--cutoff", 3)
    out = ("--out", tmp_path / "labels.csv", "--id", "r1")
    done = run("panel", "ask", folder, tmp_path / "new.csv", *out, "--json")
    assert json.loads(done.stdout)["labelled"] == 3
    labels = pd.read_csv(tmp_path / "labels.csv")["label"].tolist()
    assert labels == ["yes", "no", "yes"]
    parquet = ("--out", tmp_path / "labels.parquet", "--id", "r1")
    run("panel", "ask", folder, tmp_path / "new.csv", *parquet)
    assert pd.read_parquet(tmp_path / "labels.parquet")["label"].tolist() == labels
    CLEAR[:1].to_csv(tmp_path / "new.csv", index=False)
    message = run("panel", "ask", folder, tmp_path / "new.csv", *out, code=2).stderr
    assert "was made before with other records" in message
    CLEAR[:0].to_csv(tmp_path / "new.csv", index=False)
    run("panel", "ask", folder, tmp_path / "new.csv", *out, code=2)
    shown = json.loads(run("panel", "show", folder, "--json").stdout)
    assert shown["requests_answered"] == 1
    run("panel", "close", folder)
    message = run("panel", "open", folder, "--epsilon", 9, code=3).stderr
    assert "exceeded" in message
    assert mapl.Panel is Panel
