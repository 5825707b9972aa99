"""Audits of whole fits: with canaries among somebody's records."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner
from scipy.stats import binom
from sklearn.datasets import make_classification
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler
from sklearn.svm import LinearSVC
from sklearn.tree import DecisionTreeClassifier

from mapl import Budget, Ledger, ParameterError, PrivateClassifier
from mapl.audit import canaries, replay
from mapl.audit.canaries import CANARIES
from mapl.audit.fits import audit_one_run, chance_of, judge_one_run, largest_refuted
from mapl.audit.run import audit_fit
from mapl.audit.worlds import Data
from mapl.cli import main
from mapl.features.passes import Counts
from mapl.privacy import moments, noise
from mapl.records import private
from mapl.release.sums import Summer

X, y = make_classification(500, 4, random_state=0)
U, X, y = X[300:], X[:300], y[:300]
FRAME = pd.DataFrame(X, columns=list("abcd")).assign(
    town=np.where(X[:, 0] > 0, "York", "Bath")
)
SCHEMA: dict[str, Any] = {
    "columns": {
        **{name: {"kind": "number", "range": [-5, 5]} for name in "abcd"},
        "town": {"kind": "category", "categories": ["York", "Bath", "Ely"]},
    }
}
TREE = DecisionTreeClassifier(max_depth=3)
LIMITS = ["--dataset", "d", "--epsilon", "100", "--delta", "0.01"]
MODELS: dict[str, tuple[dict[str, Any], Any, Any]] = {
    "moments": ({}, X, U),
    "schema": ({"schema": SCHEMA}, FRAME, None),
    "labels": ({"privacy": "labels"}, X, None),
    "votes": ({"estimator": TREE, "method": "votes", "n_teachers": 10}, X, U),
    "noisy-max": (
        {
            "estimator": TREE,
            "method": "votes",
            "mechanism": "noisy-max",
            "n_teachers": 10,
        },
        X,
        U,
    ),
    "both": ({"estimator": TREE, "n_teachers": 10}, X, U),
}


def classifier(epsilon: float = 8.0, **params: Any) -> PrivateClassifier:
    return PrivateClassifier(epsilon=epsilon, classes=[0, 1], random_state=0, **params)


def verdict(name: str, canary: str = "outlier", draws: int = 150, **more: Any) -> Any:
    params, records, pool = MODELS[name]
    return audit_fit(
        classifier(**params),
        *(records, y),
        X_public=pool,
        canary=canary,
        draws=draws,
        **more,
    )[1]


# Fits as they are -----------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
def test_a_true_fit_is_not_refuted(name: str) -> None:
    found = verdict(name, "mislabelled")
    assert not found.refuted
    assert found.real < found.claimed


def test_much_of_a_fit_shows() -> None:
    """A third of the claim, by records that only differ in their label."""
    assert verdict("moments", "mislabelled", 2000).real > 3
    assert verdict("schema", "memorable", 1000).real > 2.5


@pytest.mark.parametrize("canary", CANARIES)
@pytest.mark.parametrize("frame", [True, False])
def test_canaries_are_records_like_the_others(canary: str, frame: bool) -> None:
    records = FRAME if frame else X
    shown = canaries.as_frame(records)
    row, label = CANARIES[canary](shown, y, [0, 1], np.random.default_rng(0))
    whole = canaries.with_canary(records, canaries.as_given(row, records))
    assert len(whole) == len(records) + 1
    assert label in (0, 1)
    own, rest = canaries.as_frame(whole).iloc[0], canaries.as_frame(whole).iloc[1:]
    numbers = list(own.index[:4])
    assert rest[numbers].to_numpy(float) == pytest.approx(shown[numbers].to_numpy())
    far = float(np.abs(own[numbers].to_numpy(float)).max())
    assert (far > 1e6) == (canary == "outlier")
    if frame:
        assert own["town"] in ("York", "Bath")
    if canary == "mislabelled":
        twin = (own[numbers].to_numpy(float) == X).all(axis=1)
        assert y[twin] == [1 - label]


def test_empty_columns_have_canaries() -> None:
    empty = FRAME.assign(town=None, a=np.nan)
    for make in CANARIES.values():
        row, _ = make(empty, y, [0, 1], np.random.default_rng(0))
        assert row["town"].isna().all()


def test_persons_have_canaries_of_their_own() -> None:
    owners = np.arange(300) // 3
    assert not verdict("moments", groups=owners).refuted
    found = audit_one_run(classifier(), X, y, X_public=U, groups=owners, canaries=40)
    assert not found.refuted


# Planted bugs ---------------------------------------------------------------------


def test_chunks_by_position_are_refuted(monkeypatch: pytest.MonkeyPatch) -> None:
    def by_position(keys: Any, units: Any, *, n_chunks: int, salt: int) -> Any:
        return np.array_split(np.arange(len(keys)), n_chunks)

    monkeypatch.setattr(private, "chunk_rows", by_position)
    params = MODELS["noisy-max"][0] | {"n_teachers": 61}  # not of 300
    tree = DecisionTreeClassifier(random_state=0)
    model = classifier(20.0, **(params | {"estimator": tree}))
    found = audit_fit(model, X, y, X_public=U, draws=1000)[1]
    assert found.refuted


def test_a_scaler_of_all_records_is_refuted() -> None:
    """It stands before the classifier, where one record changes what all others say."""
    plain = make_pipeline(StandardScaler(), classifier())
    _, found = audit_fit(plain, X, y, X_public=U, canary="duplicate", draws=40)
    assert found.sentence() == (
        "REFUTED: what stands before the classifier changed without noise."
    )
    fixed = make_pipeline(FunctionTransformer(np.tanh), classifier())
    assert not audit_fit(fixed, X, y, X_public=U, draws=40)[1].refuted
    few: dict[str, Any] = {"draws": 20, "confidence": 0.9, "whole": True}
    assert not audit_fit(fixed, X, y, X_public=U, **few)[1].refuted
    ranges = {f"x{i}": {"kind": "number", "range": [-5, 5]} for i in range(4)}
    model = make_pipeline(StandardScaler(), classifier(schema={"columns": ranges}))
    _, found = audit_fit(model, X, y, canary="outlier", draws=100)
    assert found.refuted
    inside = classifier(
        estimator=make_pipeline(StandardScaler(), LogisticRegression()),
        method="votes",
        n_teachers=10,
    )
    _, found = audit_fit(inside, X, y, X_public=U, canary="outlier", draws=100)
    assert not found.refuted


def test_longer_labels_and_other_types_stay_as_they_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A class without records is that of the outlier; its name is not cut."""
    weak_noise(monkeypatch, 3)
    for labels, classes in (
        (np.where(y == 1, "yes", "no"), ["no", "yes", "maybe"]),
        (y.astype(np.int8), [0, 1, 300]),
    ):
        model = classifier(8.0, on_invalid="drop")
        model.classes = classes
        _, found = audit_fit(model, X, labels, X_public=U, canary="outlier", draws=200)
        assert found.refuted, classes
        one = audit_one_run(model, X, labels, X_public=U, canaries=20)
        assert one.n_canaries == 20


def test_exact_figures_beside_the_noise_are_refuted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The next question depends on a count that has no noise."""

    def exact(self: Summer, n_classes: int, part: Any) -> Any:
        total = self._records.total(Counts(n_classes))
        return total[0] / total.sum() * float(len(self._records)), 1e-9

    monkeypatch.setattr(Summer, "count", exact)
    found = verdict("moments", draws=40)
    assert found.refuted
    assert found.sentence() == (
        "REFUTED: what is asked depends on records without noise."
    )


def test_a_model_that_learned_from_records_is_refuted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    learn = PrivateClassifier._learn

    def peeked(self: Any, private: Any, *args: Any) -> Any:
        found = learn(self, private, *args)
        peeking = GaussianNB().fit(private.table.data, private.codes)
        return replace(found, student=peeking)

    monkeypatch.setattr(PrivateClassifier, "_learn", peeked)
    _, found = audit_fit(classifier(), X, y, X_public=U, draws=40)
    assert found.sentence() == (
        "REFUTED: what is published depends on records without noise."
    )


def test_audits_charge_nobody(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/budget.db"
    CliRunner().invoke(main, ["ledger", "create", url, *LIMITS])
    model = classifier(ledger=url, dataset="d")
    with Budget(epsilon=100, delta=1e-3) as budget:
        for whole in (True, False):
            audit_fit(model, X, y, X_public=U, draws=20, whole=whole, confidence=0.9)
        audit_one_run(model, X, y, X_public=U, canaries=20)
    assert not budget.events
    assert Ledger(url).balance("d").epsilon_spent == 0


def test_whole_fits_of_a_ledgered_model_see_the_canary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stored reply would be the same in both worlds."""
    weak_noise(monkeypatch, 10**6)
    url = f"sqlite:///{tmp_path}/budget.db"
    CliRunner().invoke(main, ["ledger", "create", url, *LIMITS])
    model = classifier(ledger=url, dataset="d")
    options = {"draws": 40, "confidence": 0.9, "whole": True, "canary": "memorable"}
    assert audit_fit(model, X, y, X_public=U, **options)[1].refuted  # type: ignore[arg-type]


def test_a_canary_is_nobody_elses() -> None:
    data = Data.of(classifier(), X, y, ["canary"] * 300, U)
    whole = data.with_records(pd.DataFrame(X[:2]), [0, 1])
    assert len(set(whole.groups or [])) == 3


def weak_noise(patch: pytest.MonkeyPatch, factor: int) -> None:
    true = noise.discrete_gaussian

    def weak(sigma: Any, shape: Any, **more: Any) -> Any:
        return true(sigma / factor, shape, **more)

    patch.setattr(moments, "discrete_gaussian", weak)


def test_half_the_noise_of_a_fit_is_refuted(monkeypatch: pytest.MonkeyPatch) -> None:
    weak_noise(monkeypatch, 2)
    assert verdict("moments", "mislabelled", 400).refuted


def test_whole_fits_show_gross_faults(monkeypatch: pytest.MonkeyPatch) -> None:
    few = {"draws": 20, "confidence": 0.9, "whole": True}
    assert not verdict("moments", "memorable", **few).refuted
    weak_noise(monkeypatch, 10**6)
    assert verdict("moments", "memorable", **(few | {"draws": 40})).refuted


def test_one_run_shows_gross_faults(monkeypatch: pytest.MonkeyPatch) -> None:
    found = audit_one_run(classifier(), X, y, X_public=U, canaries=100)
    assert not found.refuted
    assert "guesses right" in found.sentence()
    # A table of what it saw, for a model that claims to be private.
    model = Memory(epsilon=1.0, classes=[0, 1])
    found = audit_one_run(model, FRAME, y, X_public=U, canaries=200)
    assert found.refuted
    assert found.sentence().startswith("REFUTED")


class Memory(PrivateClassifier):
    """It remembers each record with its label."""

    def fit(self, X: Any, y: Any, **_: Any) -> Any:  # type: ignore[override]
        fitted = classifier(1.0, schema=SCHEMA).fit(FRAME, y[: len(FRAME)])
        self.events_, self.classes_ = fitted.events_, fitted.classes_
        cells = pd.DataFrame(X).astype(str).agg("|".join, axis=1)
        self.seen_ = set(zip(cells, y, strict=True))
        return self

    def predict_proba(self, X: Any) -> Any:
        cells = pd.DataFrame(X).astype(str).agg("|".join, axis=1)
        return np.array([[(c, k) in self.seen_ for k in (0, 1)] for c in cells], float)


# Judging one run ------------------------------------------------------------------


def test_chances_are_those_of_the_binomial_where_delta_is_nothing() -> None:
    for epsilon in (0.0, 1.0, 3.0):
        p = 1 / (1 + math.exp(-epsilon))
        assert chance_of(90, 60, 45, epsilon, 0.0) == pytest.approx(binom.sf(44, 60, p))
        assert chance_of(90, 60, 45, epsilon, 1e-3) > binom.sf(44, 60, p)
    assert chance_of(90, 60, 45, 1.0, 1.0) == 1


def test_randomized_response_is_judged_by_what_it_is() -> None:
    """Each canary's bit leaks with odds e: never more than epsilon 1 is refuted."""
    rng = np.random.default_rng(0)
    refuted, real = 0, []
    for _ in range(200):
        present = rng.random(300) < 0.5
        said = present ^ (rng.random(300) < 1 / (1 + math.e))
        found = judge_one_run(
            said + rng.random(300) / 9, present, 1.0, 0.0, confidence=0.9
        )
        refuted += found.refuted
        real.append(found.real)
    assert refuted <= binom.ppf(0.999, 200, 0.1)
    assert np.mean(real) > 0.5
    assert largest_refuted(10, 6, 3, 0.0, 0.01) == 0


# Bad input ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("params", "more"),
    [
        ({}, {"canary": "bird"}),
        ({}, {"draws": 3}),
        ({}, {"confidence": 1}),
        ({"mechanism": "sparse-vector", "method": "votes", "estimator": TREE}, {}),
    ],
)
def test_bad_parameters_are_refused(params: Any, more: Any) -> None:
    with pytest.raises(ParameterError):
        audit_fit(classifier(8.0, **params), X, y, X_public=U, **more)


def test_records_that_no_canary_can_be_made_of_are_refused() -> None:
    with pytest.raises(ParameterError, match="DataFrame or an array"):
        audit_fit(classifier(), X.tolist(), y, X_public=U)
    with pytest.raises(ParameterError, match="two labels"):
        audit_fit(classifier(), X[:0], y[:0], X_public=U)
    only = PrivateClassifier(epsilon=8, classes=["a"])
    with pytest.raises(ParameterError, match="two labels"):
        audit_fit(only, X, ["a"] * len(X), X_public=U)


def test_fits_that_ask_different_things_cannot_be_compared() -> None:
    tapes = [replay.Tape(), replay.Tape()]
    tapes[0].sums.append(replay.Sum(np.zeros(3, dtype=int), 1, 1, 1))  # type: ignore[arg-type]
    setting: Any = type("Setting", (), {"event": None})()
    with pytest.raises(ParameterError, match="random_state"):
        replay.Replay(*tapes, setting, 1e-5)


def test_other_models_and_tables_are_refused() -> None:
    with pytest.raises(ParameterError, match="must be a PrivateClassifier"):
        audit_fit(StandardScaler(), X, y)
    with pytest.raises(ParameterError, match="by whole fits"):
        audit_fit(Memory(epsilon=1, classes=[0, 1]), FRAME, y, X_public=U)
    twice = FRAME.set_axis([*"abcda"], axis=1)
    with pytest.raises(ParameterError, match="two columns of one name"):
        audit_fit(classifier(), twice, y, X_public=U)
    labels = classifier(privacy="labels")
    with pytest.raises(ParameterError, match="about labels"):
        audit_one_run(labels, X, y, canaries=40)
    sure = classifier(estimator=LinearSVC(), method="votes", n_teachers=5)
    assert not audit_fit(sure, X, y, X_public=U, draws=20)[1].refuted
    with pytest.raises(ParameterError, match="no probabilities"):
        audit_one_run(sure, X, y, X_public=U, canaries=40)


def test_a_canary_that_a_fit_leaves_out_is_refused() -> None:
    gaps = X.copy()
    gaps[:, 0] = np.nan
    takes_none = classifier(
        estimator=LogisticRegression(),
        method="votes",
        n_teachers=5,
        on_invalid="drop",
    )
    with pytest.raises(ParameterError, match="leaves the canary out"):
        audit_fit(takes_none, gaps, y, X_public=U)


# The command ----------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("audit")
    FRAME.assign(label=y, who=np.arange(300) // 2).to_csv(
        made / "private.csv", index=False
    )
    form = SCHEMA | {"target": {"column": "label", "classes": ["0", "1"]}}
    (made / "schema.json").write_text(json.dumps(form))
    FRAME.sample(200, random_state=0).to_csv(made / "pool.csv", index=False)
    return made


def run(folder: Path, *args: Any) -> Any:
    options = ["audit", "--data", str(folder / "private.csv"), *map(str, args)]
    return CliRunner().invoke(main, options)


def test_the_command_audits_a_fit(folder: Path) -> None:
    schema = "--schema", folder / "schema.json"
    done = run(folder, *schema, "--draws", 100, "--plot", folder / "a.png")
    assert done.exit_code == 0, done.output
    assert [line.split()[0] for line in done.stdout.splitlines()] == list(CANARIES)
    assert "keep them to yourself" in done.stderr
    assert (folder / "a.png").stat().st_size > 5000
    public = "--public", folder / "pool.csv", "--target", "label", "--classes", "0,1"
    votes = "--method", "votes", "--teachers", 10, "--canary", "duplicate", "--groups"
    done = run(folder, *public, *votes, "who", "--draws", 100, "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["audits"][0]["canary"] == "duplicate"
    for more in (("--fits", 20, "--canary", "outlier"), ("--one-run", 30, "--json")):
        done = run(folder, *schema, *more, "--epsilon", 4)
        assert done.exit_code == 0, done.output
        assert "not refuted" in done.stdout


def test_classes_may_be_those_of_the_schema() -> None:
    form = SCHEMA | {"target": {"column": "label", "classes": [0, 1, 2]}}
    model = PrivateClassifier(schema=form, epsilon=8, random_state=0)
    _, found = audit_fit(model, FRAME, y, canary="memorable", draws=40)
    assert not found.refuted


@pytest.mark.parametrize(
    "more",
    [
        ("--mechanism", "count"),
        ("--canary", "bird"),
        ("--fits", 20, "--one-run", 20),
        ("--fits", 2),
        ("--one-run", 2),
        ("--one-run", 20, "--plot", "a.png"),
        ("--draws", 7),
        ("--target", "nothing"),
        ("--estimator", "magic"),
        ("--classes", ""),
    ],
)
def test_bad_options_are_refused(folder: Path, more: tuple[Any, ...]) -> None:
    public = "--public", folder / "pool.csv", "--target", "label", "--classes", "0,1"
    done = run(folder, *public, *more)
    assert done.exit_code == 2, done.output


def test_options_of_a_fit_need_its_records() -> None:
    done = CliRunner().invoke(main, ["audit", "--one-run", "30"])
    assert done.exit_code == 2
    assert "--one-run needs --data" in done.stderr
