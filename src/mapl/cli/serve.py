"""``mapl serve``: panels and published models over HTTP."""

from __future__ import annotations

from pathlib import Path

import rich_click as click

from mapl.cli.output import FILE, errors_in_one_line
from mapl.errors import ParameterError

_FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)


@click.command()
@click.option(
    "--panel", "panels", multiple=True, type=_FOLDER, help="A panel; may be repeated."
)
@click.option(
    "--model",
    "models",
    multiple=True,
    type=_FOLDER,
    help="A published model; may be repeated.",
)
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="Where to listen. Beyond this machine, callers need tokens.",
)
@click.option("--port", default=8000, show_default=True, help="0 for any that is free.")
@click.option(
    "--workers",
    default=1,
    show_default=True,
    help="Processes. They take turns at a panel: more help published models.",
)
@click.option("--ssl-certfile", type=FILE, help="Certificate chain for TLS, PEM.")
@click.option("--ssl-keyfile", type=FILE, help="Its private key, PEM.")
@click.option(
    "--max-body", default=10_000_000, show_default=True, help="Bytes of a request."
)
@click.option(
    "--max-rows", default=10_000, show_default=True, help="Records of a request."
)
@click.option(
    "--rate",
    default=1000.0,
    show_default=True,
    help="Requests a second for each caller and worker.",
)
@errors_in_one_line
def serve(
    panels: tuple[Path, ...],
    models: tuple[Path, ...],
    host: str,
    port: int,
    workers: int,
    ssl_certfile: Path | None,
    ssl_keyfile: Path | None,
    max_body: int,
    max_rows: int,
    rate: float,
) -> None:
    """Answer the Open Inference Protocol, and show a page with the budgets.

    Panels and models are asked by the names of their folders. Logs go to stderr, one
    JSON object a line.
    """
    try:
        from mapl.service.core import Limits
        from mapl.service.server import Settings
        from mapl.service.server import serve as run
    except ImportError as error:
        raise ParameterError(
            f"mapl serve needs {error.name}: pip install 'mapl[serve]'"
        ) from None
    run(
        Settings(
            panels=[str(folder) for folder in panels],
            models=[str(folder) for folder in models],
            host=host,
            port=port,
            workers=workers,
            ssl_certfile=None if ssl_certfile is None else str(ssl_certfile),
            ssl_keyfile=None if ssl_keyfile is None else str(ssl_keyfile),
            limits=Limits(most_bytes=max_body, most_rows=max_rows, rate=rate),
        )
    )
