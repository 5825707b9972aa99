"""``mapl ledger``: budgets that outlive every process."""

import json
from pathlib import Path

import rich_click as click

from mapl.cli.output import (
    NEW_FILE,
    check_ending,
    errors_in_one_line,
    json_option,
    show_result,
    show_table,
)


@click.group()
def ledger() -> None:
    """Keep budgets that outlive every process: sqlite:///FILE or postgresql://..."""


@ledger.command()
@click.argument("url")
@click.option("--dataset", required=True, help="Name of the data set.")
@click.option("--epsilon", required=True, type=float, help="All that it may cost.")
@click.option("--delta", required=True, type=float, help="For all releases together.")
@click.option(
    "--rule",
    default="basic",
    show_default=True,
    help="How prices add up: basic (epsilons and deltas), or gaussian (for many "
    "releases: k equal ones cost about sqrt(k) times one).",
)
@json_option
@errors_in_one_line
def create(
    url: str, dataset: str, epsilon: float, delta: float, rule: str, as_json: bool
) -> None:
    """Set the budget of a data set, once and for all; creates the ledger if needed."""
    from mapl.ledger.ledger import Ledger

    ledger = Ledger(url, create=True)
    ledger.create(dataset, epsilon=epsilon, delta=delta, rule=rule)
    show_result(vars(ledger.balance(dataset)) | {"ledger": ledger.url}, as_json)


@ledger.command()
@click.argument("url")
@click.option("--plot", type=NEW_FILE, help="Draw it into this file: PNG, SVG or PDF.")
@json_option
@errors_in_one_line
def show(url: str, plot: Path | None, as_json: bool) -> None:
    """Show what each data set may cost, and what is spent."""
    from mapl.cli.plots import draw_balances
    from mapl.ledger.ledger import Ledger

    ledger = Ledger(url)
    balances = [vars(balance) for balance in ledger.balances()]
    for balance in balances:
        left = balance["epsilon_limit"] - balance["epsilon_spent"]
        balance["epsilon_left"] = max(0.0, left)
    if plot is not None:
        draw_balances(balances, list(ledger.history()), plot)
    if as_json:
        click.echo(json.dumps({"ledger": ledger.url, "datasets": balances}))
        return
    show_table(
        (
            *("data set", "rule", "epsilon spent", "of", "left"),
            *("delta spent", "of", "releases"),
        ),
        [
            (
                b["name"],
                b["rule"],
                f"{b['epsilon_spent']:.4g}",
                f"{b['epsilon_limit']:g}",
                f"{b['epsilon_left']:.4g}",
                f"{b['delta_spent']:.3g}",
                f"{b['delta_limit']:g}",
                str(b["releases"]),
            )
            for b in balances
        ],
    )


@ledger.command()
@click.argument("url")
@click.option("--dataset", help="Show this data set only.")
@json_option
@errors_in_one_line
def history(url: str, dataset: str | None, as_json: bool) -> None:
    """Show who spent what on what."""
    from mapl.ledger.ledger import Ledger

    ledger = Ledger(url)
    if dataset is not None:
        ledger.balance(dataset)
    rows = list(ledger.history(dataset))
    if as_json:
        click.echo(json.dumps({"ledger": ledger.url, "rows": rows}))
        return
    show_table(
        ("row", "at", "who", "data set", "loss", "delta", "what"),
        [
            (
                str(row["row"]),
                row["at"],
                row["who"],
                row["dataset"],
                f"{row['loss']:.4g}",
                f"{row['delta']:.3g}",
                row.get("what", f"budget {row.get('epsilon_limit', 0):g}"),
            )
            for row in rows
            if row["kind"] in ("create", "charge")
        ],
    )


@ledger.command()
@click.argument("url")
@json_option
@errors_in_one_line
def verify(url: str, as_json: bool) -> None:
    """Read every row and check the whole chain; exit code 4 if it does not hold."""
    from mapl.ledger.ledger import Ledger

    show_result({"holds": True, "rows": Ledger(url).verify()}, as_json)


@ledger.command()
@click.argument("url")
@click.option(
    "--out", required=True, type=NEW_FILE, help="A file: .csv, .parquet or .json."
)
@json_option
@errors_in_one_line
def export(url: str, out: Path, as_json: bool) -> None:
    """Write the history to a file: public values only, no state of mechanisms."""
    check_ending(out, ".csv", ".parquet", ".json")
    import pandas as pd

    from mapl.ledger.ledger import Ledger
    from mapl.records.files import write_table

    rows = list(Ledger(url).history())
    if out.suffix == ".json":
        out.write_text(json.dumps(rows, indent=2) + "\n")
    else:
        flat = [
            {n: json.dumps(v) if isinstance(v, dict) else v for n, v in row.items()}
            for row in rows
        ]
        write_table(pd.DataFrame(flat), out)
    show_result({"rows": len(rows), "file": str(out)}, as_json)
