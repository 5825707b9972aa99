"""``mapl certificate``: check what a certificate claims."""

from pathlib import Path
from typing import Any

import rich_click as click

from mapl.cli.output import FILE, errors_in_one_line, json_option, show_result
from mapl.errors import CertificateError


@click.group()
def certificate() -> None:
    """Work with certificates."""


@certificate.command()
@click.argument("path", type=click.Path(exists=True, path_type=Path))
@click.option(
    "--model",
    type=FILE,
    help="The model, or points of a sketch; default: the one beside it.",
)
@click.option("--ledger", help="URL of the ledger that the certificate names.")
@json_option
@errors_in_one_line
def verify(path: Path, model: Path | None, ledger: str | None, as_json: bool) -> None:
    """Recompute epsilon from the events, and the digest of the model file.

    PATH is a certificate, or a folder with one. With --ledger, the rows that it names
    must be in the ledger with the same events.
    """
    from mapl.publish import certificate as certificates

    if path.is_dir():
        path = path / "certificate.json"
    for name in ("points.parquet", "model.skops"):  # of a sketch; of a model
        if model is None and path.with_name(name).exists():
            model = path.with_name(name)
    read = certificates.read(path)
    epsilon = certificates.verify(read, model=model)
    checked = "not checked" if ledger is None else _check_receipt(read, ledger)
    show_result(
        {
            "holds": True,
            "epsilon": epsilon,
            "delta": read["delta"],
            "model": str(model) if model else "not checked",
            "ledger": checked,
            "guarantee": read["guarantee"],
            "assumed": read["public"].get("assumed"),
        },
        as_json,
    )


def _check_receipt(read: dict[str, Any], url: str) -> str:
    """Check a certificate's receipt; return the ledger's URL without a password."""
    from mapl.ledger.ledger import Ledger
    from mapl.privacy.events import from_json

    receipt = read["ledger"]
    if not isinstance(receipt, dict):
        raise CertificateError(f"The certificate names no ledger: {receipt}.")
    ledger = Ledger(url)
    ledger.check_receipt(receipt, [from_json(event) for event in read["events"]])
    return ledger.url
