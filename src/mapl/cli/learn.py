"""``mapl learn``: from a private file to a folder that may be published."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import rich_click as click
from click import get_current_context
from click.core import ParameterSource

from mapl.cli.inputs import Inputs, read_public_side
from mapl.cli.output import (
    FILE,
    csv_options,
    delta_option,
    errors_in_one_line,
    json_option,
    overwrite_option,
    show_result,
    split_at_commas,
)
from mapl.cli.prepared import Prepared, read_test_file
from mapl.cli.results import foreseen, summary_of
from mapl.cli.scale import Scale, scale_options
from mapl.cli.score import SHOWN, baseline_score, score_model
from mapl.errors import ParameterError, positive, probability

ESTIMATORS = {
    "logistic": "sklearn.linear_model.LogisticRegression",
    "forest": "sklearn.ensemble.RandomForestClassifier",
    "boosting": "sklearn.ensemble.HistGradientBoostingClassifier",
    "tree": "sklearn.tree.DecisionTreeClassifier",
    "bayes": "sklearn.naive_bayes.GaussianNB",
}


@click.command()
@click.argument("private")
@click.option("--target", help="Column with the labels, unless the schema names it.")
@click.option(
    "--schema",
    type=FILE,
    help="Data dictionary: columns with kinds, ranges and categories (see mapl schema "
    "draft). With it no public records are needed.",
)
@click.option(
    "--public",
    "pool",
    type=FILE,
    help="Records without labels that are not sensitive. Without --schema they decide "
    "the type of each column; a private cell that does not fit it counts as missing.",
)
@click.option(
    "--epsilon",
    type=float,
    help="Privacy budget: 1 is strong privacy, 8 weak; few records need a large one. "
    "Required unless there is a plan.",
)
@delta_option
@click.option(
    "--groups",
    help="Column that says whose record it is; the guarantee is then for a person.",
)
@click.option(
    "--classes",
    help="All labels that may occur, separated by commas.",
)
@click.option(
    "--classes-from-data",
    is_flag=True,
    help="Read the labels from the private file; which labels exist is then not "
    "protected.",
)
@click.option(
    "--on-invalid",
    default="error",
    show_default=True,
    help="What happens to private records that do not fit (a label outside --classes, "
    "a line that cannot be read): error refuses before anything is charged, drop "
    "leaves them out and does not show it. See mapl check.",
)
@click.option(
    "--allow-overlap",
    is_flag=True,
    help="Go on where public records are private ones, too. Their features are then "
    "published, and the certificate says so.",
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
    help=f"What teachers are: {', '.join(ESTIMATORS)}, or an import path such as "
    "package.module.Class. Without it, sums over the records lead to a linear model, "
    "which is nearly always the most accurate.",
)
@click.option(
    "--method",
    default="auto",
    show_default=True,
    help="moments, votes, both or auto: moments without an estimator, both with one.",
)
@click.option(
    "--class-weight",
    help="balanced: rare classes are predicted as if all were equally frequent.",
)
@click.option(
    "--mechanism",
    default="auto",
    show_default=True,
    help="How votes are released, with --method votes: auto, dissent, noisy-max or "
    "sparse-vector.",
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
@click.option(
    "--time-limit",
    type=float,
    help="Seconds that a teacher may take; one that takes longer has no vote.",
)
@click.option("--jobs", type=int, help="Number of parallel workers.")
@scale_options
@click.option(
    "--out",
    required=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder for what is published.",
)
@overwrite_option
@click.option(
    "--sign",
    type=FILE,
    help="Ed25519 key in PEM that signs the certificate (mapl certificate key).",
)
@click.option(
    "--baseline",
    is_flag=True,
    help="With --test: also fit scikit-learn's boosting without privacy, and show what "
    "privacy cost. Its score is private: it is shown here and written nowhere.",
)
@click.option(
    "--dry-run",
    is_flag=True,
    help="Show what would be released at which price, and release nothing.",
)
@json_option
@errors_in_one_line
@csv_options
def learn(
    private: str,
    target: str | None,
    schema: Path | None,
    pool: Path | None,
    groups: str | None,
    classes: str | None,
    classes_from_data: bool,
    drop: str | None,
    categories: str | None,
    allow_overlap: bool,
    test: Path | None,
    test_is_public: bool,
    out: Path,
    overwrite: bool,
    sign: Path | None,
    baseline: bool,
    dry_run: bool,
    as_json: bool,
    **settings: Any,
) -> None:
    """Learn a private classifier from the records in PRIVATE (CSV, Parquet, Excel).

    PRIVATE may be a pattern ('data/*.parquet'), a folder, a URL that fsspec reads, or a
    database URL with --query: records are then read in parts, and never all at once.

    Writes a folder that may be published: model.skops (the model with the encoding of
    its columns, loads without pickle), certificate.json (the guarantee and what it
    stands on), labels.parquet (the public records with the labels published for them)
    and a report in four forms: report.html, report-print.html, report.json and
    README.md (a model card).
    """
    budget = _budget(settings)
    from mapl.publish.bundle import FILES, new_folder, write_bundle
    from mapl.publish.signing import read_key

    key = None if sign is None else read_key(sign)
    columns: Any = {"target": target, "groups": groups, "drop": split_at_commas(drop)}
    columns["categories"] = split_at_commas(categories)
    scale = Scale.of(private, settings)
    data = read_public_side(scale.private, schema, pool, **columns)
    target = data.target
    declared = [] if data.dictionary is None else data.dictionary.class_names
    names = _checked_classes(classes, classes_from_data, declared)
    data.show_columns()
    model = _make_classifier(settings, budget, names)
    if scale.streamed:
        scale.set_up(model)
    _check_scoring(test, baseline, test_is_public, data, streamed=scale.streamed)
    prepared = Prepared.of(data, model, streamed=scale.streamed)
    test_table = None if test is None else read_test_file(test, data, target, names)
    if dry_run:
        show_result(foreseen(model, prepared.points, names), as_json)
        return
    data.say_what_is_left_out()
    records = None
    if not scale.streamed:
        records = data.read_records(names, on_invalid=settings["on_invalid"])
    # Before anything is charged: it may take more memory than there is.
    scored = (records, test_table, data, target, names)
    more = baseline_score(*scored) if baseline else {}
    with new_folder(out, FILES, overwrite=overwrite) as made:
        prepared.fit(model, data, records, allow_overlap=allow_overlap)
        _say_charge(model)
        whole = prepared.whole(model.student_)
        points = _points_to_show(model, data)
        score, failed = _score(whole, test_table, data, target, model)
        shown: Any = {"score": score if test_is_public else None, "key": key}
        signed = write_bundle(made, whole, model, points, **shown)
    summary = summary_of(model, signed, out)
    if score is not None:
        summary |= {name: score[name] for name in SHOWN if name in score}
    show_result(summary | more, as_json)
    if failed is not None:
        raise failed


def _check_scoring(
    test: Path | None,
    baseline: bool,
    test_is_public: bool,
    data: Inputs,
    *,
    streamed: bool,
) -> None:
    """Refuse scores that cannot be had, or must not be published."""
    if baseline and test is None:
        raise ParameterError("--baseline needs --test: records to compare scores on.")
    if baseline and streamed:
        raise ParameterError("--baseline needs records that are read at once.")
    if test_is_public and test is not None and data.is_private(test):
        raise ParameterError(
            "--test is the private file itself: with --test-is-public its exact score "
            "would be published."
        )


def _checked_classes(
    classes: str | None, from_data: bool, declared: list[str]
) -> list[str]:
    """Return the declared classes; none if they are to be read from the data."""
    names = split_at_commas(classes) or ([] if from_data else declared)
    if bool(names) == from_data:
        raise ParameterError(
            "--classes must list all labels that may occur, separated by commas, "
            "unless the schema lists them. To read them from the private file, which "
            "does not protect the list, use --classes-from-data instead."
        )
    return names


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
    except (ValueError, TypeError, KeyError, RecursionError):
        raise ParameterError(
            f"{path} holds no plan. Make one: mapl plan ... --json > plan.json"
        ) from None
    mechanism = settings["mechanism"]
    chosen = None if mechanism == "auto" else mechanism
    return budget | {"plan": find_setting(plan, chosen)}


def _make_classifier(
    settings: dict[str, Any], budget: dict[str, Any], classes: list[str]
) -> Any:
    """Return the estimator; what a plan says comes before --records."""
    from mapl.estimator import PrivateClassifier

    teachers, name = settings["teachers"], settings["estimator"]
    if name is None and _has_teachers(settings, budget):
        name = "logistic"
    return PrivateClassifier(
        None if name is None else estimator_by_name(name),
        **{"n_records": settings["records"]} | budget,
        method=settings["method"],
        class_weight=settings["class_weight"],
        n_teachers=teachers_by_name(teachers),
        mechanism=settings["mechanism"],
        classes=classes or None,
        on_invalid=settings["on_invalid"],
        time_limit=settings["time_limit"],
        ledger=settings["ledger"],
        dataset=settings["dataset"],
        n_jobs=settings["jobs"],
        random_state=settings["seed"],
    )


def _has_teachers(settings: dict[str, Any], budget: dict[str, Any]) -> bool:
    """Whether votes are asked for, or planned."""
    plan = budget.get("plan")
    if plan is not None:
        return bool(plan.n_teachers)
    return settings["method"] in ("votes", "both") or settings["mechanism"] != "auto"


def teachers_by_name(text: str) -> int | str:
    """Return a number of teachers; what is no number is left to be refused."""
    return int(text) if re.fullmatch("[0-9]{1,9}", text) else text


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


# Results ----------------------------------------------------------------------------


def _points_to_show(model: Any, data: Inputs) -> Any:
    """Return the public records, without columns that say who somebody is."""
    from mapl.records.overlap import naming_columns

    if hasattr(model, "made_up_points_"):
        return model.made_up_points_
    return data.public.drop(columns=naming_columns(data.public))


def _say_charge(model: Any) -> None:
    """Say what was charged, before anything else can fail."""
    epsilon, delta = (model.certificate_[name] for name in ("epsilon", "delta"))
    before = ", charged before" * model.paid_before_
    click.echo(f"Released: epsilon {epsilon} at delta {delta:g}{before}.", err=True)


def _score(
    model: Any, table: Any, data: Inputs, target: str, fitted: Any
) -> tuple[dict[str, Any] | None, Exception | None]:
    """Return the score, if there is a test file, or why there is none: what was paid
    for is written all the same.
    """
    if table is None:
        return None, None
    try:
        return score_model(model, table, data, target, fitted), None
    except Exception as error:
        return None, error
