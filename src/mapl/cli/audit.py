"""``mapl audit``: try to refute what mapl claims."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import rich_click as click

from mapl.cli.output import (
    NEW_FILE,
    check_ending,
    delta_option,
    errors_in_one_line,
    json_option,
)
from mapl.errors import integer, one_of, positive, probability

REFUTED = 5  # exit code
_LIMITS = (
    "An audit cannot prove privacy: it tries one canary, which is the worst that one "
    "unit may be for this mechanism. The proofs are in docs/proofs."
)


@click.command()
@click.option(
    "--mechanism",
    default="all",
    show_default=True,
    help="moments, dissent, soft-dissent, sparse-vector, stable-release, noisy-max, "
    "confident-max, count, or all.",
)
@click.option(
    "--epsilon", default=1.0, show_default=True, help="What it is opened for."
)
@delta_option
@click.option(
    "--draws",
    default=10_000,
    show_default=True,
    help="Draws with the canary, and as many without.",
)
@click.option(
    "--confidence",
    default=0.999,
    show_default=True,
    help="That a claim which holds is not refuted.",
)
@click.option("--plot", type=NEW_FILE, help="Draw it into this file: PNG, SVG or PDF.")
@json_option
@errors_in_one_line
def audit(
    mechanism: str,
    epsilon: float,
    delta: float,
    draws: int,
    confidence: float,
    plot: Path | None,
    as_json: bool,
) -> None:
    """Draw a mechanism again and again, and try to refute its claim.

    With a canary that moves the output as far as one unit may, and without it: how well
    the two can be told apart is compared with the exact curve that is claimed. Exit
    code 5 if a claim is refuted.
    """
    if plot is not None:
        check_ending(plot, ".png", ".svg", ".pdf", option="--plot")
    from mapl.audit.mechanisms import MECHANISMS
    from mapl.audit.run import audit_mechanism
    from mapl.cli.plots import draw_audits

    one_of(*MECHANISMS, "all", mechanism=mechanism)
    names = list(MECHANISMS) if mechanism == "all" else [mechanism]
    positive(epsilon=epsilon)
    probability(delta=delta)
    probability(confidence=confidence)
    integer(draws=draws, at_least=100)
    found = {}
    for name in names:
        claim, verdict = audit_mechanism(
            name, epsilon=epsilon, delta=delta, draws=draws, confidence=confidence
        )
        found[name] = (claim, verdict)
        if not as_json:
            click.echo(f"{name:14} {verdict.sentence()}")
    if plot is not None:
        draw_audits(found, plot)
    if as_json:
        shown = [{"mechanism": n, **v.as_json()} for n, (_, v) in found.items()]
        click.echo(json.dumps({"confidence": confidence, "audits": shown}))
    else:
        click.echo(_LIMITS, err=True)
    if any(verdict.refuted for _, verdict in found.values()):
        sys.exit(REFUTED)
