"""What a new user runs into with their own file."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression

import mapl
from commands import with_overlap
from mapl import Budget, BudgetExceededError, ParameterError, PrivateClassifier
from mapl.cli import main
from mapl.errors import CertificateError, PrivacyWarning
from mapl.features.model import PublicFeatures
from mapl.publish import apart, report, report_page
from mapl.publish.loading import PublishedModel


def run(*args: Any, code: int = 0) -> Any:
    args = with_overlap(args)
    found = CliRunner().invoke(main, [str(arg) for arg in args])
    assert found.exit_code == code, found.output
    assert "Traceback" not in found.output
    return found


def people(n: int, seed: int) -> Any:
    rng = np.random.default_rng(seed)
    age, town = rng.integers(18, 90, n), rng.choice(["Bath", "Ély", "York"], n)
    rich = np.where(age + 20 * (town == "York") + rng.normal(size=n) * 8 > 60, "y", "n")
    return pd.DataFrame({"age": age, "town": town, "rich": rich})


WRITERS: dict[str, tuple[str, Callable[[Any, Path], None]]] = {
    "comma": ("csv", lambda frame, path: frame.to_csv(path, index=False)),
    "semicolon": ("csv", lambda frame, path: frame.to_csv(path, index=False, sep=";")),
    "tab": ("csv", lambda frame, path: frame.to_csv(path, index=False, sep="\t")),
    "mark": (
        "csv",
        lambda frame, path: frame.to_csv(path, index=False, encoding="utf-8-sig"),
    ),
    "excel": ("xlsx", lambda frame, path: frame.to_excel(path, index=False)),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: Any) -> Path:
    place = Path(tmp_path_factory.mktemp("first"))
    people(3000, 0).to_csv(place / "private.csv", index=False)
    people(800, 1).drop(columns="rich").to_csv(place / "public.csv", index=False)
    people(500, 2).to_csv(place / "test.csv", index=False)
    return place


COMMON = ("--target", "rich", "--classes", "n,y", "--epsilon", 3)


def learn(folder: Path, out: Path, *more: Any, code: int = 0) -> Any:
    files = (folder / "private.csv", "--public", folder / "public.csv")
    return run("learn", *files, *COMMON, "--out", out, *more, code=code)


@pytest.fixture(scope="module")
def learned(folder: Path) -> Path:
    learn(folder, folder / "model")
    return folder / "model"


@pytest.mark.parametrize("form", WRITERS)
def test_common_forms_of_tables_are_read_as_they_are(form: str, tmp_path: Path) -> None:
    ending, write = WRITERS[form]
    paths = [tmp_path / f"{name}.{ending}" for name in ("private", "public", "test")]
    frames = [people(3000, 0), people(800, 1).drop(columns="rich"), people(300, 2)]
    for frame, path in zip(frames, paths, strict=True):
        write(frame, path)
    private, public, test = paths
    args = (private, "--public", public, *COMMON, "--test", test)
    shown = run("learn", *args, "--out", tmp_path / "out", "--json").stdout
    assert json.loads(shown.splitlines()[-1])["accuracy"] > 0.8
    run("predict", tmp_path / "out", test, "--out", tmp_path / "labels.csv")
    found = pd.read_csv(tmp_path / "labels.csv")
    assert set(found["town"]) == {"Bath", "Ély", "York"}
    assert (found["prediction"] == found["rich"]).mean() > 0.8


def test_other_encodings_are_named_or_found(folder: Path, tmp_path: Path) -> None:
    private, public = tmp_path / "private.csv", tmp_path / "public.csv"
    people(3000, 0).to_csv(private, index=False, encoding="latin-1")
    people(800, 1).to_csv(public, index=False, encoding="latin-1")
    args = (private, "--public", public, *COMMON, "--out", tmp_path / "out")
    assert "--encoding latin-1?" in run("learn", *args, code=2).stderr
    run("learn", *args, "--encoding", "latin-1")
    labels = pd.read_parquet(tmp_path / "out" / "labels.parquet")
    assert set(labels["town"]) == {"Bath", "Ély", "York"}
    out = ("--out", tmp_path / "x.csv")
    run("predict", tmp_path / "out", public, *out)  # not private, so it is tried
    other = (tmp_path / "out", public, *out)
    message = run("predict", *other, "--encoding", "utf-8", code=2).stderr
    assert "cannot be read" in message
    for wrong in ("utf-16", "klingon"):
        message = run("predict", *other, "--encoding", wrong, code=2).stderr
        assert "--encoding must be one that contains ASCII" in message
    assert (
        "--sep must be one character"
        in run("predict", *other, "--sep", "::", code=2).stderr
    )
    (tmp_path / "wide.csv").write_text("a,b\n1,2\n", encoding="utf-16")
    message = run(
        "predict", tmp_path / "out", tmp_path / "wide.csv", *out, code=2
    ).stderr
    assert "Save it as UTF-8" in message
    people(9, 0).to_csv(tmp_path / "tabs.csv", index=False, sep="\t")
    run("predict", tmp_path / "out", tmp_path / "tabs.csv", *out, "--sep", "tab")


def test_excel_without_its_reader_says_what_to_install(
    learned: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    people(9, 0).to_excel(tmp_path / "new.xlsx", index=False)
    monkeypatch.setitem(__import__("sys").modules, "openpyxl", None)
    out = ("--out", tmp_path / "x.csv")
    message = run("predict", learned, tmp_path / "new.xlsx", *out, code=2).stderr
    assert "pip install 'mapl[excel]'" in message


def test_a_separator_at_the_end_of_lines_is_named(folder: Path, tmp_path: Path) -> None:
    lines = (folder / "public.csv").read_text().splitlines()
    head, *rest = lines
    (tmp_path / "public.csv").write_text("\n".join([head, *(f"{r}," for r in rest)]))
    args = (folder / "private.csv", "--public", tmp_path / "public.csv", *COMMON)
    message = run("learn", *args, "--out", tmp_path / "out", code=2).stderr
    assert "2 names and 3 cells" in message


@pytest.mark.parametrize("content", ["", "age,town,rich\n", "age,town,rich\n1,Bath,\n"])
@pytest.mark.parametrize("more", [(), ("--memory", "100MB")], ids=["", "in parts"])
def test_files_without_records_are_refused_or_a_fit_where_others_see_it(
    folder: Path, tmp_path: Path, content: str, more: tuple[str, ...]
) -> None:
    (tmp_path / "private.csv").write_text(content)
    args = (tmp_path / "private.csv", "--public", folder / "public.csv", *COMMON)
    message = run("learn", *args, *more, "--out", tmp_path / "out", code=2).stderr
    assert not content or "nothing to learn from" in message
    drop = ("--on-invalid", "drop", "--out", tmp_path / "out")
    run("learn", *args, *more, *drop, code=0 if content else 2)


def test_probabilities_have_a_column_each(learned: Path, folder: Path) -> None:
    out = folder / "proba.csv"
    run("predict", learned, folder / "test.csv", "--proba", "--out", out)
    found = pd.read_csv(out)
    shares = found[["probability_n", "probability_y"]]
    np.testing.assert_allclose(shares.sum(axis=1), 1, atol=1e-9)
    likely = np.where(shares["probability_y"] > 0.5, "y", "n")
    assert (likely == found["prediction"]).all()


def test_a_model_without_probabilities_has_none(learned: Path, folder: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "mapl.publish.apart.ModelApart.predict",
            lambda *_: {"labels": ["y"] * 500},
        )
        out = ("--proba", "--out", folder / "x.csv")
        message = run("predict", learned, folder / "test.csv", *out, code=2).stderr
    assert "has no probabilities" in message


def test_a_score_has_figures_for_each_class(folder: Path, tmp_path: Path) -> None:
    test = ("--test", folder / "test.csv", "--test-is-public", "--baseline", "--json")
    shown = learn(folder, tmp_path / "out", *test).stdout
    found = json.loads(shown.splitlines()[-1])
    assert {"accuracy", "auc", "log_loss", "per_class"} <= set(found)
    assert sum(own["records"] for own in found["per_class"].values()) == 500
    assert 0.5 < found["per_class"]["y"]["recall"] <= 1
    as_others = found["per_class"]["y"]["predicted_as"]
    assert sum(as_others.values()) == found["per_class"]["y"]["records"]
    assert found["without_privacy_PRIVATE_accuracy"] > 0.8
    page = (tmp_path / "out" / "report.html").read_text()
    assert "recall" in page
    assert "scikit-learn" in page
    assert "<polyline" in page
    assert "without" not in (tmp_path / "out" / "certificate.json").read_text()
    message = learn(folder, tmp_path / "other", "--baseline", code=2).stderr
    assert "--baseline needs --test" in message
    shown = learn(folder, tmp_path / "third", *test[:2], "--baseline").stdout
    assert "by boosting (private: do not pass it on)" in shown
    assert "predicted as n " in shown


def test_a_dry_run_releases_nothing(folder: Path, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/budget.db"
    run("ledger", "create", url, "--dataset", "d", "--epsilon", 5, "--delta", 1e-4)
    ledger = ("--ledger", url, "--dataset", "d")
    shown = learn(folder, tmp_path / "out", "--dry-run", "--json", *ledger).stdout
    found = json.loads(shown.splitlines()[-1])
    assert found["would_cost_epsilon"] == 3
    assert found["epsilon_left"] == pytest.approx(5)
    assert found["epsilon_left_after"] == pytest.approx(2)
    assert found["method"] == "moments"
    assert not (tmp_path / "out").exists()
    forest = ("--estimator", "tree", "--teachers", 9)
    shown = learn(folder, tmp_path / "out", "--dry-run", *forest).stdout
    assert "teachers       9" in shown
    files = (folder / "private.csv", "--public", folder / "public.csv")
    undeclared = ("--target", "rich", "--classes-from-data", "--epsilon", 1)
    args = (*files, *undeclared, "--out", tmp_path / "out", "--dry-run")
    assert "reads no private record" in run("learn", *args, code=2).stderr


def test_epsilons_can_be_tried_on_public_records(folder: Path, tmp_path: Path) -> None:
    data = ("--data", folder / "test.csv", "--target", "rich")
    size = ("plan", "--records", 20_000, "--epsilon", 0.5)
    plot = tmp_path / "plot.png"
    shown = run(*size, *data, "--plot", plot).stdout
    assert "Always the most frequent class" in shown
    assert plot.stat().st_size > 5000
    found = json.loads(run(*size, *data, "--json").stdout.splitlines()[-1])["expected"]
    assert 0.5 in [row["epsilon"] for row in found]
    assert found[-1]["accuracy"] > 0.75
    message = run(*size, "--data", folder / "test.csv", code=2).stderr
    assert "--data needs --target" in message
    with pytest.raises(ParameterError, match="at least 100"):
        mapl.sweep(np.ones((9, 1)), np.ones(9))


# In Python --------------------------------------------------------------------------


def test_a_folder_is_a_model_in_python(learned: Path, folder: Path) -> None:
    model = mapl.load(learned)
    test = pd.read_csv(folder / "test.csv")
    assert (model.predict(test) == test["rich"]).mean() > 0.8
    assert model.predict_proba(test).shape == (500, 2)
    assert model.classes_.tolist() == ["n", "y"]
    assert model.certificate_["epsilon"] <= 3
    assert model.feature_names_in_ == ["age", "town"]
    assert repr(model).startswith("PublishedModel(epsilon=")
    with pytest.raises(CertificateError, match=r"holds no certificate\.json"):
        mapl.load(folder)
    score = model.score(test, test["rich"])
    assert score == (model.predict(test) == test["rich"]).mean()
    with pytest.raises(ParameterError, match="none of the model's labels: n, y"):
        model.score(test, np.zeros(500))
    bare = PublishedModel(Bare(), model.certificate_)
    with pytest.raises(AttributeError, match="no probabilities"):
        bare.predict_proba(test)


def test_labels_of_a_score_may_be_numbers_of_any_kind() -> None:
    """Files make texts of labels, and a missing one makes floats of integers."""
    model = PublishedModel(Digits(), {})
    for labels in ([0, 1], [0.0, 1.0], ["0", "1"], [False, True]):
        assert model.score(np.zeros((2, 1)), np.array(labels)) == 0.5


class Bare:
    """A model that gives labels alone."""

    classes_ = np.array(["n", "y"])

    def __getitem__(self, _: int) -> Any:
        return PublicFeatures({})

    def predict(self, X: Any) -> Any:
        return np.full(len(X), "y")


class Digits(Bare):
    """A model that always answers "1"."""

    classes_ = np.array(["0", "1"])

    def predict(self, X: Any) -> Any:
        return np.full(len(X), "1")


def test_a_file_may_hold_a_model_without_probabilities(
    learned: Path,
) -> None:
    assert apart._predicted(learned, Bare(), [1, 2]) == {"labels": ["y", "y"]}


def test_a_report_without_a_price_has_no_curve() -> None:
    assert report._curve([]) == []
    assert report_page._curve([]) == ""


@pytest.mark.parametrize("name", ["report.html", "labels.parquet", "model.skops"])
def test_an_edited_file_is_noticed(learned: Path, tmp_path: Path, name: str) -> None:
    for path in learned.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    run("certificate", "verify", tmp_path)
    with (tmp_path / name).open("ab") as file:
        file.write(b" ")
    assert "digest differs" in run("certificate", "verify", tmp_path, code=2).stderr
    with pytest.raises(CertificateError, match="digest differs"):
        mapl.load(tmp_path)
    path = tmp_path / "certificate.json"  # the file itself, beside the others
    assert "digest differs" in run("certificate", "verify", path, code=2).stderr


def test_certificates_are_signed_and_checked(folder: Path, tmp_path: Path) -> None:
    run("certificate", "key", tmp_path / "key")
    out = tmp_path / "out"
    learn(folder, out, "--sign", tmp_path / "key")
    public = ("--public-key", tmp_path / "key.pub")
    shown = run("certificate", "verify", out, *public).stdout
    assert "signed by the key that you gave" in shown
    assert mapl.load(out, public_key=tmp_path / "key.pub").classes_.size == 2
    run("certificate", "key", tmp_path / "other")
    other = ("--public-key", tmp_path / "other.pub")
    assert (
        "is signed by the key"
        in run("certificate", "verify", out, *other, code=2).stderr
    )
    wrong = ("--sign", tmp_path / "key.pub")
    message = learn(folder, tmp_path / "new", *wrong, code=2).stderr
    assert "Ed25519 private key" in message


def fitted(**kwargs: Any) -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(2500, 3))
    y = (X[:, 0] + 0.3 * rng.normal(size=2500) > 0).astype(int)
    model = PrivateClassifier(epsilon=2, classes=[0, 1], random_state=0, **kwargs)
    return model.fit(X[:2000], y[:2000], X_public=X[2000:], allow_overlap=True), X


def test_a_fitted_model_is_saved_and_loaded(tmp_path: Path) -> None:
    model, X = fitted()
    signed = model.save(tmp_path / "out", X_public=X[2000:])
    assert mapl.certificate.verify(signed, folder=tmp_path / "out") <= 2
    back = mapl.load(tmp_path / "out")
    np.testing.assert_array_equal(back.predict(X), model.predict(X))
    labels = pd.read_parquet(tmp_path / "out" / "labels.parquet")
    assert labels.columns.tolist() == ["x0", "x1", "x2", "label"]
    with pytest.raises(ParameterError, match="earlier run"):
        model.save(tmp_path / "out")
    model.save(tmp_path / "out", overwrite=True)
    labels = pd.read_parquet(tmp_path / "out" / "labels.parquet")
    assert labels.columns.tolist() == ["label"]
    with pytest.raises(ParameterError, match="must have the 500 points"):
        model.save(tmp_path / "new", X_public=X)
    assert not (tmp_path / "new").exists()
    (tmp_path / "file").write_text("")
    with pytest.raises(ParameterError, match="is a file"):
        model.save(tmp_path / "file")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "out"]


def test_columns_that_name_people_are_not_saved(tmp_path: Path) -> None:
    X = pd.DataFrame({"a": np.random.default_rng(0).normal(size=900).round(1)})
    X["name"] = [f"person {i}" for i in range(900)]
    model = PrivateClassifier(epsilon=4, classes=[False, True])
    model.fit(X[:600], X["a"][:600] > 0, X_public=X[600:])
    with pytest.warns(UserWarning, match="nearly every value differs: name"):
        model.save(tmp_path / "out", X_public=X[600:])
    assert "name" not in pd.read_parquet(tmp_path / "out" / "labels.parquet")


def test_sparse_points_are_saved_too(tmp_path: Path) -> None:
    import scipy.sparse as sp

    model, X = fitted()
    model.save(tmp_path / "out", X_public=sp.csr_array(X[2000:]))
    assert len(pd.read_parquet(tmp_path / "out" / "labels.parquet")) == 500


class Unwritable(LogisticRegression):
    def __getstate__(self) -> Any:
        raise RuntimeError


@pytest.mark.parametrize(
    "student", [RandomForestClassifier(3), Unwritable()], ids=["forest", "unwritable"]
)
def test_models_that_cannot_be_stored_safely_are_refused(
    student: Any, tmp_path: Path
) -> None:
    model, _ = fitted()
    model.student_ = student
    with pytest.raises(ParameterError, match="cannot be stored so that strangers"):
        model.save(tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_what_a_fit_cost_is_shown() -> None:
    from matplotlib.figure import Figure

    model, _ = fitted()
    assert model.epsilon_spent() <= 2
    assert model.epsilon_spent(1e-9) > model.epsilon_spent(1e-3)
    axes = Figure().subplots(1, 2)
    assert model.plot_privacy_curve(axes[0]).get_xscale() == "log"
    assert model.plot_spending(axes[1]).get_ylim()[1] == 105
    import matplotlib as mpl
    import matplotlib.pyplot as plt

    mpl.use("Agg")
    assert model.plot_spending() is not None
    plt.close("all")


def test_plots_without_matplotlib_say_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, _ = fitted()
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.pyplot", None)
    with pytest.raises(ParameterError, match=r"mapl\[plot\]"):
        model.plot_spending()


def test_fits_inside_a_budget_are_charged_to_it() -> None:
    with Budget(epsilon=3, delta=1e-4) as budget:
        model, _ = fitted()
        assert 1 < budget.remaining() < 1.6
        assert "of a budget of epsilon 3" in model.certificate_["ledger"]
        fitted()
        with pytest.raises(BudgetExceededError):
            fitted()
    left = budget.remaining()
    fitted()  # its own budget again
    assert budget.remaining() == left
    assert len(model.events_) == 1


# Public numbers that predict failure ------------------------------------------------


@pytest.mark.filterwarnings("error::mapl.PrivacyWarning")
@pytest.mark.parametrize("params", [{"epsilon": 50.0}, {"delta": 0.1}], ids=str)
def test_parameters_that_protect_nobody_are_warned_of(params: Any) -> None:
    X = np.random.default_rng(0).normal(size=(300, 2))
    model = PrivateClassifier(classes=[0, 1], **params)
    with pytest.raises(PrivacyWarning, match=r"protects hardly|is large"):
        model.fit(X, (X[:, 0] > 0).astype(int), X_public=X, allow_overlap=True)


def test_more_teachers_than_records_are_warned_of() -> None:
    X = np.random.default_rng(0).normal(size=(60, 2))
    model = PrivateClassifier(
        LogisticRegression(),
        method="votes",
        n_teachers=90,
        n_records=60,
        classes=[0, 1],
    )
    with pytest.warns(UserWarning, match="more teachers"):
        model.fit(X, (X[:, 0] > 0).astype(int), X_public=X, allow_overlap=True)


def test_a_sparse_vector_that_would_withhold_everything_is_refused() -> None:
    X = np.random.default_rng(0).normal(size=(500, 2))
    model = PrivateClassifier(
        LogisticRegression(), mechanism="sparse-vector", n_teachers=50, classes=[0, 1]
    )
    with pytest.raises(ParameterError, match="would withhold every answer"):
        model.fit(X, (X[:, 0] > 0).astype(int), X_public=X, allow_overlap=True)


def test_what_a_fit_would_run_is_foreseen_from_public_values() -> None:
    X = np.random.default_rng(0).normal(size=(500, 2))
    model = PrivateClassifier(classes=[0, 1])
    setting = model.foresee(X_public=X)
    assert setting.name == "moments"
    assert not hasattr(model, "student_")
    with pytest.raises(ParameterError, match="must be declared"):
        PrivateClassifier().foresee(X_public=X)
    schema = {
        "columns": {"a": {"kind": "number", "range": [0, 1]}},
        "target": {"column": "y", "classes": ["n", "y"]},
    }
    assert PrivateClassifier(schema=schema).foresee().name == "moments"


# As scikit-learn users expect -------------------------------------------------------


def test_weights_of_records_are_refused_with_the_reason() -> None:
    X = np.random.default_rng(0).normal(size=(300, 2))
    y = (X[:, 0] > 0).astype(int)
    model = PrivateClassifier(classes=[0, 1])
    with pytest.raises(ParameterError, match="as much more noise"):
        model.fit(X, y, X_public=X, allow_overlap=True, sample_weight=np.ones(300))
    with pytest.raises(TypeError, match="unexpected keyword argument 'colour'"):
        model.fit(X, y, X_public=X, allow_overlap=True, colour="red")


@pytest.mark.parametrize(
    "make", [np.random.RandomState, np.random.default_rng], ids=["state", "generator"]
)
def test_generators_seed_a_fit(make: Any) -> None:
    X = np.random.default_rng(0).normal(size=(300, 2))
    y, rng = (X[:, 0] > 0).astype(int), make(3)
    model = PrivateClassifier(classes=[0, 1], random_state=rng)
    seeds = [model.fit(X, y, X_public=X, allow_overlap=True)._seed for _ in range(2)]
    assert seeds[0] != seeds[1]
    assert (
        model.set_params(random_state=make(3))
        .fit(X, y, X_public=X, allow_overlap=True)
        ._seed
        == seeds[0]
    )


def test_public_columns_may_be_in_any_order() -> None:
    rng = np.random.default_rng(0)
    X = pd.DataFrame(rng.normal(size=(3000, 3)) * [1, 50, 1], columns=list("abc"))
    y = (X["a"] > 0).astype(int)
    model = PrivateClassifier(classes=[0, 1], epsilon=3)
    model.fit(
        X[:2000], y[:2000], X_public=X[2000:][["c", "b", "a"]], allow_overlap=True
    )
    assert model.score(X, y) > 0.9
    with pytest.raises(ParameterError, match="does not go with X"):
        model.fit(X, y, X_public=X.rename(columns={"a": "z"}), allow_overlap=True)


def test_what_refits_a_model_is_warned_of() -> None:
    from sklearn.calibration import CalibratedClassifierCV

    X = np.random.default_rng(0).normal(size=(400, 2))
    model = PrivateClassifier(privacy="labels", classes=[0, 1])
    around = CalibratedClassifierCV(model, cv=2)
    with pytest.warns(PrivacyWarning, match="pays for each of its fits"):
        around.fit(X, (X[:, 0] > 0).astype(int))


def test_a_line_after_each_fit_says_what_it_cost(capsys: Any) -> None:
    fitted(verbose=1)
    said = capsys.readouterr().err
    assert said.startswith("mapl: epsilon 1.99")
    assert "all fits of this process together" in said
    fitted()
    assert not capsys.readouterr().err


def test_a_notebook_shows_the_guarantee() -> None:
    model, _ = fitted()
    page = model._repr_mimebundle_()["text/html"]
    assert page.startswith("<p><b>Whatever is computed")
    assert "<p><b>" not in PrivateClassifier()._repr_mimebundle_()["text/html"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--seed", -1), "--seed must be an integer >= 0, got -1."),
        (("--teachers", 0), "--teachers must be an integer >= 1, got 0."),
        (("--epsilon", 0), "--epsilon must be a finite number > 0"),
        (("--mechanism", "magic"), "--mechanism must be one of"),
        (("--mechanism", "sparse-vector", "--teachers", 20), "Use --mechanism auto"),
    ],
    ids=str,
)
def test_errors_speak_of_options(
    folder: Path, tmp_path: Path, options: Any, message: str
) -> None:
    assert message in learn(folder, tmp_path / "out", *options, code=2).stderr


def test_figures_are_rounded_for_people(folder: Path, tmp_path: Path) -> None:
    shown = learn(folder, tmp_path / "out", "--test", folder / "test.csv").stdout
    assert " %" in shown
    assert "recall" in shown
    assert "given a label" in shown
    url = f"sqlite:///{tmp_path}/budget.db"
    run("ledger", "create", url, "--dataset", "d", "--epsilon", 5, "--delta", 1e-4)
    ledger = ("--ledger", url, "--dataset", "d", "--seed", 1)
    learn(folder, tmp_path / "one", *ledger)
    again = learn(folder, tmp_path / "two", *ledger).stdout
    assert "yes, so this run was free" in again
    run("ledger", "create", url, "--dataset", "t", "--epsilon", 5, "--delta", 1e-4)
    tree = ("--estimator", "tree", "--teachers", 5, "--ledger", url, "--dataset", "t")
    learn(folder, tmp_path / "three", *tree)
    assert "5 teachers (" in run("ledger", "history", url).stdout


# What a second newcomer met ---------------------------------------------------------


def test_free_text_beside_an_estimator_is_learned_from(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    words = {"sport": ["goal", "team", "match"], "tech": ["code", "chip", "data"]}
    labels = rng.choice(sorted(words), 2600)
    texts = [
        " ".join(rng.choice([*words[label], "the", "a", "of", "it"], 8)) + f" {i}"
        for i, label in enumerate(labels)
    ]
    table = pd.DataFrame({"text": texts, "topic": labels})
    table[:1500].to_csv(tmp_path / "private.csv", index=False)
    table[1500:2100][["text"]].to_csv(tmp_path / "public.csv", index=False)
    table[2100:].to_csv(tmp_path / "test.csv", index=False)
    files = (tmp_path / "private.csv", "--public", tmp_path / "public.csv")
    kinds = ("--target", "topic", "--classes", "sport,tech", "--epsilon", 2)
    more = ("--estimator", "logistic", "--teachers", 9, "--test", tmp_path / "test.csv")
    done = run("learn", *files, *kinds, *more, "--json", "--out", tmp_path / "out")
    assert json.loads(done.stdout)["accuracy"] > 0.8
    assert "Texts: text" in done.stderr
    assert "differs" not in done.stderr
    votes = ("--method", "votes", "--out", tmp_path / "votes")
    message = run("learn", *files, *kinds, *votes, code=2).stderr
    assert "does not read free text" in message


def test_the_private_file_is_no_public_test(folder: Path, tmp_path: Path) -> None:
    test = ("--test", folder / "private.csv", "--test-is-public")
    message = learn(folder, tmp_path / "out", *test, code=2).stderr
    assert "--test is the private file itself" in message


def test_public_columns_of_no_use_are_named(folder: Path, tmp_path: Path) -> None:
    public = pd.read_csv(folder / "public.csv").assign(town=None)
    public.to_csv(tmp_path / "public.csv", index=False)
    args = (folder / "private.csv", "--public", tmp_path / "public.csv", *COMMON)
    message = run("learn", *args, "--out", tmp_path / "out").stderr
    assert "Empty in --public, so that nothing is learned from: town" in message
    assert "Columns that --public lacks, if any, are left out" in message


def test_a_dry_run_beyond_the_budget_says_so(folder: Path, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/budget.db"
    run("ledger", "create", url, "--dataset", "d", "--epsilon", 0.5, "--delta", 1e-4)
    budget = ("--ledger", url, "--dataset", "d", "--dry-run")
    message = learn(folder, tmp_path / "out", *budget, code=3).stderr
    assert "It would be refused" in message


def test_predictions_replace_nothing(
    folder: Path, learned: Path, tmp_path: Path
) -> None:
    copied = tmp_path / "test.csv"
    pd.read_csv(folder / "test.csv").assign(prediction="x").to_csv(copied, index=False)
    message = run("predict", learned, copied, "--out", copied, code=2).stderr
    assert "--out must be another file" in message
    out = tmp_path / "new.csv"
    message = run("predict", learned, copied, "--out", out, code=2).stderr
    assert "have a column 'prediction'" in message
    assert sorted(path.name for path in tmp_path.iterdir()) == ["test.csv"]


def test_predictions_are_made_in_blocks(
    folder: Path, learned: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("predict", learned, folder / "test.csv", "--out", tmp_path / "whole.csv")
    whole = pd.read_csv(tmp_path / "whole.csv")
    pd.read_csv(folder / "test.csv").to_parquet(tmp_path / "test.parquet")
    pd.read_csv(folder / "test.csv").to_excel(tmp_path / "test.xlsx", index=False)
    latin = pd.read_csv(folder / "test.csv").assign(note="é")
    latin.to_csv(tmp_path / "latin.csv", index=False, encoding="latin-1")
    monkeypatch.setattr("mapl.records.streams.ROWS", 64)
    monkeypatch.setattr(
        "mapl.records.streams.table_blocks.__defaults__", (64,), raising=False
    )
    endings = {"test.parquet": "csv", "test.xlsx": "csv", "latin.csv": "parquet"}
    for name, ending in endings.items():
        out = tmp_path / f"{name}.out.{ending}"
        run("predict", learned, tmp_path / name, "--out", out)
        read = pd.read_csv if ending == "csv" else pd.read_parquet
        assert read(out)["prediction"].tolist() == whole["prediction"].tolist()


def test_a_column_of_several_types_is_one_sentence(tmp_path: Path) -> None:
    from mapl.records.streams import TableWriter

    frames = [pd.DataFrame({"a": values}) for values in ([1], ["x"])]

    def write() -> None:
        with TableWriter(tmp_path / "x.parquet") as written:
            for frame in frames:
                written.write(frame)

    with pytest.raises(ParameterError, match="several types"):
        write()
    assert list(tmp_path.iterdir()) == []


def test_public_points_that_are_none_are_refused() -> None:
    X = pd.DataFrame({"a": [1.0, 2.0]})
    twice = pd.concat([X, X], axis=1)
    model = PrivateClassifier(classes=[0, 1])
    with pytest.raises(ParameterError, match="at least one record"):
        model.fit(X, [0, 1], X_public=X[:0], allow_overlap=True)
    with pytest.raises(ParameterError, match="two columns of one name"):
        model.fit(X, [0, 1], X_public=twice, allow_overlap=True)
    with pytest.raises(ParameterError, match="that are private records, too"):
        model.fit(X, [0, 1], X_public=X)


@pytest.mark.parametrize("name", ["y", "groups"])
def test_an_index_in_another_order_is_refused(name: str) -> None:
    rng = np.random.default_rng(0)
    X = pd.DataFrame({"a": rng.normal(size=50)})
    given = {"y": pd.Series(rng.integers(0, 2, 50)), "groups": pd.Series(range(50))}
    given[name] = given[name].sample(frac=1, random_state=1)
    model = PrivateClassifier(classes=[0, 1])
    with pytest.raises(ParameterError, match=f"{name} has the index of X in another"):
        model.fit(
            X, given["y"], groups=given["groups"], X_public=X[:20], allow_overlap=True
        )
    given[name].index = range(100, 150)  # other labels are nobody's business
    model.fit(
        X, given["y"], groups=given["groups"], X_public=X[:20], allow_overlap=True
    )


def test_a_loaded_model_has_a_score(learned: Path, folder: Path) -> None:
    test = pd.read_csv(folder / "test.csv")
    model = mapl.load(learned)
    assert 0.6 < model.score(test, test["rich"]) <= 1


def test_a_draft_needs_labels(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("a;y\n1;\n2;\n")
    out = ("--target", "y", "--out", tmp_path / "s.json", "--sep", ";")
    message = run("schema", "draft", tmp_path / "x.csv", *out, code=2).stderr
    assert "has no label in column 'y'" in message


def test_an_encoding_that_is_wrong_is_named(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "test.csv").write_bytes("age,town,rich\n1,Bäth,y\n".encode("latin-1"))
    test = ("--test", tmp_path / "test.csv", "--encoding", "utf-8")
    message = learn(folder, tmp_path / "out", *test, code=2).stderr
    assert "Say its --encoding" in message
