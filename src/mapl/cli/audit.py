"""``mapl audit``: try to refute what mapl claims."""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path
from typing import Any

import rich_click as click

from mapl.cli.output import (
    FILE,
    NEW_FILE,
    check_ending,
    csv_options,
    delta_option,
    errors_in_one_line,
    json_option,
    split_at_commas,
)
from mapl.errors import ParameterError, integer, one_of, positive, probability

REFUTED = 5  # exit code
_LIMITS = (
    "An audit cannot prove privacy: it tries {canaries}, and sees what it sees in so "
    "many draws. The proofs are in docs/proofs."
)
_PRIVATE = "These figures depend on private records: keep them to yourself."
_DRAWS = {"mechanism": 10_000, "data": 2000}


@click.command()
@click.option(
    "--mechanism",
    help="moments, sketch, dissent, soft-dissent, sparse-vector, stable-release, "
    "noisy-max, confident-max, count, or all (the default, without --data).",
)
@click.option(
    "--data",
    type=FILE,
    help="Private records: audit a whole fit of yours, with canaries among them. "
    "Nothing is charged or published.",
)
@click.option("--target", help="Column with the labels, unless the schema names it.")
@click.option("--schema", type=FILE, help="Data dictionary, as for mapl learn.")
@click.option("--public", "pool", type=FILE, help="Public records, as for mapl learn.")
@click.option("--classes", help="All labels that may occur, separated by commas.")
@click.option("--groups", help="Column that says whose record it is.")
@click.option("--drop", help="Columns to leave out, separated by commas.")
@click.option("--estimator", help="What teachers are, as for mapl learn.")
@click.option("--method", default="auto", help="As for mapl learn.", show_default=True)
@click.option("--teachers", default="auto", help="As for mapl learn.")
@click.option(
    "--canary",
    default="all",
    show_default=True,
    help="With --data: mislabelled, duplicate, outlier, memorable, or all.",
)
@click.option(
    "--fits",
    type=int,
    help="With --data: so many whole fits with the canary and as many without, instead "
    "of drawing noise alone again. Slow; finds gross faults only.",
)
@click.option(
    "--one-run",
    type=int,
    help="With --data: one fit with about half of so many canaries, and a guess which "
    "were there. A smoke test of seconds.",
)
@click.option(
    "--epsilon", default=1.0, show_default=True, help="The budget that is audited."
)
@delta_option
@click.option(
    "--draws",
    type=int,
    help="Draws with the canary, and as many without.  [default: 10000; with --data "
    "2000]",
)
@click.option(
    "--confidence",
    default=0.999,
    show_default=True,
    help="That a claim which holds is not refuted.",
)
@click.option("--seed", type=int, help="Seeds teachers and canaries, never noise.")
@click.option("--plot", type=NEW_FILE, help="Draw it into this file: PNG, SVG or PDF.")
@json_option
@errors_in_one_line
@csv_options
def audit(
    mechanism: str | None,
    data: Path | None,
    epsilon: float,
    delta: float,
    draws: int | None,
    confidence: float,
    plot: Path | None,
    as_json: bool,
    **fit: Any,
) -> None:
    """Draw a mechanism, or a whole fit, again and again: try to refute its claim.

    With a canary that moves the output and without it: how well the two can be
    distinguished is compared with the exact curve that is claimed. Exit code 5 if a
    claim is refuted.
    """
    if plot is not None:
        check_ending(plot, ".png", ".svg", ".pdf", option="--plot")
    _check_options(data, mechanism, fit)
    numbers = {
        "epsilon": positive(epsilon=epsilon),
        "delta": probability(delta=delta),
        "confidence": probability(confidence=confidence),
        "draws": _DRAWS["mechanism" if data is None else "data"]
        if draws is None
        else integer(draws=draws, at_least=100),
    }
    if data is None:
        found = _audit_mechanisms(mechanism or "all", numbers, as_json)
    else:
        found = _audit_data(data, fit, numbers, plot, as_json)
    if plot is not None:
        from mapl.cli.plots import draw_audits

        draw_audits(found, plot)
    if as_json:
        what = "mechanism" if data is None else "canary"
        shown = [{what: n, **v.as_json()} for n, (_, v) in found.items()]
        click.echo(json.dumps({"confidence": confidence, "audits": shown}))
    else:
        _say_limits(data)
    if any(verdict.refuted for _, verdict in found.values()):
        sys.exit(REFUTED)


def _check_options(data: Path | None, mechanism: str | None, fit: Any) -> None:
    """Refuse options that do not go together."""
    if data is not None and mechanism is not None:
        raise ParameterError("Take --mechanism or --data, not both.")
    given = [name for name, value in fit.items() if value not in (None, "auto", "all")]
    if data is None and given:
        name = {"pool": "public"}.get(given[0], given[0]).replace("_", "-")
        raise ParameterError(f"--{name} needs --data: the records of a fit.")


def _say_limits(data: Path | None) -> None:
    """Say what an audit can and cannot say."""
    canaries = "a few canaries" if data else "one canary, the worst for each mechanism"
    click.echo(_LIMITS.format(canaries=canaries), err=True)
    if data is not None:
        click.echo(_PRIVATE, err=True)


def _audit_mechanisms(name: str, numbers: Any, as_json: bool) -> dict[str, Any]:
    """Audit one mechanism or all."""
    from mapl.audit.mechanisms import MECHANISMS
    from mapl.audit.run import audit_mechanism

    one_of(*MECHANISMS, "all", mechanism=name)
    found = {}
    for each in list(MECHANISMS) if name == "all" else [name]:
        found[each] = audit_mechanism(each, **numbers)
        _say(each, found[each][1], as_json)
    return found


def _say(name: str, verdict: Any, as_json: bool) -> None:
    if not as_json:
        click.echo(f"{name:14} {verdict.sentence()}")


def _audit_data(
    path: Path, fit: dict[str, Any], numbers: Any, plot: Path | None, as_json: bool
) -> dict[str, Any]:
    """Audit a fit to a file, with each canary."""
    from mapl.audit.canaries import CANARIES
    from mapl.audit.fits import audit_one_run
    from mapl.audit.run import audit_fit

    one_of(*CANARIES, "all", canary=fit["canary"])
    fits, one_run = fit["fits"], fit["one_run"]
    if fits is not None and one_run is not None:
        raise ParameterError("Take --fits or --one-run, not both.")
    if one_run is not None and plot is not None:
        raise ParameterError("--one-run has no curve: leave --plot out.")
    if fits is not None:
        numbers["draws"] = integer(fits=fits, at_least=20)
    if one_run is not None:
        integer(one_run=one_run, at_least=20)
    model, X, y, more = _read(path, fit, numbers)
    rest = {name: numbers[name] for name in ("draws", "confidence")}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a fit that is not published
        if one_run is not None:
            how = {"canaries": one_run, "confidence": numbers["confidence"]}
            verdict = audit_one_run(model, X, y, **how, **more)
            _say("one run", verdict, as_json)
            return {"one run": (None, verdict)}
        found = {}
        names = list(CANARIES) if fit["canary"] == "all" else [fit["canary"]]
        for name in names:
            how = {"canary": name, "whole": fits is not None, "seed": fit["seed"] or 0}
            found[name] = audit_fit(model, X, y, **how, **rest, **more)
            _say(name, found[name][1], as_json)
    return found


def _read(path: Path, fit: dict[str, Any], numbers: Any) -> tuple[Any, ...]:
    """Return a classifier, records, labels, and what else it is fitted with."""
    from mapl.cli.inputs import read_public_side
    from mapl.cli.learn import estimator_by_name, teachers_by_name
    from mapl.cli.prepared import Prepared
    from mapl.estimator import PrivateClassifier

    columns = {"target": fit["target"], "groups": fit["groups"], "categories": []}
    columns["drop"] = split_at_commas(fit["drop"])
    side = read_public_side(path, fit["schema"], fit["pool"], **columns)
    declared = [] if side.dictionary is None else side.dictionary.class_names
    names = split_at_commas(fit["classes"]) or declared
    if not names:
        raise ParameterError("--classes must list all labels that may occur.")
    name = fit["estimator"]
    if name is None and fit["method"] in ("votes", "both"):
        name = "logistic"
    model = PrivateClassifier(
        None if name is None else estimator_by_name(name),
        epsilon=numbers["epsilon"],
        delta=numbers["delta"],
        method=fit["method"],
        n_teachers=teachers_by_name(fit["teachers"]),
        classes=names,
        on_invalid="drop",
        random_state=fit["seed"] or 0,
    )
    prepared = Prepared.of(side, model, streamed=True)
    records = side.read_records(names, on_invalid="drop")
    more = {"X_public": prepared.points, "groups": records.groups}
    return model, records.table.data, records.labels, more
