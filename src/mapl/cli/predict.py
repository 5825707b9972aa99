"""``mapl predict``: label records with a published model."""

from pathlib import Path
from typing import Any

import rich_click as click

from mapl.cli.output import (
    FILE,
    NEW_FILE,
    check_ending,
    csv_options,
    errors_in_one_line,
    json_option,
    show_result,
)
from mapl.errors import ParameterError


@click.command()
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.argument("data", type=FILE)
@click.option(
    "--out", required=True, type=NEW_FILE, help="File for the labels: CSV or Parquet."
)
@click.option(
    "--proba", is_flag=True, help="Add the probability of each class, a column each."
)
@json_option
@errors_in_one_line
@csv_options
def predict(
    folder: Path,
    data: Path,
    out: Path,
    proba: bool,
    as_json: bool,
) -> None:
    """Label the records in DATA with the model in FOLDER.

    The model is checked against its certificate first. Writes the records with a column
    "prediction", as CSV or Parquet by the ending of --out; with --proba, a column
    "probability_CLASS" for each class.
    """
    check_ending(out, ".csv", ".parquet", ".pq")
    from mapl.progress import Progress
    from mapl.publish.apart import ModelApart
    from mapl.publish.bundle import MODEL
    from mapl.publish.certificate import content
    from mapl.publish.loading import verified
    from mapl.records.files import check_column
    from mapl.records.streams import TableWriter, table_blocks

    if out.exists() and out.resolve() == data.resolve():
        raise ParameterError("--out must be another file than the records.")
    data_of_model = content(verified(folder), folder, MODEL)
    with (
        ModelApart(folder / MODEL, data_of_model) as model,
        TableWriter(out) as written,
        Progress("Predicting", 0) as progress,
    ):
        for table in table_blocks(data):
            for name in model.columns:
                check_column(name, table.columns, data)
            if len(table):
                written.write(_labelled(model.predict(table), table, folder, proba))
                progress.advance(1, rows=len(table))
    if not written.n_rows:
        raise ParameterError(f"{data} has no records.")
    show_result({"records": written.n_rows, "file": str(out)}, as_json)


def _labelled(found: dict[str, Any], table: Any, folder: Path, proba: bool) -> Any:
    """Return records with what a model says of them."""
    if "prediction" in table.columns:
        raise ParameterError(
            "The records have a column 'prediction', the name of what is added. "
            "Rename it."
        )
    labelled = table.assign(prediction=found["labels"])
    if proba:
        if "shares" not in found:
            raise ParameterError(f"The model in {folder} has no probabilities.")
        for name, shares in zip(found["classes"], found["shares"], strict=True):
            labelled[f"probability_{name}"] = shares
    return labelled
