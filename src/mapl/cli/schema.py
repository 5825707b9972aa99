"""``mapl schema``: a data dictionary that people can read, review and commit."""

import json
from pathlib import Path

import rich_click as click

from mapl.cli.check import show_misfits
from mapl.cli.output import (
    FILE,
    NEW_FILE,
    csv_options,
    errors_in_one_line,
    json_option,
    show_table,
)
from mapl.errors import ParameterError


@click.group()
def schema() -> None:
    """Draft or check a data dictionary: then no public records are needed."""


@schema.command()
@click.argument("sample", type=FILE)
@click.option("--target", required=True, help="Column with the labels.")
@click.option("--groups", help="Column that says whose record it is.")
@click.option("--out", type=NEW_FILE, required=True, help="File to write, JSON.")
@click.option("--overwrite", is_flag=True, help="Replace the file if it exists.")
@errors_in_one_line
@csv_options
def draft(
    sample: Path, target: str, groups: str | None, out: Path, overwrite: bool
) -> None:
    """Draft a schema from SAMPLE, which must not be private.

    SAMPLE holds records that may be published (an earlier release, made-up ones), or is
    a data dictionary as CSV: columns name, kind, min, max, categories. Ranges of a
    sample are widened by half. Review every entry before you use it.
    """
    from mapl.records.drafting import draft as draft_of

    if out.exists() and not overwrite:
        raise ParameterError(f"{out} exists. Replace it with --overwrite.")
    found = draft_of(sample, target=target, groups=groups)
    out.write_text(
        json.dumps(found.to_json(), indent=2, ensure_ascii=False) + "\n",
        encoding="utf-8",
    )
    show_table(
        ("column", "kind", "range or categories", "where from"),
        [
            (name, e.kind, _limits(e.range, e.categories), e.source)
            for name, e in found.columns.items()
        ],
    )
    click.echo(
        f"\nWritten to {out}. Review this draft: ranges and lists must be what anybody "
        "may know,\nnot what private records hold; ranges may be far too wide. "
        "Classes: " + (", ".join(found.class_names) or "none listed, add them") + "."
    )


def _limits(limits: tuple[object, object] | None, categories: tuple[str, ...]) -> str:
    if limits is not None:
        return f"{limits[0]} to {limits[1]}"
    listed = ", ".join(categories[:4]) + (", ..." if len(categories) > 4 else "")
    return listed or "-"


@schema.command("check")
@click.argument("private", type=FILE)
@click.option("--schema", "path", required=True, type=FILE, help="The schema, JSON.")
@json_option
@errors_in_one_line
@csv_options
def check_file(private: Path, path: Path, as_json: bool) -> None:
    """Tell the holder of PRIVATE what does not fit the schema, and how often.

    Numbers outside their range are clipped, categories that are not listed count as
    missing. Not for publication: the counts are private.
    """
    from mapl.records.dictionary import Dictionary
    from mapl.records.misfits import count_misfits

    counted = ("missing", "does_not_fit", "out_of_range")
    show_misfits(count_misfits(private, Dictionary.read(path)), counted, as_json)
