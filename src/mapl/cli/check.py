"""``mapl check`` and ``mapl clean``: for the holder of the records alone."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import rich_click as click

from mapl.cli.output import (
    FILE,
    csv_options,
    errors_in_one_line,
    json_option,
    show_result,
    show_table,
    split_at_commas,
)
from mapl.errors import ParameterError

_HOLDER_ONLY = (
    "This tells of private records. It is for their holder, not for publication."
)


@click.command()
@click.argument("private", type=FILE)
@click.option(
    "--schema",
    required=True,
    type=FILE,
    help="Types of the columns: a JSON file, or the public records.",
)
@click.option("--target", help="Column with the labels.")
@click.option("--classes", help="All labels that may occur, separated by commas.")
@click.option("--groups", help="Column that says whose record it is.")
@json_option
@errors_in_one_line
@csv_options
def check(
    private: Path,
    schema: Path,
    target: str | None,
    classes: str | None,
    groups: str | None,
    as_json: bool,
) -> None:
    """Tell the holder of PRIVATE what does not fit, and how often.

    Not for publication: the counts are private.
    """
    if bool(target) != bool(classes):
        raise ParameterError("--target and --classes must be given together.")
    from mapl.records.misfits import count_misfits

    types = _read_schema(schema, [name for name in (target, groups) if name])
    if target:
        types = replace(types, target=target, classes=tuple(split_at_commas(classes)))
    if groups:
        types = replace(types, groups=groups)
    show_misfits(count_misfits(private, types), ("missing", "does_not_fit"), as_json)


def show_misfits(
    found: dict[str, Any], counted: tuple[str, ...], as_json: bool
) -> None:
    """Show to the holder what does not fit; ``counted`` are columns of the table."""
    if as_json:
        click.echo(json.dumps({"not_for_publication": _HOLDER_ONLY, **found}))
        return
    click.echo(_HOLDER_ONLY)
    lines = {"records": found["records"], "unreadable_lines": found["unreadable_lines"]}
    show_result(lines, False)
    show_table(
        ("column", "kind", *(name.replace("_", " ") for name in counted)),
        [
            (name, one["kind"], *(str(one[key]) for key in counted))
            for name, one in found["columns"].items()
        ],
    )


def _read_schema(path: Path, without: list[str]) -> Any:
    from mapl.records.dictionary import Dictionary, Entry
    from mapl.records.files import read_public

    if path.suffix == ".json":
        return Dictionary.read(path)
    public = read_public(path, without="", categories=[])
    public = public.drop(columns=without, errors="ignore")
    numbers = set(public.select_dtypes("number").columns)
    kinds = {n: "number" if n in numbers else "text" for n in public.columns}
    return Dictionary({str(name): Entry(kind) for name, kind in kinds.items()})


@click.command()
@json_option
@errors_in_one_line
def clean(as_json: bool) -> None:
    """Remove what killed fits left on this machine: checkpoints, temporary folders,
    sorted records.

    Fits that are to go on train their teachers again; charges and answers stay in the
    ledger.
    """
    from mapl.ledger.secrecy import remove_checkpoints
    from mapl.scale.spool import remove_unused
    from mapl.teachers.isolation import remove_stale_folders

    removed = {"jobs": remove_checkpoints(), "folders": remove_stale_folders()}
    show_result(removed | {"spools": remove_unused()}, as_json)
