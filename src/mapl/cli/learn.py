"""``mapl learn``: from a private file to a folder that may be published."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import rich_click as click
from click import get_current_context
from click.core import ParameterSource

from mapl.cli.output import (
    FILE,
    delta_option,
    errors_in_one_line,
    json_option,
    show_result,
    split_at_commas,
)
from mapl.errors import ParameterError, positive, probability

ESTIMATORS = {
    "logistic": "sklearn.linear_model.LogisticRegression",
    "forest": "sklearn.ensemble.RandomForestClassifier",
    "boosting": "sklearn.ensemble.HistGradientBoostingClassifier",
    "tree": "sklearn.tree.DecisionTreeClassifier",
    "bayes": "sklearn.naive_bayes.GaussianNB",
}


@click.command()
@click.argument("private", type=FILE)
@click.option("--target", required=True, help="Column with the labels.")
@click.option(
    "--public",
    "pool",
    required=True,
    type=FILE,
    help="Records without labels that are not sensitive. They decide the type of each "
    "column; a private cell that does not fit its column counts as missing.",
)
@click.option(
    "--epsilon",
    type=float,
    help="Privacy budget: 1 is strong privacy, 8 is weak; below 0.3 little is learned. "
    "Required unless there is a plan.",
)
@delta_option
@click.option(
    "--groups",
    help="Column that says whose record it is; the guarantee is then for a person.",
)
@click.option(
    "--classes",
    help="All labels that may occur, separated by commas. Without it they are read "
    "from the private file, and which labels exist is not protected.",
)
@click.option(
    "--drop",
    help="Columns to leave out, separated by commas, such as names or ID numbers.",
)
@click.option(
    "--categories",
    help="Columns of numbers to treat as categories, separated by commas, such as zip "
    "codes (01234 is not 1234).",
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
@click.option(
    "--plan",
    type=FILE,
    help="Run exactly what mapl plan --json wrote to this file: epsilon, delta, "
    "teachers and noise; --mechanism chooses another than the recommended one.",
)
@click.option(
    "--test",
    type=FILE,
    help="Labelled records for a score, which is shown and not covered by the "
    "guarantee.",
)
@click.option(
    "--test-is-public",
    is_flag=True,
    help="The records for the score are not private: it may be in the report.",
)
@click.option(
    "--ledger",
    help="URL of the ledger that keeps the budget. The same command again costs "
    "nothing, and one that was killed goes on.",
)
@click.option("--dataset", help="Name of the data set in the ledger.")
@click.option("--seed", type=int, help="Seeds teachers and student, never noise.")
@click.option("--jobs", type=int, help="Number of parallel workers.")
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
    groups: str | None,
    classes: str | None,
    drop: str | None,
    categories: str | None,
    test: Path | None,
    test_is_public: bool,
    out: Path,
    as_json: bool,
    **settings: Any,
) -> None:
    """Learn a private classifier from the records in PRIVATE (CSV or Parquet).

    Writes a folder that may be published: model.skops (the model with the encoding of
    its columns, loads without pickle), certificate.json (the guarantee and what it
    stands on), labels.parquet (the public records with the labels published for them)
    and report.html (all this for a reader).
    """
    budget = _budget(settings)
    from sklearn.pipeline import make_pipeline

    from mapl.publish.bundle import check_writable, write_bundle

    names = split_at_commas(classes)
    data = _read(
        private,
        pool,
        target,
        groups,
        split_at_commas(drop),
        split_at_commas(categories),
    )
    _show_columns(data)
    model = _make_classifier(settings, budget, names)
    typed = data.schema.cast(data.public)
    encoder, points = data.schema.fit_encoder(typed)
    check_writable(model.estimator, points)
    test_table = None if test is None else read_test_file(test, data, target, names)
    X, y, whose = data.records(target, groups, names)
    model.fit(encoder.transform(X), y, X_public=points, groups=whose)
    whole = make_pipeline(encoder, model.student_)
    score = (
        None if test_table is None else _score(whole, test_table, data, target, model)
    )
    shown = score if test_is_public else None
    signed = write_bundle(out, whole, model, data.public, shown)
    summary = _summary(model, signed, out)
    if score is not None:
        summary |= {name: score[name] for name in ("accuracy", "always_most_frequent")}
    show_result(summary, as_json)


# What it may cost -------------------------------------------------------------------


def _budget(settings: dict[str, Any]) -> dict[str, Any]:
    """Return epsilon, delta and, if there is a plan, the setting that it holds."""
    path = settings.pop("plan")
    epsilon, delta = settings.pop("epsilon"), settings.pop("delta")
    if path is None:
        if epsilon is None:
            raise click.UsageError("Missing option '--epsilon'.")
        return {"epsilon": positive(epsilon=epsilon), "delta": probability(delta=delta)}
    context = get_current_context()
    for option in ("epsilon", "delta", "teachers", "records"):
        if context.get_parameter_source(option) is ParameterSource.COMMANDLINE:
            raise ParameterError(
                f"--plan says what --{option} is. Leave --{option} out."
            )
    from mapl.planning.plan import find_setting

    try:
        plan = json.loads(path.read_text())
        asked = plan["asked"]
        budget = {name: asked[name] for name in ("epsilon", "delta", "n_records")}
    except (ValueError, TypeError, KeyError):
        raise ParameterError(
            f"{path} holds no plan. Make one: mapl plan ... --json > {path}"
        ) from None
    mechanism = settings["mechanism"]
    chosen = None if mechanism == "auto" else mechanism
    return budget | {"plan": find_setting(plan, chosen)}


def _make_classifier(
    settings: dict[str, Any], budget: dict[str, Any], classes: list[str]
) -> Any:
    """Return the estimator; what a plan says comes before --records."""
    from mapl.estimator import PrivateClassifier

    teachers = settings["teachers"]
    return PrivateClassifier(
        estimator_by_name(settings["estimator"]),
        **{"n_records": settings["records"]} | budget,
        n_teachers=int(teachers) if teachers.isdigit() else teachers,
        mechanism=settings["mechanism"],
        classes=classes or None,
        ledger=settings["ledger"],
        dataset=settings["dataset"],
        n_jobs=settings["jobs"],
        random_state=settings["seed"],
    )


def estimator_by_name(name: str) -> Any:
    """Return an estimator by its short name or import path."""
    from importlib import import_module

    from sklearn.base import is_classifier

    from mapl.learners import default_classifier

    module, _, attribute = ESTIMATORS.get(name, name).rpartition(".")
    try:
        estimator = getattr(import_module(module), attribute)()
        if not is_classifier(estimator):
            raise TypeError
    except (ImportError, AttributeError, ValueError, TypeError):
        raise ParameterError(
            f"estimator must be one of {', '.join(ESTIMATORS)} or the import path of a "
            f"classifier that needs no arguments, got {name!r}."
        ) from None
    return default_classifier() if name == "logistic" else estimator


# Files ------------------------------------------------------------------------------


@dataclass(frozen=True, repr=False)
class _Data:
    """The two files: the public one decides the schema. ``table`` is private."""

    public: Any
    table: Any
    schema: Any
    only_in_one: list[str]

    def records(
        self, target: str, groups: str | None, classes: list[str]
    ) -> tuple[Any, Any, Any]:
        """Return features, labels and groups of the records that have them."""
        from mapl.records.files import is_missing
        from mapl.records.schema import cell_text

        table, needed = self.table[~is_missing(self.table[target], classes)], ""
        if groups:
            table, needed = table[~is_missing(table[groups])], f" or a {groups!r}"
        # Shown whether there are such records or not: that is private.
        click.echo(
            f"Records without a {target!r}{needed}, if any, are left out. NA and the "
            "like count as missing, unless --classes names them.",
            err=True,
        )
        if not groups:
            click.echo(
                "Protects single records; if a person may have several, use --groups "
                "COL.",
                err=True,
            )
        whose = table[groups].to_numpy() if groups else None
        return self.schema.cast(table), table[target].map(cell_text).to_numpy(), whose


def _read(
    private: Path,
    pool: Path,
    target: str,
    groups: str | None,
    drop: list[str],
    categories: list[str],
) -> _Data:
    """Read both files; what is wrong with their columns shows before anything is
    spent.
    """
    from mapl.records.files import check_column, read_public, read_table
    from mapl.records.schema import Schema

    if pool.resolve() == private.resolve():
        raise ParameterError(
            "--public is the private file itself: labels.parquet would publish it."
        )
    public = read_public(pool, without=target, categories=categories)
    table = read_table(private)
    unused = {target, *drop, *([groups] if groups else [])}
    for name in (target, *([groups] if groups else []), *drop):
        check_column(name, table, private)
    shared = [c for c in public.columns if c in table.columns and c not in unused]
    if not shared:
        raise ParameterError(f"{private} and {pool} have no column in common.")
    if "label" in shared:
        raise ParameterError(
            f"Column 'label' of {pool} has the name of what labels.parquet adds. "
            "Rename it, or leave it out with --drop label."
        )
    for name in categories:
        if name not in shared:
            raise ParameterError(
                f"--categories: {name!r} is not among the columns that are learned "
                f"from: {', '.join(shared)}."
            )
    both = set(public.columns) | set(table.columns)
    only_in_one = sorted(both - unused - set(shared))
    public = public[shared]
    return _Data(public, table, Schema.of_numbers_and_texts(public), only_in_one)


def _show_columns(data: _Data) -> None:
    """Show the type of each column; column names and the public file are public."""
    if data.only_in_one:
        names = ", ".join(data.only_in_one)
        click.echo(f"Left out, only in one of the files: {names}", err=True)
    numbers, texts = data.schema.number_columns, data.schema.other_columns
    click.echo(f"Numbers: {', '.join(numbers) or 'none'}", err=True)
    click.echo(f"Categories: {', '.join(texts) or 'none'}", err=True)
    public = data.public
    many = [name for name in texts if public[name].nunique() > 0.5 * len(public)]
    if many:
        click.echo(
            f"Nearly every value differs in {', '.join(many)}: names and ID "
            "numbers teach nothing. Leave them out with --drop.",
            err=True,
        )


# Results ----------------------------------------------------------------------------


def read_test_file(path: Path, data: _Data, target: str, classes: list[str]) -> Any:
    """Read the test file; what is wrong with it shows before anything is spent."""
    from mapl.records.files import check_column, is_missing, read_table
    from mapl.records.schema import cell_text

    table = read_table(path)
    for name in (*data.schema.columns, target):
        check_column(name, table, path)
    table = table[~is_missing(table[target], classes)].copy()
    if not len(table):
        raise ParameterError(f"{path} has no record with a {target!r}.")
    table[target] = table[target].map(cell_text)
    if not set(table[target]) <= set(classes or table[target]):
        raise ParameterError(
            f"{path} has a {target!r} that is not among --classes {','.join(classes)}."
        )
    return table


def _score(
    model: Any, table: Any, data: _Data, target: str, fitted: Any
) -> dict[str, Any]:
    """Return the score on the test file, with the keys that the report reads."""
    from sklearn.metrics import confusion_matrix

    truth = table[target].to_numpy()
    given = model.predict(data.schema.cast(table))
    names = [str(name) for name in fitted.classes_]
    frequent = max((truth == name).mean() for name in names)
    return {
        "accuracy": float((truth == given).mean()),
        "always_most_frequent": float(frequent),
        "classes": names,
        "confusion": confusion_matrix(truth, given, labels=names).tolist(),
    }


def _summary(fitted: Any, signed: dict[str, Any], out: Path) -> dict[str, Any]:
    """Return what is printed; its keys are those of ``--json``."""
    from mapl.privacy.votes import ABSTAIN

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
