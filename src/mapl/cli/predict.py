"""``mapl predict``: label records with a published model."""

from pathlib import Path

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
    from mapl.publish import certificate
    from mapl.publish.bundle import load_columns, predict_apart
    from mapl.records.files import check_column, read_table, write_table

    path = folder / "model.skops"
    signed = certificate.read(folder / "certificate.json")
    certificate.verify(signed, folder=folder)
    table = read_table(data)
    if not len(table):
        raise ParameterError(f"{data} has no records.")
    for name in load_columns(path):
        check_column(name, table.columns, data)
    found = predict_apart(path, table)
    labelled = table.assign(prediction=found["labels"])
    if proba:
        if "shares" not in found:
            raise ParameterError(f"The model in {folder} has no probabilities.")
        for name, shares in zip(found["classes"], found["shares"], strict=True):
            labelled[f"probability_{name}"] = shares
    write_table(labelled, out)
    show_result({"records": len(table), "file": str(out)}, as_json)
