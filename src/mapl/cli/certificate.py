"""``mapl certificate``: check what a certificate claims."""

from pathlib import Path
from typing import Any

import rich_click as click

from mapl.cli.output import (
    FILE,
    NEW_FILE,
    errors_in_one_line,
    json_option,
    show_result,
)
from mapl.errors import CertificateError


@click.group()
def certificate() -> None:
    """Work with certificates."""


@certificate.command()
@click.argument("path", type=click.Path(exists=True, path_type=Path))
@click.option(
    "--model",
    type=FILE,
    help="The model, or points of a sketch, where it is not beside the certificate.",
)
@click.option(
    "--public-key", type=FILE, help="Ed25519 key in PEM that must have signed it."
)
@click.option("--ledger", help="URL of the ledger that the certificate names.")
@json_option
@errors_in_one_line
def verify(
    path: Path,
    model: Path | None,
    public_key: Path | None,
    ledger: str | None,
    as_json: bool,
) -> None:
    """Recompute epsilon from the events, and the digests of the files beside it.

    PATH is a folder, or a certificate in one. With --ledger, the rows that it names
    must be in the ledger with the same events; with --public-key, it must be signed by
    that key. A certificate that stands alone is checked without its files.
    """
    from mapl.publish import certificate as certificates

    folder: Path | None = path if path.is_dir() else None
    if folder is not None:
        path = path / "certificate.json"
    read = certificates.read(path)
    if folder is None and model is None and certificates.beside(read, path):
        folder = path.parent
    key = None if public_key is None else public_key.read_bytes()
    epsilon = certificates.verify(
        read, folder=None if model else folder, model=model, public_key=key
    )
    checked = "not checked" if ledger is None else _check_receipt(read, ledger)
    files = str(model or folder or "not checked")
    show_result(
        {
            "holds": True,
            "epsilon": epsilon,
            "delta": read["delta"],
            "files": files,
            "not_covered": []
            if folder is None
            else certificates.not_covered(read, folder),
            "ledger": checked,
            "guarantee": read["guarantee"],
            "assumed": read["public"].get("assumed"),
            "proves": certificates.standing(read, checked_key=key is not None),
        },
        as_json,
    )


@certificate.command()
@click.argument("path", type=NEW_FILE)
@errors_in_one_line
def key(path: Path) -> None:
    """Make a key for mapl learn --sign: PATH for you alone, PATH.pub for everybody."""
    from mapl.publish.signing import fingerprint, new_key

    shown = new_key(path)
    own = fingerprint({"public_key": Path(shown).read_text()})
    show_result({"private_key": str(path), "public_key": str(shown), "key": own}, False)


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
