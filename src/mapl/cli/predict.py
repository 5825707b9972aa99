"""``mapl predict``: label records with a published model."""

from pathlib import Path

import rich_click as click

from mapl.cli.output import (
    FILE,
    NEW_FILE,
    check_ending,
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
@json_option
@errors_in_one_line
def predict(folder: Path, data: Path, out: Path, as_json: bool) -> None:
    """Label the records in DATA with the model in FOLDER.

    The model is checked against its certificate first. Writes the records with a column
    "prediction", as CSV or Parquet by the ending of --out.
    """
    check_ending(out, ".csv", ".parquet", ".pq")
    from mapl.publish import certificate
    from mapl.publish.bundle import load_columns, predict_apart
    from mapl.records.files import check_column, read_table, write_table

    path = folder / "model.skops"
    signed = certificate.read(folder / "certificate.json")
    certificate.verify(signed, model=path)
    table = read_table(data)
    if not len(table):
        raise ParameterError(f"{data} has no records.")
    for name in load_columns(path):
        check_column(name, table.columns, data)
    write_table(table.assign(prediction=predict_apart(path, table)), out)
    show_result({"records": len(table), "file": str(out)}, as_json)
