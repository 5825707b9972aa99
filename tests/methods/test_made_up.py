"""No public records: from a data dictionary to a published model."""

import signal
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.compose import make_column_transformer
from sklearn.metrics import roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder
from sklearn.tree import DecisionTreeClassifier

from kills import run_and_kill
from mapl import Ledger, PrivateClassifier, accounting, certificate
from mapl.errors import ParameterError
from mapl.methods.moments import sketch_records
from mapl.methods.pool import Outline
from mapl.publish.bundle import load_model, write_bundle
from mapl.publish.sketch_report import write_sketch
from mapl.records.dictionary import Dictionary
from mapl.records.table import canonical_table

# By chance, with few records.
pytestmark = pytest.mark.filterwarnings("ignore:No made-up record gets class")
SCHEMA: dict[str, Any] = {
    "columns": {
        "age": {"kind": "integer", "range": [0, 1000]},
        "dose": {"kind": "number", "range": [-1e4, 1e4]},
        "town": {"kind": "category", "categories": ["Bath", "Ely", "York"]},
        "seen": {"kind": "time", "range": ["2015-01-01", "2030-01-01"]},
        "note": {"kind": "text"},
    },
    "target": {"column": "ill", "classes": ["no", "yes"]},
}


def people(n: int, seed: int = 0) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    age, dose = rng.integers(18, 90, n).astype(float), rng.normal(size=n)
    town = rng.choice(["Bath", "Ely", "York"], n)
    seen = pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(0, 900, n), "D")
    score = (age - 50) / 12 + 1.5 * (town == "Bath") - 2 * np.abs(dose)
    y = np.where(score + rng.logistic(size=n) > -1, "yes", "no")
    age[rng.random(n) < 0.05] = np.nan
    X = pd.DataFrame({"age": age, "dose": dose, "town": town, "seen": seen})
    return X.assign(note="free text", extra=1), y


X, Y = people(6000)
X_TEST, Y_TEST = people(2000, 1)


def model(**kwargs: Any) -> PrivateClassifier:
    return PrivateClassifier(**{"schema": SCHEMA, "epsilon": 1.0} | kwargs)


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("MAPL_STATE", str(tmp_path / "state"))
    return f"sqlite:///{tmp_path}/ledger.db"


def learner(url: str, **kwargs: Any) -> PrivateClassifier:
    return model(ledger=url, dataset="people", random_state=0, **kwargs)


def test_a_dictionary_is_enough() -> None:
    fitted = model().fit(X, Y)
    assert fitted.method_ == "moments"
    assert fitted.classes_.tolist() == ["no", "yes"]
    area = roc_auc_score(Y_TEST == "yes", fitted.predict_proba(X_TEST)[:, 1])
    assert area > 0.84  # 0.9 without privacy
    assert 0.95 < accounting.epsilon(fitted.events_, delta=1e-5) <= 1
    assert fitted.spending_[-1][1] == pytest.approx(1.0)
    assert certificate.verify(fitted.certificate_) <= 1
    assert fitted.certificate_["public"]["n_public"] == fitted.n_public_ == 0
    assert "schema, classes" in fitted.certificate_["public"]["assumed"]
    assert len(fitted.made_up_points_) == len(fitted.public_labels_)
    assert (fitted.soft_labels_.argmax(axis=1) == fitted.public_labels_).all()


def test_arrays_and_a_file_will_do_too(tmp_path: Path) -> None:
    import json

    path = tmp_path / "schema.json"
    columns = {f"x{i}": {"kind": "number", "range": [-9, 9]} for i in range(3)}
    path.write_text(json.dumps({"columns": columns}))
    rng = np.random.default_rng(0)
    features = rng.normal(size=(3000, 3))
    labels = (features.sum(axis=1) > 0).astype(int) + (features[:, 0] > 1)
    fitted = model(schema=path, classes=[0, 1, 2], epsilon=4).fit(features, labels)
    assert fitted.score(features, labels) > 0.7
    with pytest.raises(ParameterError, match="3 columns"):
        model(schema=path, classes=[0, 1, 2]).fit(features[:, :2], labels)


def test_a_person_may_have_several_records() -> None:
    owners = np.arange(len(X)) // 2
    fitted = model(epsilon=2).fit(X, Y, groups=owners)
    area = roc_auc_score(Y_TEST == "yes", fitted.predict_proba(X_TEST)[:, 1])
    assert area > 0.84
    assert fitted.certificate_["unit"] == "all records of one group"
    named = {**SCHEMA, "unit": {"column": "who"}}
    again = model(schema=named).fit(X.assign(who=owners), Y)
    assert again.certificate_["unit"] == "all records of one group"
    with pytest.raises(ParameterError, match="Pass groups="):
        model(schema=named).fit(X, Y)


def test_public_records_refine_or_take_over() -> None:
    few = model().fit(X, Y, X_public=X_TEST[:100], allow_overlap=True)
    assert few.n_public_ == 100
    assert hasattr(few, "made_up_points_")
    assert "schema, X_public" in few.certificate_["public"]["assumed"]
    many = model().fit(X, Y, X_public=X_TEST, allow_overlap=True)
    assert not hasattr(many, "made_up_points_")
    assert many.score(X_TEST, Y_TEST) > 0.7


def test_teachers_and_students_work_on_made_up_records() -> None:
    coded = make_column_transformer(
        (OneHotEncoder(handle_unknown="ignore"), ["town"]), ("passthrough", ["dose"])
    )
    tree = make_pipeline(coded, DecisionTreeClassifier(max_depth=3))
    both = model(estimator=tree, n_teachers=20, epsilon=4).fit(X, Y)
    assert both.method_ == "both"
    assert both.score(X_TEST, Y_TEST) > 0.7
    student = model(student=tree, epsilon=4).fit(X, Y)
    assert student.predict(X_TEST).shape == (2000,)


def test_what_is_written_is_read_back_and_checked(tmp_path: Path) -> None:
    fitted = model(class_weight="balanced").fit(X, Y)
    write_bundle(tmp_path, fitted.student_, fitted, fitted.made_up_points_)
    loaded = load_model(tmp_path / "model.skops")
    np.testing.assert_allclose(
        loaded.predict_proba(X_TEST), fitted.predict_proba(X_TEST)
    )
    features = loaded[0]
    assert features.column_names == ["age", "dose", "town", "seen", "note"]
    assert features.schema.columns["town"].categories == ("Bath", "Ely", "York")
    assert features.fit(None) is features


def test_columns_that_say_something_together_only() -> None:
    """A chessboard: no column by itself says anything."""
    rng = np.random.default_rng(0)
    names = {f"x{i}": {"kind": "number", "range": [-1000, 1000]} for i in range(4)}
    board = pd.DataFrame(rng.uniform(-1, 1, (20_000, 4)), columns=list(names))
    y = (board["x0"] * board["x1"] > 0).astype(int)
    fitted = model(schema={"columns": names}, classes=[0, 1], epsilon=4)
    fitted.fit(board[:15_000], y[:15_000])
    assert fitted.score(board[15_000:], y[15_000:]) > 0.85


def test_one_column_and_wild_outliers() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=8000)
    y = (np.abs(x) < 0.7).astype(int)
    x[::500] = 1e9
    one = {"columns": {"x": {"kind": "number", "range": [-1e10, 1e10]}}}
    fitted = model(schema=one, classes=[0, 1], epsilon=4).fit(pd.DataFrame({"x": x}), y)
    assert fitted.score(pd.DataFrame({"x": x}), y) > 0.9


def test_what_needs_public_records_says_so() -> None:
    with pytest.raises(ParameterError, match="at least 1000"):
        model(method="votes", estimator=DecisionTreeClassifier()).fit(X, Y)
    no_range = {"columns": {"dose": {"kind": "number"}}}
    with pytest.raises(ParameterError, match="no range for dose"):
        model(schema=no_range, classes=["no", "yes"]).fit(X, Y)
    text = {"columns": {"note": {"kind": "text"}}}
    with pytest.raises(ParameterError, match="free text alone"):
        model(schema=text, classes=["no", "yes"]).fit(X, Y)
    with pytest.raises(ParameterError, match="mapl schema draft"):
        PrivateClassifier(classes=["no", "yes"]).fit(X, Y)


def test_odd_values_are_clipped_or_count_as_missing() -> None:
    odd = X.astype(object).copy()
    odd.loc[:20, "age"] = "unknown"
    odd.loc[21:40, "dose"] = 1e300
    odd.loc[41:60, "town"] = "Atlantis"
    odd.loc[61:80, "seen"] = "yesterday"
    fitted = model(on_invalid="drop").fit(odd, Y)
    assert fitted.predict(odd[:100]).shape == (100,)
    assert fitted.feature_names_in_.tolist() == list(SCHEMA["columns"])
    with pytest.raises(ParameterError, match="lacks dose, town"):
        fitted.predict(odd[["age", "seen", "note"]])


def test_integer_labels_stay_integers() -> None:
    coded = {**SCHEMA, "target": {"column": "ill", "classes": [0, 1]}}
    y = (Y == "yes").astype(int)
    fitted = model(schema=coded, epsilon=4).fit(X, y)
    assert fitted.score(X, y) > 0.7


def test_too_few_records_are_noticed_by_the_published_count() -> None:
    with pytest.warns(UserWarning, match="mostly noise"):
        model().fit(X[:20], Y[:20])


def test_a_student_does_not_change_what_is_asked_for(url: str) -> None:
    Ledger(url, create=True).create("people", epsilon=1, delta=1e-4)
    first = learner(url).fit(X[:900], Y[:900])
    tree = make_pipeline(
        make_column_transformer(("passthrough", ["age"])), DecisionTreeClassifier()
    )
    second = learner(url, student=tree).fit(X[:900], Y[:900])
    assert second.paid_before_
    assert not second.made_up_points_["age"].isna().any()
    assert first.made_up_points_["age"].isna().any()


def test_a_model_with_trees_predicts_nothing_for_nobody() -> None:
    tree = make_pipeline(
        make_column_transformer(("passthrough", ["dose"])), DecisionTreeClassifier()
    )
    both = model(estimator=tree, n_teachers=5, epsilon=4).fit(X[:900], Y[:900])
    assert both.student_.predict_proba(X[:0]).shape == (0, 2)


def test_one_class_needs_nothing() -> None:
    fitted = model(classes=["yes"]).fit(X[:50], ["yes"] * 50)
    assert set(fitted.predict(X_TEST)) == {"yes"}
    assert len(fitted.made_up_points_) == len(fitted.public_labels_)


# Neighbours -------------------------------------------------------------------------


def test_nothing_public_depends_on_a_unit_but_the_sums(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without records, and with noise of zero, all neighbours publish the same."""
    from mapl.features import passes
    from mapl.features.contributions import Contributions
    from mapl.privacy import moments

    def silent(sigma: Any, shape: Any, **_: Any) -> Any:
        return np.zeros(shape, dtype=np.int64)

    def empty(block: Any, *_: Any, **__: Any) -> Any:
        return np.zeros((block.cells.shape[1], block.residuals.shape[1]), np.int64)

    def no_pairs(block: Any, *_: Any, **__: Any) -> Any:
        return np.zeros((block.left.shape[2],) * 2, np.int64)

    def no_counts(self: Any, sizes: Any) -> Any:
        self._blocks()
        return [np.full(n, 20, dtype=np.int64) for n in sizes]

    monkeypatch.setattr(moments, "discrete_gaussian", silent)
    monkeypatch.setattr(moments, "bounded_sum", empty)
    monkeypatch.setattr(passes, "bounded_pair_sum", no_pairs)
    monkeypatch.setattr(Contributions, "histograms", no_counts)
    shown = []
    for rows in (slice(300), slice(1, 300), slice(299, 0, -1)):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            fitted = model(random_state=0, on_invalid="drop").fit(X[rows], Y[rows])
        shown.append((fitted.certificate_, fitted.soft_labels_.tobytes(), repr(fitted)))
    assert shown[0] == shown[1] == shown[2]


# Ledger -----------------------------------------------------------------------------


@pytest.mark.parametrize("step", [1, 2, 3, 6])
def test_a_fit_that_was_killed_goes_on(url: str, step: int) -> None:
    Ledger(url, create=True).create("people", epsilon=1, delta=1e-4)
    for name in ("commit_question", "commit_reply"):
        code = run_and_kill(lambda: learner(url).fit(X[:400], Y[:400]), name, step)
        assert code == -signal.SIGKILL
    first = learner(url).fit(X[:400], Y[:400])
    again = learner(url).fit(X[:400], Y[:400])
    np.testing.assert_array_equal(first.soft_labels_, again.soft_labels_)
    assert first.paid_before_
    assert Ledger(url).balance("people").releases == 1


# The sketch alone -------------------------------------------------------------------


@pytest.mark.parametrize("grouped", [False, True])
def test_a_sketch_is_published_with_pictures(tmp_path: Path, grouped: bool) -> None:
    dictionary = Dictionary.read(SCHEMA)
    table = canonical_table(X, dictionary.schema)
    found = sketch_records(
        *(table, Y, dictionary),
        groups=np.arange(len(X)) // 2 if grouped else None,
        n_rows=2000,
        epsilon=2.0,
        delta=1e-5,
    )
    signed = write_sketch(tmp_path, found)
    assert certificate.verify(signed, folder=tmp_path) <= 2
    points = pd.read_parquet(tmp_path / "points.parquet")
    assert points["age"].median() == pytest.approx(X["age"].median(), abs=5)
    assert (points["town"] == "Bath").mean() == pytest.approx(1 / 3, abs=0.05)
    page = (tmp_path / "report.html").read_text()
    for word in ("age", "Bath", "202", "missing", "<svg"):
        assert word in page


def test_a_sketch_needs_declared_classes() -> None:
    without = {"columns": SCHEMA["columns"], "target": {"column": "ill"}}
    dictionary = Dictionary.read(without)
    table = canonical_table(X, dictionary.schema)
    budget: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-5}
    with pytest.raises(ParameterError, match="must list the classes"):
        sketch_records(*(table, Y, dictionary), groups=None, n_rows=10, **budget)


def test_public_records_add_their_cells() -> None:
    dictionary = Dictionary.read(SCHEMA)
    outline = Outline.of(dictionary, canonical_table(X[:0], dictionary.schema))
    from mapl.features.sketch import Sketch

    sketch = Sketch([np.ones(g.n_cells) / g.n_cells for g in outline.used], 9.0, Y, 1)
    assert outline.refined(sketch) is sketch


def test_a_page_without_a_guarantee_says_so() -> None:
    from mapl.publish.sketch_report import certificate_of, page_of

    dictionary = Dictionary.read(SCHEMA)
    table = canonical_table(X[:50], dictionary.schema)
    budget: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-5}
    found = sketch_records(
        *(table, Y[:50], dictionary),
        groups=None,
        n_rows=9,
        on_invalid="drop",
        **budget,
    )
    signed = certificate_of(found)
    worthless = {**signed, "epsilon": None, "guarantee": "WORTHLESS"}
    assert "In plain words" in page_of(found, signed)
    assert "In plain words" not in page_of(found, worthless)
