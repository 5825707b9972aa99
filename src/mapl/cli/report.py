"""``mapl report``: show a published folder, or check it in a script."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import rich_click as click

from mapl.cli.output import FILE, NEW_FILE, errors_in_one_line, json_option
from mapl.errors import one_of

NOT_MET = 1  # exit code
_FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)
_FORMS = ("html", "print", "json", "markdown")


@click.group()
def report() -> None:
    """Show or check the report of a published folder."""


@report.command()
@click.argument("folder", type=_FOLDER)
@click.option(
    "--format",
    "form",
    default="markdown",
    show_default=True,
    help="html, print (a page for paper), json or markdown (a model card).",
)
@click.option("--out", type=NEW_FILE, help="File to write; the terminal if left out.")
@errors_in_one_line
def show(folder: Path, form: str, out: Path | None) -> None:
    """Verify a published folder, and write its report in one of four forms."""
    one_of(*_FORMS, format=form)
    from mapl.publish.report import Report

    found = Report.read(folder)
    text = {
        "html": found.html,
        "print": lambda: found.html(printed=True),
        "json": found.to_json,
        "markdown": found.card,
    }[form]()
    if out is None:
        click.echo(text)
    else:
        out.write_text(text, encoding="utf-8")


@report.command()
@click.argument("folder", type=_FOLDER)
@click.option(
    "--that",
    "wanted",
    multiple=True,
    required=True,
    help="A condition, such as 'epsilon <= 1' or 'epsilon(1e-6) <= 2'; may be given "
    "several times. Fields: epsilon, delta, unit, privacy, mechanism, "
    "classes_declared, teachers, public_points, ledger, key, accuracy.",
)
@click.option("--public-key", type=FILE, help="Ed25519 key that must have signed it.")
@json_option
@errors_in_one_line
def check(
    folder: Path, wanted: tuple[str, ...], public_key: Path | None, as_json: bool
) -> None:
    """Verify a published folder, and check that conditions hold.

    Exit code 0 if all hold, 1 if one does not, 2 if the folder is not what was
    certified, or holds something else, too.
    """
    from mapl.errors import CertificateError
    from mapl.publish.certificate import not_covered
    from mapl.publish.conditions import Condition, cautions, events_of, fields_of
    from mapl.publish.loading import verified
    from mapl.publish.report import Report

    conditions = [Condition.parse(text) for text in wanted]
    certificate = verified(folder, public_key=public_key)
    if strange := not_covered(certificate, folder):
        raise CertificateError(
            f"{folder} holds {strange[0]!r}, which was not certified. What holds of "
            "the certificate says nothing about it: remove it."
        )
    names = [condition.name for condition in conditions]
    said = cautions(certificate, checked_key=public_key is not None, asked_for=names)
    score = None
    if "accuracy" in names:
        score = Report.certified_by(certificate, folder).score
    fields, events = fields_of(certificate, score), events_of(certificate)
    found = [
        {
            "condition": each.text,
            "holds": each.holds(fields, events),
            "found": each.found(fields, events),
        }
        for each in conditions
    ]
    holds = all(one["holds"] for one in found)
    if as_json:
        click.echo(json.dumps({"holds": holds, "conditions": found, "cautions": said}))
    else:
        for one in found:
            how = "holds" if one["holds"] else "DOES NOT HOLD"
            click.echo(f"{how}: {one['condition']} ({_shown(one['found'])})")
    for sentence in said:
        click.echo(sentence, err=True)
    if not holds:
        sys.exit(NOT_MET)


def _shown(value: object) -> str:
    """Say what a report has."""
    return "the report has none" if value is None else f"it is {value}"
