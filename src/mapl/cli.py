"""The command line: parse, call, show.

Exit code 2 for bad input, 3 for a budget that is spent, 4 for a damaged ledger.
"""

from __future__ import annotations

import json
import math
import sys
import warnings
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rich_click as click

from mapl import __version__
from mapl.errors import (
    BudgetExceededError,
    CertificateError,
    LedgerCorruptedError,
    MaplError,
    ParameterError,
    positive,
    probability,
)

if TYPE_CHECKING:
    from mapl.planner import Plan

ESTIMATORS = {
    "logistic": "sklearn.linear_model.LogisticRegression",
    "forest": "sklearn.ensemble.RandomForestClassifier",
    "boosting": "sklearn.ensemble.HistGradientBoostingClassifier",
    "tree": "sklearn.tree.DecisionTreeClassifier",
    "bayes": "sklearn.naive_bayes.GaussianNB",
}
# What stands for nothing in a column of texts, unless it is the name of a class.
NOTHING = {"", "NA", "N/A", "<NA>", "NaN", "nan", "null", "NULL", "None"}
# Types of fitted models that hold numbers and nothing that runs.
HARMLESS = {
    "mapl.student.Decoded",
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
delta_option = click.option(
    "--delta",
    default=1e-5,
    show_default=True,
    type=float,
    help="The slack of the promise: a tenth of 1 over the number of people, or less.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def errors_in_one_line(command: Callable[..., Any]) -> Callable[..., Any]:
    """Show what went wrong in one line, and exit with its code."""

    @wraps(command)
    def wrapped(*args: Any, **named: Any) -> Any:
        try:
            with warnings.catch_warnings():
                warnings.showwarning = lambda message, *_, **__: click.echo(
                    f"Warning: {' '.join(str(message).split())}", err=True
                )
                return command(*args, **named)
        except MaplError as error:
            click.echo(f"Error: {error}", err=True)
            codes = {BudgetExceededError: 3, LedgerCorruptedError: 4}
            sys.exit(codes.get(type(error), 2))
        except BrokenPipeError:  # whoever read on has read enough
            raise
        except OSError as error:
            said = f"{error.filename}: {error.strerror}" if error.filename else error
            click.echo(f"Error: {said}.", err=True)
            sys.exit(2)

    return wrapped


@click.group()
@click.version_option(__version__, prog_name="mapl")
def main() -> None:
    """Any classifier, made differentially private."""


@main.command()
@click.argument("private", type=FILE)
@click.option("--target", required=True, help="Column with the labels.")
@click.option("--public", "pool", required=True, type=FILE, help="Unlabelled records.")
@click.option(
    "--epsilon",
    required=True,
    type=float,
    help="What it may cost: 1 is strong, 8 is weak, below 0.3 little is learned.",
)
@delta_option
@click.option("--groups", help="Column that says whose record it is.")
@click.option(
    "--classes",
    help="All labels there are, separated by commas. Without it, which labels occur "
    "is not protected.",
)
@click.option("--drop", help="Columns to leave out, separated by commas.")
@click.option(
    "--categories",
    help="Columns whose numbers are names, such as zip codes, separated by commas.",
)
@click.option(
    "--estimator",
    default="logistic",
    show_default=True,
    help=f"{', '.join(ESTIMATORS)}, or an import path such as package.module.Class.",
)
@click.option(
    "--mechanism",
    default="auto",
    show_default=True,
    help="auto, dissent, noisy-max or sparse-vector.",
)
@click.option(
    "--teachers",
    default="auto",
    show_default=True,
    help="Chunks to split the records into: a number, or auto (by epsilon).",
)
@click.option("--records", type=int, help="About how many records, if that is public.")
@click.option("--test", type=FILE, help="Labelled records for the score.")
@click.option("--test-is-public", is_flag=True, help="The score may be in the report.")
@click.option("--ledger", help="URL of the ledger that keeps the budget.")
@click.option("--dataset", help="Name under which the ledger has it.")
@click.option("--seed", type=int, help="Seeds teachers and student, never noise.")
@click.option("--jobs", type=int, help="Workers.")
@click.option(
    "--out",
    required=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder for the four files.",
)
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
    drop: str | None,
    categories: str | None,
    estimator: str,
    mechanism: str,
    teachers: str,
    records: int | None,
    test: Path | None,
    test_is_public: bool,
    ledger: str | None,
    dataset: str | None,
    seed: int | None,
    jobs: int | None,
    out: Path,
    as_json: bool,
) -> None:
    """Learn a private classifier from the records in PRIVATE (CSV or Parquet).

    Types and categories of all columns come from the public file. Writes model.skops,
    certificate.json, labels.parquet and report.html to the folder OUT.
    """
    positive(epsilon=epsilon)
    probability(delta=delta)
    from sklearn.pipeline import make_pipeline

    from mapl import report
    from mapl.estimator import PrivateClassifier

    if pool.resolve() == private.resolve():
        raise ParameterError(
            "--public is the private file itself: labels.parquet would publish it."
        )
    public = _read(pool).drop(columns=[target], errors="ignore")
    if not len(public):
        raise ParameterError(f"{pool} has no records.")
    table = _read(private, as_text=True)
    left_out, names = _listed(drop), _listed(categories)
    for name in (target, *([groups] if groups else []), *left_out):
        _check_column(name, table, private)
    shared = [c for c in public.columns if c in table.columns]
    shared = [c for c in shared if c not in (groups, *left_out)]
    if not shared:
        raise ParameterError(f"{private} and {pool} have no column in common.")
    if "label" in shared:
        raise ParameterError(
            f"Column 'label' of {pool} has the name of what labels.parquet adds. "
            "Rename it, or leave it out with --drop label."
        )
    for name in names:
        if name not in shared:
            raise ParameterError(
                f"--categories: {name!r} is not among the columns that are learned "
                f"from: {', '.join(shared)}."
            )
    _tell_of_other_columns(public, table, shared, (target, groups, *left_out))
    public = _with_names(public[shared], pool, names)
    numbers = list(public.select_dtypes("number").columns)
    _tell_of_types(public, numbers)
    coder = _coder(public, numbers)
    model = PrivateClassifier(
        _estimator(estimator),
        epsilon=epsilon,
        delta=delta,
        n_teachers=int(teachers) if teachers.isdigit() else teachers,
        n_records=records,
        mechanism=mechanism,
        classes=_listed(classes) or None,
        ledger=ledger,
        dataset=dataset,
        n_jobs=jobs,
        random_state=seed,
    )
    points = coder.transform(_typed(public, numbers))
    _check_writable(model.estimator, points)
    exam = None if test is None else _exam(test, shared, target, model.classes)
    table = table[~_missing(table[target], model.classes)]
    needed = repr(target)
    if groups:
        table, needed = table[~_missing(table[groups])], f"{needed} or a {groups!r}"
    # Said whether there are such records or not: that is private.
    click.echo(
        f"Records without a {needed}, if any, are left out; NA and the like are none, "
        "unless --classes names them.",
        err=True,
    )
    if not groups:
        click.echo(
            "Protects single records; if a person may have several, use --groups COL.",
            err=True,
        )
    model.fit(
        coder.transform(_typed(table[shared], numbers)),
        table[target].map(_text).to_numpy(),
        X_public=points,
        groups=table[groups].to_numpy() if groups else None,
    )
    whole = make_pipeline(coder, model.student_)
    score = None if exam is None else _scored(whole, exam, numbers, target, model)
    signed = report.write(out, whole, model, public, score if test_is_public else None)
    summary = _summary(model, signed, out)
    if score is not None:
        summary |= {name: score[name] for name in ("accuracy", "always_most_frequent")}
    _show(summary, as_json)


@main.command()
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.argument("data", type=FILE)
@click.option("--out", required=True, type=click.Path(dir_okay=False, path_type=Path))
@json_option
@errors_in_one_line
def predict(folder: Path, data: Path, out: Path, as_json: bool) -> None:
    """Label the records in DATA with the model in FOLDER."""
    _check_ending(out, ".csv", ".parquet", ".pq")
    from mapl import certificate

    certificate.verify(
        certificate.read(folder / "certificate.json"), model=folder / "model.skops"
    )
    model = _load_model(folder / "model.skops")
    table = _read(data, as_text=True)
    for name in model.feature_names_in_:
        _check_column(name, table, data)
    if not len(table):
        raise ParameterError(f"{data} has no records.")
    features = table[list(model.feature_names_in_)]
    numbers = model[0].transformers_[0][2]
    table = table.assign(prediction=model.predict(_typed(features, numbers)))
    _save(table, out)
    _show({"records": len(table), "file": str(out)}, as_json)


@main.group(name="certificate")
def certificate_group() -> None:
    """Work with certificates."""


@certificate_group.command()
@click.argument("path", type=click.Path(exists=True, path_type=Path))
@click.option("--model", type=FILE, help="The model; default: model.skops beside it.")
@click.option("--ledger", help="URL of the ledger that the certificate names.")
@json_option
@errors_in_one_line
def verify(path: Path, model: Path | None, ledger: str | None, as_json: bool) -> None:
    """Recompute epsilon from the events, and the digest of the model file.

    PATH is a certificate, or a folder with one. With --ledger, the rows that it names
    must be in the ledger with the same events.
    """
    from mapl import certificate

    if path.is_dir():
        path = path / "certificate.json"
    beside = path.with_name("model.skops")
    if model is None and beside.exists():
        model = beside
    read = certificate.read(path)
    epsilon = certificate.verify(read, model=model)
    checked = "not checked" if ledger is None else _check_receipt(read, ledger)
    _show(
        {
            "holds": True,
            "epsilon": epsilon,
            "delta": read["delta"],
            "model": str(model) if model else "not checked",
            "ledger": checked,
            "guarantee": read["guarantee"],
            "assumed": read["public"].get("assumed"),
        },
        as_json,
    )


@main.command(name="plan")
@click.option("--records", required=True, type=int, help="How many private records.")
@click.option("--queries", required=True, type=int, help="How many public points.")
@click.option(
    "--classes", default=2, show_default=True, type=int, help="How many there are."
)
@click.option(
    "--epsilon", required=True, type=float, help="What all of it may cost; try 1."
)
@delta_option
@click.option(
    "--teachers", type=int, help="How many; default: what suits each mechanism."
)
@click.option(
    "--teacher-error",
    default=0.15,
    show_default=True,
    type=float,
    help="How often a teacher differs from the plurality of all: try on public data.",
)
@click.option(
    "--best-error",
    default=0.0,
    show_default=True,
    type=float,
    help="How often the plurality of all teachers is wrong.",
)
@click.option("--vc-dim", type=float, help="For the paper's theorems: VC dimension.")
@click.option(
    "--failure-prob",
    default=0.05,
    show_default=True,
    type=float,
    help="For the paper's theorems: beta.",
)
@click.option(
    "--plot",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Draw answers against epsilon into this file: PNG, SVG or PDF.",
)
@json_option
@errors_in_one_line
def plan_command(
    records: int,
    queries: int,
    classes: int,
    epsilon: float,
    delta: float,
    teachers: int | None,
    teacher_error: float,
    best_error: float,
    vc_dim: float | None,
    failure_prob: float,
    plot: Path | None,
    as_json: bool,
) -> None:
    """Plan from public numbers: which mechanism, how many teachers, what to expect."""
    from mapl import planner

    probability(failure_prob=failure_prob)
    if vc_dim is not None:
        positive(vc_dim=vc_dim)
    sizes = {"n_records": records, "n_queries": queries, "n_classes": classes}
    errors = {"teacher_error": teacher_error, "best_error": best_error}
    named: dict[str, Any] = {"delta": delta, "n_teachers": teachers, **sizes, **errors}
    figure = None if plot is None else _figure(plot, 7, 4)
    made = planner.plan(epsilon=epsilon, **named)
    if figure is not None:
        _draw_plan(figure, epsilon, named)
        figure.savefig(plot, dpi=120)
    meaning = {
        f"{prior:.0%}": planner.what_epsilon_means(epsilon, prior=prior)
        for prior in (0.5, 0.1, 0.01)
    }
    result = made.to_json() | {"guess_about_a_person": meaning}
    result["asked"] = {"epsilon": epsilon, **named}
    if vc_dim is not None:
        result["paper"] = _by_theorem_3_2(vc_dim, failure_prob, epsilon, named)
    if as_json:
        click.echo(json.dumps(result))
        return
    _show_plan(made, result["asked"], meaning)
    if vc_dim is not None:
        click.echo("\n" + _told_by_theorem_3_2(result["paper"], failure_prob))
    if plot is not None:
        click.echo(f"\nWrote {plot}.")


def _by_theorem_3_2(
    vc_dim: float, beta: float, epsilon: float, named: dict[str, Any]
) -> dict[str, Any]:
    """What the paper's theorem says of these sizes, and from how many records on it
    says something.
    """
    import numpy as np

    from mapl import planner

    sizes = np.append(np.logspace(0, 30, 601), named["n_records"])
    loop = planner.solve_loop(
        *(sizes, vc_dim, named["n_queries"]),
        epsilon=epsilon,
        delta=named["delta"],
        beta=beta,
        gamma=named["best_error"],
        realizable=named["best_error"] == 0,
    )
    found = {name: value[-1].item() for name, value in vars(loop).items()}
    enough = sizes[loop.feasible & (loop.misclassification <= 0.5)]
    return found | {"records_from": float(enough.min()) if len(enough) else None}


def _told_by_theorem_3_2(paper: dict[str, Any], beta: float) -> str:
    if paper["feasible"]:
        return (
            f"The paper's Algorithm 2 with its own constants (1 in the error of a "
            f"learner): {paper['k']:,.0f} teachers, cutoff {math.ceil(paper['T']):,}; "
            f"with probability {1 - 2 * beta:g} at most "
            f"{paper['misclassification']:.2%} of the answers are wrong or withheld."
        )
    start = (
        "The paper's Algorithm 2 with its own constants (1 in the error of a learner) "
        "promises nothing here; "
    )
    if paper["records_from"] is None:
        return start + "no number of records changes that."
    records = math.ceil(float(f"{1.05 * paper['records_from']:.2g}"))
    return start + (
        f"with {records:,} records it would promise that at most half of the answers "
        "are wrong or withheld."
    )


def _show_plan(made: Plan, asked: dict[str, Any], meaning: dict[str, float]) -> None:
    from mapl.planner import percent

    errors = "errors" if asked["best_error"] else "lost to noise"
    for warning in made.warnings:
        click.echo(f"Warning: {warning}\n")
    _table(
        ("mechanism", "teachers", "records each", "fits", "answers", errors, "how"),
        [
            (
                option.name,
                f"{option.n_teachers:,}",
                f"{option.records_each:,}",
                "yes" if option.feasible else "no",
                f"{option.expected_answers:,}",
                "" if option.expected_error is None else f"{option.expected_error:.1%}",
                option.why,
            )
            for option in made.options
        ],
    )
    click.echo(f"\n{made.reason}\n\n{made.assumed}\n")
    told = (f"from {prior} to {percent(most)}" for prior, most in meaning.items())
    click.echo(
        f"epsilon {asked['epsilon']:g}: what somebody believes of one record being in "
        f"the data can rise {', '.join(told)} at most, up to delta {asked['delta']:g}. "
        "Where a person has several records, count persons, and learn with --groups."
    )
    if made.recommended is not None:
        click.echo(
            "\nThe plan compares mechanisms that answer each query once, at the noise "
            "shown. mapl learn asks for as many points as it can, at larger noise, and "
            "learns from shares of the vote: it reports more labels than that, each of "
            "them less sure. How accurate its model will be depends on your data."
        )


@main.group()
def ledger() -> None:
    """Keep budgets that outlive every process: sqlite:///FILE or postgresql://..."""


@ledger.command()
@click.argument("url")
@click.option("--dataset", required=True, help="Name of the data set.")
@click.option("--epsilon", required=True, type=float, help="All that it may cost.")
@click.option("--delta", required=True, type=float, help="For all releases together.")
@click.option(
    "--rule",
    default="basic",
    show_default=True,
    help="How prices add up: basic (epsilons and deltas), or gaussian (for many "
    "releases: k equal ones cost about sqrt(k) times one).",
)
@json_option
@errors_in_one_line
def create(
    url: str, dataset: str, epsilon: float, delta: float, rule: str, as_json: bool
) -> None:
    """Give a data set its budget, once and for all. Makes the ledger if need be."""
    from mapl.ledger import Ledger

    opened = Ledger(url, create=True)
    opened.create(dataset, epsilon=epsilon, delta=delta, rule=rule)
    _show(vars(opened.standing(dataset)) | {"ledger": opened.url}, as_json)


@ledger.command()
@click.argument("url")
@click.option(
    "--plot", type=click.Path(dir_okay=False, path_type=Path), help="A picture."
)
@json_option
@errors_in_one_line
def show(url: str, plot: Path | None, as_json: bool) -> None:
    """Show what each data set may cost, and what is spent."""
    from mapl.ledger import Ledger

    opened = Ledger(url)
    standings = [vars(standing) for standing in opened.standings()]
    if plot is not None:
        _draw(standings, plot)
    if as_json:
        click.echo(json.dumps({"ledger": opened.url, "datasets": standings}))
        return
    _table(
        ("data set", "rule", "epsilon spent", "of", "delta spent", "of", "releases"),
        [
            (
                s["name"],
                s["rule"],
                f"{s['epsilon_spent']:.4g}",
                f"{s['epsilon_limit']:g}",
                f"{s['delta_spent']:.3g}",
                f"{s['delta_limit']:g}",
                str(s["releases"]),
            )
            for s in standings
        ],
    )


@ledger.command()
@click.argument("url")
@click.option("--dataset", help="Only of this data set.")
@json_option
@errors_in_one_line
def history(url: str, dataset: str | None, as_json: bool) -> None:
    """Show who spent what on what."""
    from mapl.ledger import Ledger

    opened = Ledger(url)
    if dataset is not None:
        opened.standing(dataset)
    rows = list(opened.history(dataset))
    if as_json:
        click.echo(json.dumps({"ledger": opened.url, "rows": rows}))
        return
    _table(
        ("row", "at", "who", "data set", "loss", "delta", "what"),
        [
            (
                str(row["row"]),
                row["at"],
                row["who"],
                row["dataset"],
                f"{row['loss']:.4g}",
                f"{row['delta']:.3g}",
                row.get("what", f"budget {row.get('epsilon_limit', 0):g}"),
            )
            for row in rows
            if row["kind"] in ("create", "charge")
        ],
    )


@ledger.command(name="verify")
@click.argument("url")
@json_option
@errors_in_one_line
def verify_ledger(url: str, as_json: bool) -> None:
    """Read every row and check the whole chain; exit code 4 if it does not hold."""
    from mapl.ledger import Ledger

    _show({"holds": True, "rows": Ledger(url).verify()}, as_json)


@ledger.command()
@click.argument("url")
@click.option(
    "--out",
    required=True,
    type=click.Path(dir_okay=False, path_type=Path),
    help="A file: .csv, .parquet or .json.",
)
@json_option
@errors_in_one_line
def export(url: str, out: Path, as_json: bool) -> None:
    """Write the history to a file: public values only, no state of mechanisms."""
    _check_ending(out, ".csv", ".parquet", ".json")
    import pandas as pd

    from mapl.ledger import Ledger

    rows = list(Ledger(url).history())
    if out.suffix == ".json":
        out.write_text(json.dumps(rows, indent=2) + "\n")
    else:
        plain = [
            {n: json.dumps(v) if isinstance(v, dict) else v for n, v in row.items()}
            for row in rows
        ]
        _save(pd.DataFrame(plain), out)
    _show({"rows": len(rows), "file": str(out)}, as_json)


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
        if as_text:  # NA may be a region, None a surname
            return pd.read_csv(path, dtype=str, keep_default_na=False, na_values=[""])
        return pd.read_csv(path)
    except Exception as error:
        kind = type(error).__name__
        raise ParameterError(f"{path} cannot be read as a table ({kind}).") from None


def _with_names(public: Any, path: Path, names: list[str]) -> Any:
    """Take columns that are no numbers as they stand: 01234 is no 1234."""
    names = [*names, *public.select_dtypes(exclude=["number", "datetime"])]
    if names:
        public, plain = public.copy(), _read(path, as_text=True)
        for name in names:
            public[name] = plain[name].astype(object).to_numpy()
    return public


def _missing(cells: Any, classes: Any = None) -> Any:
    """Whether nothing is there, or what stands for it in many files; but a class may
    have any name.
    """
    return cells.isna() | cells.isin(NOTHING - set(classes or ()))


def _check_ending(path: Path, *endings: str, option: str = "--out") -> None:
    if path.suffix.lower() not in endings:
        raise ParameterError(
            f"{option} must end in {', '.join(endings)}, got {str(path)!r}."
        )


def _save(table: Any, path: Path) -> None:
    if path.suffix in (".parquet", ".pq"):
        table.to_parquet(path, index=False)
    else:
        table.to_csv(path, index=False)


def _summary(fitted: Any, signed: dict[str, Any], out: Path) -> dict[str, Any]:
    from mapl.votes import ABSTAIN

    answered = int((fitted.public_labels_ != ABSTAIN).sum())
    return {
        "epsilon": signed["epsilon"],
        "delta": signed["delta"],
        "paid_before": fitted.paid_before_,
        "teachers": fitted.n_teachers_,
        "public_points": len(fitted.public_labels_),
        "answered": answered,
        "abstained": len(fitted.public_labels_) - answered,
        "guarantee": signed["guarantee"],
        "folder": str(out),
    }


def _check_writable(estimator: Any, table: Any) -> None:
    """Refuse a learner whose models could not be loaded again, before it is paid for.

    Tried on public points with made-up labels.
    """
    import numpy as np
    import skops.io
    from sklearn.base import clone

    some = table[:200]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            fitted = clone(estimator).fit(some, np.arange(len(some)) % 2)
        except Exception:  # one that cannot be fitted is told by `fit`, and why
            return
        try:
            types = set(skops.io.get_untrusted_types(data=skops.io.dumps(fitted)))
        except Exception as error:  # whatever it is: nothing here is private
            types = {type(error).__name__}
    if types - HARMLESS:
        raise ParameterError(
            f"Models of this estimator hold types that are not trusted in a file: "
            f"{', '.join(sorted(types - HARMLESS))}. Take another one, or learn in "
            "Python. Nothing was released."
        )


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

    from mapl.estimator import numbers_of

    columns = {}
    for name in table.columns:
        column = table[name]
        if name in numbers:
            cells = numbers_of(column)
            columns[name] = cells.where(np.isfinite(cells))
        else:
            texts = column.astype(object).map(_text, na_action="ignore")
            columns[name] = texts.where(column.notna(), np.nan).astype(object)
    return pd.DataFrame(columns)


def _text(cell: Any) -> str:
    """Return a cell as a text that no other cell has a part in: as soon as a column of
    integers lacks one of them, pandas has them all as floats.
    """
    if isinstance(cell, float) and cell.is_integer():
        return str(int(cell))
    if hasattr(cell, "isoformat"):
        return str(cell.isoformat()).removesuffix("T00:00:00")
    return str(cell)


def _check_column(name: str, table: Any, path: Path) -> None:
    """Refuse; the columns are not listed, as without a header they are a record."""
    if name not in table.columns:
        hint = "Is the file separated by commas?" if len(table.columns) == 1 else ""
        hint = hint or "Is there a line of column names, and is it spelt like this?"
        raise ParameterError(f"Column {name!r} is not in {path}. {hint}")


def _listed(names: str | None) -> list[str]:
    return [name.strip() for name in (names or "").split(",") if name.strip()]


def _tell_of_types(public: Any, numbers: list[str]) -> None:
    texts = [name for name in public.columns if name not in numbers]
    click.echo(f"Numbers: {', '.join(numbers) or 'none'}", err=True)
    click.echo(f"Categories: {', '.join(texts) or 'none'}", err=True)
    many = [name for name in texts if public[name].nunique() > 0.5 * len(public)]
    if many:
        click.echo(
            f"Nearly every value differs in {', '.join(many)}: names or numbers of "
            "people teach nothing. Leave them out with --drop.",
            err=True,
        )


def _check_receipt(read: dict[str, Any], url: str) -> str:
    """Check a certificate's receipt; return which ledger it was, without password."""
    from mapl.events import from_json
    from mapl.ledger import Ledger

    receipt = read["ledger"]
    if not isinstance(receipt, dict):
        raise CertificateError(f"The certificate names no ledger: {receipt}.")
    opened = Ledger(url)
    opened.check_receipt(receipt, [from_json(event) for event in read["events"]])
    return opened.url


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

    from sklearn.base import is_classifier

    module, _, attribute = ESTIMATORS.get(name, name).rpartition(".")
    try:
        made = getattr(import_module(module), attribute)()
        if not is_classifier(made):
            raise TypeError
    except (ImportError, AttributeError, ValueError, TypeError):
        raise ParameterError(
            f"estimator must be one of {', '.join(ESTIMATORS)} or the import path of a "
            f"classifier that needs no arguments, got {name!r}."
        ) from None
    return made.set_params(C=10, max_iter=200) if name == "logistic" else made


def _exam(path: Path, features: list[str], target: str, classes: Any) -> Any:
    """Read the test file; what is wrong with it shows before anything is spent."""
    table = _read(path, as_text=True)
    for name in (*features, target):
        _check_column(name, table, path)
    table = table[~_missing(table[target], classes)].copy()
    if not len(table):
        raise ParameterError(f"{path} has no record with a {target!r}.")
    table[target] = table[target].map(_text)
    if not set(table[target]) <= set(classes or table[target]):
        raise ParameterError(
            f"{path} has a {target!r} that is not among --classes {','.join(classes)}."
        )
    return table


def _scored(
    model: Any, table: Any, numbers: list[str], target: str, fitted: Any
) -> dict[str, Any]:
    from sklearn.metrics import confusion_matrix

    truth = table[target].to_numpy()
    given = model.predict(_typed(table[list(model.feature_names_in_)], numbers))
    names = [str(name) for name in fitted.classes_]
    frequent = max((truth == name).mean() for name in names)
    return {
        "accuracy": float((truth == given).mean()),
        "always_most_frequent": float(frequent),
        "classes": names,
        "confusion": confusion_matrix(truth, given, labels=names).tolist(),
    }


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(*head, box=None)
    for row in rows:
        table.add_row(*row)
    Console(width=None if sys.stdout.isatty() else 160).print(table)


def _figure(path: Path, width: float, height: float) -> Any:
    """Begin a picture that can be saved there."""
    _check_ending(path, ".png", ".svg", ".pdf", option="--plot")
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ParameterError(
            "--plot needs matplotlib: pip install 'mapl[plot]'."
        ) from None
    return Figure(figsize=(width, height), layout="constrained")


def _draw(standings: list[dict[str, Any]], path: Path) -> None:
    """Draw what is spent and what is left, a bar for each data set."""
    figure = _figure(path, 7, 1.2 + 0.5 * len(standings))
    axes = figure.add_subplot()
    names = [s["name"] for s in standings]
    shares = [100 * s["epsilon_spent"] / s["epsilon_limit"] for s in standings]
    axes.barh(names, [100] * len(names), color="#e2e8f0", label="left")
    axes.barh(names, shares, color="#2b6cb0", label="spent")
    for name, s in zip(names, standings, strict=True):
        text = f"{s['epsilon_spent']:.3g} of {s['epsilon_limit']:g}"
        axes.text(101, name, text, va="center")
    axes.set(xlim=(0, 125), xlabel="epsilon, % of the limit")
    axes.invert_yaxis()
    axes.legend(loc="upper right", ncols=2, frameon=False, bbox_to_anchor=(1, 1.25))
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=120)


def _draw_plan(figure: Any, epsilon: float, named: dict[str, Any]) -> None:
    """Draw how many answers each mechanism gives around an epsilon."""
    from mapl import planner
    from mapl.progress import Progress

    axes = figure.add_subplot()
    around = [epsilon * 2.0**power for power in (-3, -2, -1, -0.5, 0, 0.5, 1, 2, 3)]
    around = [other for other in around if 1e-6 <= other <= 1e6]
    plans = []
    with Progress("Planning", len(around)) as progress:
        for other in around:
            plans.append(planner.plan(epsilon=other, **named))
            progress.advance(1)
    for i, first in enumerate(plans[0].options):
        options = [made.options[i] for made in plans]
        answers = [option.expected_answers for option in options]
        colour = f"C{i}"
        inside = [colour if option.feasible else "white" for option in options]
        axes.plot(around, answers, color=colour, label=first.name)
        axes.scatter(around, answers, c=inside, edgecolors=colour, zorder=3)
    n_queries = named["n_queries"]
    axes.axvline(epsilon, color="#888888", linestyle=":")
    axes.axhline(n_queries, color="#888888", linestyle=":")
    axes.annotate(f"all {n_queries:,} queries", (around[0], n_queries), va="bottom")
    axes.set_xscale("log", base=2)
    axes.set_yscale("symlog", linthresh=10)
    axes.set_xticks(around[::2], [f"{other:.3g}" for other in around[::2]])
    axes.set(xlabel="epsilon", ylabel="queries answered", ylim=(0, 2 * n_queries))
    axes.set_title(
        f"{named['n_records']:,} records, {named['n_classes']} classes, delta "
        f"{named['delta']:g}, teacher error {named['teacher_error']:g}\n"
        "hollow: too few to learn from",
        fontsize=9,
    )
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)


def _show(result: dict[str, Any], as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(result))
        return
    words = {True: "yes", False: "no"}
    for name, value in result.items():
        shown = words[value] if isinstance(value, bool) else value
        click.echo(f"{name.replace('_', ' '):14} {shown}")
