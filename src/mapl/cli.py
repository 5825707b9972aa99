"""The command line: parse, call, show. Exit code 2 for bad input, 3 for budget."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import rich_click as click

from mapl import __version__
from mapl.errors import BudgetExceededError, CertificateError, MaplError, ParameterError

ESTIMATORS = {
    "logistic": "sklearn.linear_model.LogisticRegression",
    "forest": "sklearn.ensemble.RandomForestClassifier",
    "boosting": "sklearn.ensemble.HistGradientBoostingClassifier",
    "tree": "sklearn.tree.DecisionTreeClassifier",
    "bayes": "sklearn.naive_bayes.GaussianNB",
}
# Types of fitted models that hold numbers and nothing that runs.
HARMLESS = {
    "numpy.dtype",
    "sklearn._loss.link.Interval",
    "sklearn._loss.link.LogitLink",
    "sklearn._loss.link.MultinomialLogit",
    "sklearn._loss.loss.HalfBinomialLoss",
    "sklearn._loss.loss.HalfMultinomialLoss",
    "sklearn.ensemble._hist_gradient_boosting.binning._BinMapper",
    "sklearn.ensemble._hist_gradient_boosting.predictor.TreePredictor",
    "sklearn.tree._tree.Tree",
}
FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def errors_in_one_line(command: Callable[..., Any]) -> Callable[..., Any]:
    """Show what went wrong in one line, and exit with its code."""

    @wraps(command)
    def wrapped(*args: Any, **named: Any) -> Any:
        try:
            return command(*args, **named)
        except MaplError as error:
            click.echo(f"Error: {error}", err=True)
            sys.exit(3 if isinstance(error, BudgetExceededError) else 2)

    return wrapped


@click.group()
@click.version_option(__version__, prog_name="mapl")
def main() -> None:
    """Any classifier, made differentially private."""


@main.command()
@click.argument("private", type=FILE)
@click.option("--target", required=True, help="Column with the labels.")
@click.option("--public", "pool", required=True, type=FILE, help="Unlabelled records.")
@click.option("--epsilon", required=True, type=float)
@click.option("--delta", default=1e-5, show_default=True, type=float)
@click.option("--groups", help="Column that says whose record it is.")
@click.option("--classes", help="All labels there are, separated by commas.")
@click.option(
    "--estimator",
    default="logistic",
    show_default=True,
    help=f"{', '.join(ESTIMATORS)}, or an import path such as package.module.Class.",
)
@click.option("--mechanism", default="auto", show_default=True)
@click.option("--teachers", default=250, show_default=True, type=int)
@click.option("--test", type=FILE, help="Labelled records for the score.")
@click.option("--test-is-public", is_flag=True, help="The score may be in the report.")
@click.option("--jobs", type=int, help="Workers.")
@click.option("--out", required=True, type=click.Path(file_okay=False, path_type=Path))
@json_option
@errors_in_one_line
def learn(
    private: Path,
    target: str,
    pool: Path,
    epsilon: float,
    delta: float,
    groups: str | None,
    classes: str | None,
    estimator: str,
    mechanism: str,
    teachers: int,
    test: Path | None,
    test_is_public: bool,
    jobs: int | None,
    out: Path,
    as_json: bool,
) -> None:
    """Learn a private classifier from the records in PRIVATE (CSV or Parquet).

    Types and categories of all columns come from the public file. Writes model.skops,
    certificate.json, labels.parquet and report.html to the folder OUT.
    """
    from sklearn.pipeline import make_pipeline

    from mapl.estimator import PrivateClassifier

    public = _read(pool).drop(columns=[target], errors="ignore")
    table = _read(private, as_text=True)
    for name in (target, *([groups] if groups else [])):
        if name not in table.columns:
            raise ParameterError(f"Column {name!r} is not in {private}.")
    shared = [c for c in public.columns if c in table.columns and c != groups]
    if not shared:
        raise ParameterError(f"{private} and {pool} have no column in common.")
    _tell_of_other_columns(public, table, shared, (target, groups))
    public = public[shared]
    numbers = list(public.select_dtypes(["number", "bool"]).columns)
    coder = _coder(public, numbers)
    model = PrivateClassifier(
        _estimator(estimator),
        epsilon=epsilon,
        delta=delta,
        n_teachers=teachers,
        mechanism=mechanism,
        classes=classes.split(",") if classes else None,
        n_jobs=jobs,
    )
    known = table[target].notna().to_numpy()  # a record without a label teaches nothing
    table = table[known]
    model.fit(
        coder.transform(_typed(table[shared], numbers)),
        table[target].astype(str).to_numpy(),
        X_public=coder.transform(_typed(public, numbers)),
        groups=table[groups].to_numpy() if groups else None,
    )
    whole = make_pipeline(coder, model.student_)
    score = None
    if test is not None:
        score = _scored(whole, _read(test, as_text=True), numbers, target, model)
    summary = _write(out, whole, model, public, score if test_is_public else None)
    if score is not None:
        summary["accuracy"] = score["accuracy"]
    _show(summary, as_json)


@main.command()
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.argument("data", type=FILE)
@click.option("--out", required=True, type=click.Path(dir_okay=False, path_type=Path))
@json_option
@errors_in_one_line
def predict(folder: Path, data: Path, out: Path, as_json: bool) -> None:
    """Label the records in DATA with the model in FOLDER."""
    from mapl import certificate

    certificate.verify(
        certificate.read(folder / "certificate.json"), model=folder / "model.skops"
    )
    model = _load_model(folder / "model.skops")
    table = _read(data)
    missing = [name for name in model.feature_names_in_ if name not in table.columns]
    if missing:
        raise ParameterError(f"{data} lacks the column {missing[0]!r}.")
    features = table[list(model.feature_names_in_)]
    numbers = model[0].transformers_[0][2]
    table = table.assign(prediction=model.predict(_typed(features, numbers)))
    _save(table, out)
    _show({"records": len(table), "file": str(out)}, as_json)


@main.group(name="certificate")
def certificate_group() -> None:
    """Work with certificates."""


@certificate_group.command()
@click.argument("path", type=FILE)
@click.option("--model", type=FILE, help="The model; default: model.skops beside it.")
@json_option
@errors_in_one_line
def verify(path: Path, model: Path | None, as_json: bool) -> None:
    """Recompute epsilon from the events, and the digest of the model file."""
    from mapl import certificate

    beside = path.with_name("model.skops")
    if model is None and beside.exists():
        model = beside
    read = certificate.read(path)
    epsilon = certificate.verify(read, model=model)
    _show(
        {
            "holds": True,
            "epsilon": epsilon,
            "delta": read["delta"],
            "model": str(model) if model else "not checked",
            "guarantee": read["guarantee"],
        },
        as_json,
    )


@main.command()
def demo() -> None:
    """Run the main job on a real data set inside the package."""
    from mapl.demo import main as run

    run()


# Files ------------------------------------------------------------------------------


def _read(path: Path, *, as_text: bool = False) -> Any:
    """Return a frame. ``as_text``: a CSV's cells as they stand, so that no column's
    type depends on all of its records.
    """
    import pandas as pd

    try:
        if path.suffix in (".parquet", ".pq"):
            return pd.read_parquet(path)
        return pd.read_csv(path, dtype=str if as_text else None)
    except Exception as error:
        kind = type(error).__name__
        raise ParameterError(f"{path} cannot be read as a table ({kind}).") from None


def _save(table: Any, path: Path) -> None:
    if path.suffix in (".parquet", ".pq"):
        table.to_parquet(path, index=False)
    else:
        table.to_csv(path, index=False)


def _write(
    out: Path, model: Any, fitted: Any, public: Any, score: dict[str, Any] | None
) -> dict[str, Any]:
    """Write the four files; everything in them is public."""
    import numpy as np
    import skops.io

    from mapl import certificate, report
    from mapl.votes import ABSTAIN

    out.mkdir(parents=True, exist_ok=True)
    skops.io.dump(model, out / "model.skops")
    signed = certificate.with_model(fitted.certificate_, out / "model.skops")
    certificate.write(signed, out / "certificate.json")
    codes = fitted.public_labels_
    names = np.array([*fitted.classes_, None], dtype=object)  # None for ABSTAIN
    public.assign(label=names[codes]).to_parquet(out / "labels.parquet", index=False)
    counts = {str(c): int((codes == i).sum()) for i, c in enumerate(fitted.classes_)}
    counts["no answer"] = int((codes == ABSTAIN).sum())
    page = report.render(signed, counts, score=score)
    (out / "report.html").write_text(page, encoding="utf-8")
    return {
        "epsilon": signed["epsilon"],
        "delta": signed["delta"],
        "public_points": len(codes),
        "answered": int((codes != ABSTAIN).sum()),
        "guarantee": signed["guarantee"],
        "folder": str(out),
    }


def _load_model(path: Path) -> Any:
    """Load a model file; types that are not known to be harmless are refused."""
    import skops.io

    unknown = set(skops.io.get_untrusted_types(file=path))
    if unknown - HARMLESS:
        raise CertificateError(
            f"{path} holds types that are not trusted: "
            f"{', '.join(sorted(unknown - HARMLESS))}. Nothing was loaded."
        )
    return skops.io.load(path, trusted=sorted(unknown))


# Columns ----------------------------------------------------------------------------


def _coder(public: Any, numbers: list[str]) -> Any:
    """Return an encoder for mixed columns; the public file decides all of it."""
    from sklearn.compose import make_column_transformer
    from sklearn.impute import SimpleImputer
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    texts = [name for name in public.columns if name not in numbers]
    scale = make_pipeline(SimpleImputer(keep_empty_features=True), StandardScaler())
    encode = make_pipeline(
        SimpleImputer(strategy="constant", fill_value="(missing)"),
        OneHotEncoder(handle_unknown="ignore", sparse_output=False),
    )
    coder = make_column_transformer((scale, numbers), (encode, texts))
    return coder.fit(_typed(public, numbers))


def _typed(table: Any, numbers: list[str]) -> Any:
    """Give each column the type it has in the public file, cell by cell."""
    import numpy as np
    import pandas as pd

    columns = {}
    for name in table.columns:
        column = table[name]
        if name in numbers:
            columns[name] = pd.to_numeric(column, errors="coerce").astype(np.float64)
        else:
            texts = column.astype(object).map(str, na_action="ignore")
            columns[name] = texts.where(column.notna(), np.nan).astype(object)
    return pd.DataFrame(columns)


def _tell_of_other_columns(
    public: Any, table: Any, shared: list[str], known: tuple[str | None, ...]
) -> None:
    """Column names are public; what only one file has is left out."""
    names = sorted((set(public.columns) | set(table.columns)) - {*shared, *known})
    if names:
        click.echo(f"Left out, only in one of the files: {', '.join(names)}", err=True)


def _estimator(name: str) -> Any:
    """Return an estimator by its short name or import path."""
    from importlib import import_module

    module, _, attribute = ESTIMATORS.get(name, name).rpartition(".")
    try:
        made = getattr(import_module(module), attribute)()
    except (ImportError, AttributeError, ValueError, TypeError):
        raise ParameterError(
            f"estimator must be one of {', '.join(ESTIMATORS)} or the import path of a "
            f"class that needs no arguments, got {name!r}."
        ) from None
    return made.set_params(C=10, max_iter=200) if name == "logistic" else made


def _scored(
    model: Any, table: Any, numbers: list[str], target: str, fitted: Any
) -> dict[str, Any]:
    from sklearn.metrics import confusion_matrix

    features = list(model.feature_names_in_)
    lacking = [c for c in (*features, target) if c not in table.columns]
    if lacking:
        raise ParameterError(f"The test file lacks the column {lacking[0]!r}.")
    truth = table[target].astype(str).to_numpy()
    given = model.predict(_typed(table[features], numbers))
    names = fitted.classes_
    return {
        "accuracy": float((truth == given).mean()),
        "classes": [str(name) for name in names],
        "confusion": confusion_matrix(truth, given, labels=names).tolist(),
    }


def _show(result: dict[str, Any], as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(result))
        return
    for name, value in result.items():
        click.echo(f"{name.replace('_', ' '):14} {value}")
