"""``mapl token``: who may ask a server."""

from __future__ import annotations

import rich_click as click

from mapl.cli.output import errors_in_one_line, json_option, show_result, show_table


@click.group()
def token() -> None:
    """Make and revoke the tokens that callers of mapl serve need."""


@token.command()
@click.option(
    "--scope",
    required=True,
    help="analyst (asks, sees budgets) or operator (sees logs and metrics, too).",
)
@click.option(
    "--dataset",
    "datasets",
    required=True,
    multiple=True,
    help="A data set that it is for; may be given again.",
)
@click.option("--name", help="What the audit log calls its owner; default: made up.")
@click.option("--expires", help="When: 12h, 30d, or a date; default: never.")
@json_option
@errors_in_one_line
def create(
    scope: str,
    datasets: tuple[str, ...],
    name: str | None,
    expires: str | None,
    as_json: bool,
) -> None:
    """Make a token and print it, last. It is shown this once; a digest is kept."""
    from mapl.service.tokens import Tokens

    tokens = Tokens()
    secret = tokens.create(
        scope=scope, datasets=list(datasets), name=name, expires=expires
    )
    made = tokens.all()[-1]
    shown = {
        "name": made.name,
        "scope": made.scope,
        "datasets": list(made.datasets),
        "expires": made.expires or "never",
    }
    if as_json:
        show_result({**shown, "token": secret}, as_json)
        return
    show_result(shown, as_json)
    click.echo(secret)


@token.command("list")
@json_option
@errors_in_one_line
def list_tokens(as_json: bool) -> None:
    """List the tokens that were made on this machine."""
    from mapl.service.tokens import Tokens

    tokens = Tokens().all()
    if as_json:
        listed = [
            {
                "name": one.name,
                "scope": one.scope,
                "datasets": list(one.datasets),
                "created": one.created,
                "expires": one.expires,
                "state": one.state,
            }
            for one in tokens
        ]
        show_result({"tokens": listed}, as_json)
        return
    show_table(
        ("name", "scope", "data sets", "created", "expires", "state"),
        [
            (
                one.name,
                one.scope,
                ", ".join(one.datasets),
                one.created,
                one.expires or "never",
                one.state,
            )
            for one in tokens
        ],
    )


@token.command()
@click.argument("name")
@json_option
@errors_in_one_line
def revoke(name: str, as_json: bool) -> None:
    """Let the token NAME be of no use, from now on and for good."""
    from mapl.service.tokens import Tokens

    Tokens().revoke(name)
    show_result({"revoked": name}, as_json)
