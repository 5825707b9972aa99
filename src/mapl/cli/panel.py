"""``mapl panel``: teachers that stay, and answer queries while a budget lasts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import rich_click as click

from mapl.cli.inputs import read_public_side
from mapl.cli.output import (
    FILE,
    NEW_FILE,
    check_ending,
    csv_options,
    delta_option,
    errors_in_one_line,
    json_option,
    show_result,
    show_table,
    split_at_commas,
)
from mapl.errors import ParameterError, integer

_FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)


@click.group()
def panel() -> None:
    """Train teachers once, open them under a budget, and ask them for labels."""


@panel.command()
@click.argument("private", type=FILE)
@click.option("--target", required=True, help="Column with the labels.")
@click.option(
    "--classes", required=True, help="All labels that may occur, separated by commas."
)
@click.option(
    "--public",
    "pool",
    required=True,
    type=FILE,
    help="Records without labels that are not sensitive: they decide the types of "
    "columns.",
)
@click.option("--teachers", required=True, type=int, help="Chunks of the records.")
@click.option(
    "--estimator", default="logistic", show_default=True, help="As for learn."
)
@click.option("--groups", help="Column that says whose record it is.")
@click.option("--drop", help="Columns to leave out, separated by commas.")
@click.option("--ledger", required=True, help="URL of the ledger.")
@click.option("--dataset", required=True, help="Name of the data set in the ledger.")
@click.option(
    "--panel",
    "folder",
    required=True,
    type=click.Path(path_type=Path),
    help="Folder to make.",
)
@click.option("--on-invalid", default="error", show_default=True, help="As for learn.")
@json_option
@errors_in_one_line
@csv_options
def train(
    private: Path,
    target: str,
    classes: str,
    pool: Path,
    teachers: int,
    estimator: str,
    groups: str | None,
    drop: str | None,
    ledger: str,
    dataset: str,
    folder: Path,
    on_invalid: str,
    as_json: bool,
) -> None:
    """Train teachers on the records in PRIVATE and keep them, encrypted.

    This costs nothing: nothing leaves the machine. The panel is bound to its data set.
    """
    from mapl.cli.learn import estimator_by_name
    from mapl.online.training import train_panel
    from mapl.records.labels import classes_and_codes
    from mapl.records.private import private_records

    columns: dict[str, Any] = {"target": target, "groups": groups, "categories": []}
    columns["drop"] = split_at_commas(drop)
    data = read_public_side(private, None, pool, **columns)
    names = split_at_commas(classes)
    data.show_columns()
    data.say_what_is_left_out()
    records = data.read_records(names, on_invalid=on_invalid)
    labels, codes = classes_and_codes(records.labels, names)
    made = train_panel(
        folder,
        estimator_by_name(estimator),
        private_records(
            records.table,
            codes,
            records.groups,
            takes_missing=True,  # the encoder fills gaps
            on_invalid=on_invalid,
        ),
        public=data.schema.cast(data.public),
        schema=data.schema,
        classes=labels,
        n_teachers=integer(teachers=teachers, at_least=1),
        ledger=ledger,
        dataset=dataset,
    )
    show_result({"panel": str(folder), **made.show()}, as_json)


@panel.command("open")
@click.argument("folder", type=_FOLDER)
@click.option(
    "--mechanism",
    default="sparse-vector",
    show_default=True,
    help="sparse-vector pays for answers that are withheld, dissent for teachers that "
    "disagree.",
)
@click.option("--epsilon", required=True, type=float, help="What all answers may cost.")
@delta_option
@click.option(
    "--cutoff",
    default=20,
    show_default=True,
    help="How many answers a sparse vector may withhold.",
)
@click.option(
    "--queries",
    default=1000,
    show_default=True,
    help="About how many queries dissent is planned for.",
)
@click.option(
    "--guess",
    type=_FOLDER,
    help="A published model, for dissent: teachers that agree with it pay nothing.",
)
@json_option
@errors_in_one_line
def open_panel(folder: Path, as_json: bool, **params: Any) -> None:
    """Pay for a mechanism from the ledger; from then on the panel in FOLDER answers."""
    from mapl.online.panel import Panel

    found = Panel.load(folder)
    found.open(**params)
    show_result(found.show(), as_json)


@panel.command()
@click.argument("folder", type=_FOLDER)
@json_option
@errors_in_one_line
def show(folder: Path, as_json: bool) -> None:
    """Show what may be known of the panel in FOLDER."""
    from mapl.online.panel import Panel

    show_result(Panel.load(folder).show(), as_json)


@panel.command()
@click.argument("folder", type=_FOLDER)
@json_option
@errors_in_one_line
def close(folder: Path, as_json: bool) -> None:
    """Let the panel in FOLDER answer nothing more; nothing is paid back."""
    from mapl.online.panel import Panel

    found = Panel.load(folder)
    found.close()
    show_result(found.show(), as_json)


@panel.command("list")
@click.argument("parent", type=_FOLDER)
@errors_in_one_line
def list_panels(parent: Path) -> None:
    """List the panels in the folders of PARENT."""
    from mapl.online.panel import Panel

    found = [Panel.load(path.parent) for path in sorted(parent.glob("*/panel.json"))]
    show_table(
        ("panel", "data set", "teachers", "open"),
        [
            (
                one.folder.name,
                str(one.public["dataset"]),
                str(one.public["n_teachers"]),
                "yes" if one.is_open else "no",
            )
            for one in found
        ],
    )


@panel.command()
@click.argument("folder", type=_FOLDER)
@click.argument("data", type=FILE)
@click.option("--out", required=True, type=NEW_FILE, help="File for the labels.")
@click.option(
    "--id",
    "name",
    help="Names the request: the same again returns the same answers, for nothing.",
)
@json_option
@errors_in_one_line
@csv_options
def ask(folder: Path, data: Path, out: Path, name: str | None, as_json: bool) -> None:
    """Ask the panel in FOLDER about the records in DATA.

    Writes them with a column "label", empty where the panel abstains.
    """
    check_ending(out, ".csv", ".parquet", ".pq")
    from mapl.online.panel import Panel
    from mapl.records.files import check_column, read_table, write_table

    found, table = Panel.load(folder), read_table(data)
    if not len(table):
        raise ParameterError(f"{data} has no records.")
    for column in found.public["columns"]:
        check_column(column, table.columns, data)
    answers = found.ask(table, id=name)
    write_table(table.assign(label=answers.labels), out)
    answered = len(table) - sum(answers.abstained)
    counts = {"records": len(table), "labelled": answered, "file": str(out)}
    show_result(counts, as_json)
