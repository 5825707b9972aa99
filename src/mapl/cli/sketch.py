"""``mapl sketch``: what the columns look like, as made-up records."""

from pathlib import Path
from typing import Any

import rich_click as click

from mapl.cli.inputs import read_dictionary
from mapl.cli.output import (
    FILE,
    delta_option,
    errors_in_one_line,
    json_option,
    overwrite_option,
    show_result,
)
from mapl.errors import integer, positive, probability


@click.command()
@click.argument("private", type=FILE)
@click.option(
    "--schema", required=True, type=FILE, help="Data dictionary, see mapl schema draft."
)
@click.option("--target", help="Column with the labels, unless the schema names it.")
@click.option(
    "--groups",
    help="Column that says whose record it is; the guarantee is then for a person.",
)
@click.option("--epsilon", required=True, type=float, help="Privacy budget.")
@delta_option
@click.option("--rows", default=10_000, show_default=True, help="Made-up records.")
@click.option("--ledger", help="URL of the ledger that keeps the budget.")
@click.option("--dataset", help="Name of the data set in the ledger.")
@click.option("--seed", type=int, help="Seeds the made-up records, never noise.")
@click.option(
    "--on-invalid", default="error", show_default=True, help="As in mapl learn."
)
@click.option(
    "--out",
    required=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder for the three files.",
)
@overwrite_option
@json_option
@errors_in_one_line
def sketch(
    private: Path,
    schema: Path,
    target: str | None,
    groups: str | None,
    epsilon: float,
    delta: float,
    rows: int,
    ledger: str | None,
    dataset: str | None,
    seed: int | None,
    on_invalid: str,
    out: Path,
    overwrite: bool,
    as_json: bool,
) -> None:
    """Publish how the columns of PRIVATE look and go together, and made-up records.

    The records have the published counts of each column and correlations of columns,
    and no more. Writes points.parquet, certificate.json and report.html.
    """
    from mapl.methods.moments import sketch_records
    from mapl.publish.bundle import new_folder
    from mapl.publish.sketch_report import FILES, write_sketch

    budget: dict[str, Any] = {
        "epsilon": positive(epsilon=epsilon),
        "delta": probability(delta=delta),
    }
    data = read_dictionary(private, schema, target=target, groups=groups, drop=[])
    assert data.dictionary is not None
    names = data.dictionary.class_names
    records = data.read_records(names, on_invalid=on_invalid)
    with new_folder(out, FILES, overwrite=overwrite) as made:
        found = sketch_records(
            *(records.table, records.labels, data.dictionary),
            groups=records.groups,
            n_rows=integer(rows=rows, at_least=1),
            on_invalid=on_invalid,
            seed=seed,
            ledger=ledger,
            dataset=dataset,
            **budget,
        )
        signed = write_sketch(made, found)
    show_result(
        {
            "epsilon": signed["epsilon"],
            "delta": signed["delta"],
            "columns": len(found.sketch.shares),
            "made_up_records": rows,
            "guarantee": signed["guarantee"],
            "folder": str(out),
        },
        as_json,
    )
