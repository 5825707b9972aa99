"""The command line: parse, call, show.

Exit code 1 for a condition that a report does not meet, 2 for bad input, 3 for a budget
that is spent, 4 for a damaged ledger, 5 for a claim that an audit refutes.
"""

import os
import sys
from typing import Any

import rich_click as click

from mapl import __version__
from mapl.cli import (
    audit,
    certificate,
    check,
    demo,
    learn,
    ledger,
    panel,
    plan,
    predict,
    report,
    schema,
    serve,
    sketch,
    token,
)
from mapl.interpreter import SAFE_PATH


class _Main(click.RichGroup):
    """All commands; --debug may stand anywhere."""

    def main(self, args: Any = None, *more: Any, **kwargs: Any) -> Any:
        """Run a command."""
        given = list(sys.argv[1:] if args is None else args)
        if "--debug" in given:
            given.remove("--debug")
            os.environ["MAPL_DEBUG"] = "1"
        os.environ |= SAFE_PATH  # whatever a library starts, too
        return super().main(given, *more, **kwargs)


@click.group(cls=_Main)
@click.version_option(__version__, prog_name="mapl")
def main() -> None:
    """Any classifier, made differentially private.

    --debug, anywhere, shows the traceback of an unexpected error; it may hold private
    values.
    """


for _command in (
    learn.learn,
    schema.schema,
    sketch.sketch,
    check.check,
    predict.predict,
    certificate.certificate,
    report.report,
    plan.plan,
    audit.audit,
    ledger.ledger,
    panel.panel,
    serve.serve,
    token.token,
    check.clean,
    demo.demo,
):
    main.add_command(_command)
