"""The command line: parse, call, show.

Exit code 2 for bad input, 3 for a budget that is spent, 4 for a damaged ledger.
"""

import rich_click as click

from mapl import __version__
from mapl.cli import (
    certificate,
    check,
    demo,
    learn,
    ledger,
    panel,
    plan,
    predict,
    schema,
    sketch,
)


@click.group()
@click.version_option(__version__, prog_name="mapl")
def main() -> None:
    """Any classifier, made differentially private."""


for _command in (
    learn.learn,
    schema.schema,
    sketch.sketch,
    check.check,
    predict.predict,
    certificate.certificate,
    plan.plan,
    ledger.ledger,
    panel.panel,
    check.clean,
    demo.demo,
):
    main.add_command(_command)
