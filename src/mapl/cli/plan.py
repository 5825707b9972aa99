"""``mapl plan``: which mechanism, how many teachers, what to expect."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rich_click as click

from mapl.cli.output import (
    FILE,
    NEW_FILE,
    csv_options,
    delta_option,
    errors_in_one_line,
    json_option,
    show_table,
)
from mapl.errors import ParameterError, integer, positive, probability

if TYPE_CHECKING:
    from mapl.planning import Plan


@click.command()
@click.option("--records", required=True, type=int, help="How many private records.")
@click.option(
    "--queries",
    type=int,
    help="How many public points. Without any, a data dictionary (--schema of mapl "
    "learn) and 10,000 made-up records take their place.",
)
@click.option(
    "--classes", default=2, show_default=True, type=int, help="Number of classes."
)
@click.option("--epsilon", required=True, type=float, help="Privacy budget; try 1.")
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
    type=NEW_FILE,
    help="Draw labels against epsilon into this file: PNG, SVG or PDF.",
)
@click.option(
    "--data",
    type=FILE,
    help="Labelled records that are not private: tries what accuracy to expect for "
    "several epsilons, and --epsilon, with --records private ones. --plot draws that.",
)
@click.option("--target", help="Column of --data with the labels.")
@json_option
@errors_in_one_line
@csv_options
def plan(
    records: int,
    queries: int | None,
    classes: int,
    epsilon: float,
    teachers: int | None,
    vc_dim: float | None,
    failure_prob: float,
    plot: Path | None,
    data: Path | None,
    target: str | None,
    as_json: bool,
    **errors_and_delta: float,
) -> None:
    """Plan from public numbers: which mechanism, how many teachers, what to expect.

    With --json, save the output and run exactly that: mapl learn --plan FILE.
    """
    from mapl import planning
    from mapl.cli.plots import draw_plan, draw_sweep, new_figure
    from mapl.publish.meaning import beliefs

    probability(failure_prob=failure_prob)
    if data is not None:
        tried = _try_epsilons(data, target, epsilon, records, errors_and_delta["delta"])
        if plot is not None:
            draw_sweep(tried, new_figure(plot, 7, 4), plot)
        if as_json:
            click.echo(json.dumps({"expected": tried}))
            return
        _show_sweep(tried, records)
        return
    if vc_dim is not None:
        positive(vc_dim=vc_dim)
    from mapl.features.sketch import N_DRAWN

    n_queries = N_DRAWN if queries is None else queries
    sizes = {"n_records": records, "n_queries": n_queries, "n_classes": classes}
    params: dict[str, Any] = {**sizes, "n_teachers": teachers, **errors_and_delta}
    figure = None if plot is None else new_figure(plot, 7, 4)
    found = planning.plan(epsilon=epsilon, **params)
    if figure is not None:
        draw_plan(figure, epsilon, params)
        figure.savefig(plot, dpi=120)
    result = found.to_json() | {"guess_about_a_person": beliefs(epsilon)}
    result["asked"] = {"epsilon": epsilon, **params}
    if vc_dim is not None:
        result["paper"] = _paper_as_json(vc_dim, failure_prob, epsilon, params)
    if as_json:
        click.echo(json.dumps(result))
        return
    _show_plan(found, result["asked"])
    if vc_dim is not None:
        click.echo("\n" + _paper_in_words(result["paper"], failure_prob))
    if plot is not None:
        click.echo(f"\nWrote {plot}.")


def _try_epsilons(
    path: Path, target: str | None, epsilon: float, n_records: int, delta: float
) -> list[dict[str, float]]:
    """Return the accuracy to expect, from a file of public labelled records."""
    from mapl.estimator import PrivateClassifier
    from mapl.records.files import as_texts, check_column, read_public, read_table
    from mapl.trials import EPSILONS, sweep

    if target is None:
        raise ParameterError("--data needs --target: the column with the labels.")
    table = read_table(path)
    check_column(target, table.columns, path)
    labels = as_texts(table[target])
    kept = [i for i, label in enumerate(labels) if label is not None]
    points = read_public(path, without=target, categories=[]).iloc[kept]
    return sweep(
        points.reset_index(drop=True),
        [labels[i] for i in kept],
        epsilons=sorted({*EPSILONS, positive(epsilon=epsilon)}),
        n_records=integer(records=n_records, at_least=1),
        model=PrivateClassifier(delta=probability(delta=delta)),
    )


def _show_sweep(tried: list[dict[str, float]], n_records: int) -> None:
    """Print what to expect, for a reader."""
    show_table(
        ("epsilon", "accuracy to expect", "spread"),
        [
            (f"{row['epsilon']:g}", f"{row['accuracy']:.1%}", f"{row['spread']:.1%}")
            for row in tried
        ],
    )
    most = tried[0]["always_most_frequent"]
    click.echo(
        f"\nAlways the most frequent class: {most:.1%}. Tried on public records, for "
        f"{n_records:,} private ones like them. Nothing was charged."
    )


def _paper_as_json(
    vc_dim: float, beta: float, epsilon: float, params: dict[str, Any]
) -> dict[str, Any]:
    """Return what the paper's theorem says; the fields of `Loop` are keys."""
    from mapl.planning import theorems

    assumed: dict[str, Any] = {
        "epsilon": epsilon,
        "delta": params["delta"],
        "beta": beta,
        "gamma": params["best_error"],
        "realizable": params["best_error"] == 0,
    }
    sizes = vc_dim, params["n_queries"]
    loop = theorems.solve_loop(params["n_records"], *sizes, **assumed)
    found = {name: value.item() for name, value in vars(loop).items()}
    enough = theorems.records_for_half(*sizes, **assumed)
    return found | {"records_from": enough}


def _paper_in_words(paper: dict[str, Any], beta: float) -> str:
    """Say what Theorem 3.2 promises, or from how many records on."""
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
    # The search is in steps of 12 %: two digits, and a little more, are enough.
    records = math.ceil(float(f"{1.05 * paper['records_from']:.2g}"))
    return start + (
        f"with {records:,} records it would promise that at most half of the answers "
        "are wrong or withheld."
    )


def _show_plan(found: Plan, asked: dict[str, Any]) -> None:
    """Print the plan for a reader."""
    from mapl.publish.meaning import beliefs_in_words

    errors = "errors" if asked["best_error"] else "lost to noise"
    for warning in found.warnings:
        click.echo(f"Warning: {warning}\n")
    show_table(
        ("mechanism", "teachers", "records each", "fits", "labels", errors, "how"),
        [
            (
                option.name,
                f"{option.n_teachers:,}" if option.n_teachers else "",
                "" if option.records_each is None else f"{option.records_each:,}",
                "yes" if option.feasible else "no",
                f"{option.expected_answers:,}",
                "" if option.expected_error is None else f"{option.expected_error:.1%}",
                option.why,
            )
            for option in found.options
        ],
    )
    click.echo(f"\n{found.reason}\n\n{found.assumed}\n")
    click.echo(
        f"epsilon {asked['epsilon']:g}: somebody's belief that one record is in the "
        f"data can rise {beliefs_in_words(asked['epsilon'])} at most, up to delta "
        f"{asked['delta']:g}. Where a person has several records, count persons, and "
        "learn with --groups."
    )
    if found.recommended is not None:
        click.echo(
            "\nThese are the settings that mapl learn takes for as many public points. "
            "How accurate its model will be depends on your data."
        )
