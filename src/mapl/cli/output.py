"""What all commands share: options, errors in one line, results as text or JSON."""

import json
import os
import re
import sys
import traceback
import warnings
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import rich_click as click
from click.exceptions import ClickException, Exit

from mapl.errors import (
    BudgetExceededError,
    LedgerCorruptedError,
    MaplError,
    ParameterError,
)

FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
NEW_FILE = click.Path(dir_okay=False, path_type=Path)
delta_option = click.option(
    "--delta",
    default=1e-5,
    show_default=True,
    type=float,
    help="Privacy parameter delta: at most 1/(10 x number of people).",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
overwrite_option = click.option(
    "--overwrite", is_flag=True, help="Replace the files of an earlier run in --out."
)
_EXIT_CODES = {BudgetExceededError: 3, LedgerCorruptedError: 4}


def csv_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add how CSV files are written; stands below `errors_in_one_line`."""

    @click.option(
        "--sep",
        help="What separates the cells of CSV files, such as ; or tab; default: what "
        "the line of names shows.",
    )
    @click.option(
        "--encoding",
        help="Encoding of CSV files, such as latin-1; default: UTF-8, with or without "
        "a mark.",
    )
    @wraps(command)
    def wrapped(
        *args: Any, sep: str | None, encoding: str | None, **kwargs: Any
    ) -> Any:
        from mapl.records.csv_records import reading

        with reading(sep=sep, encoding=encoding):
            return command(*args, **kwargs)

    return wrapped


def errors_in_one_line(command: Callable[..., Any]) -> Callable[..., Any]:
    """Show an error or a warning in one line, and exit with the error's code."""

    @wraps(command)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        try:
            with warnings.catch_warnings():
                warnings.showwarning = lambda message, *_, **__: click.echo(
                    f"Warning: {' '.join(str(message).split())}", err=True
                )
                return command(*args, **kwargs)
        except MaplError as error:
            click.echo(f"Error: {printable(in_options(str(error)))}", err=True)
            sys.exit(_EXIT_CODES.get(type(error), 2))
        except (ClickException, Exit, BrokenPipeError):  # click knows what to do
            raise
        except OSError as error:
            message = f"{error.filename}: {error.strerror}" if error.filename else error
            click.echo(f"Error: {message}.", err=True)
            sys.exit(2)
        except Exception as error:
            if os.environ.get("MAPL_DEBUG"):
                raise
            click.echo(f"Error: {_where(error)}", err=True)
            sys.exit(1)

    return wrapped


_OPTIONS = {
    "random_state": "--seed",
    "n_teachers": "--teachers",
    "n_records": "--records",
    "n_jobs": "--jobs",
    "X_public": "--public",
    "on_invalid": "--on-invalid",
    "class_weight": "--class-weight",
    "time_limit": "--time-limit",
    "overwrite=True": "--overwrite",
}
_SAME = ("epsilon", "delta", "method", "mechanism", "estimator", "classes", "schema")


def in_options(message: str) -> str:
    """Return an error of a parameter as one of the option that sets it."""
    names = _OPTIONS | {name: f"--{name}" for name in _SAME}
    message = re.sub(
        r"\b(\w+)='([^' ]*)'",
        lambda m: f"{names[m[1]]} {m[2]}" if m[1] in names else m[0],
        message,
    )
    first, _, rest = message.partition(" ")
    if first in names and rest.startswith(("must", "does", "cannot")):
        message = f"{names[first]} {rest}"
    for name, option in _OPTIONS.items():
        message = re.sub(rf"(?<![\w-]){name}\b", option, message)
    return message


def _where(error: Exception) -> str:
    """Say what went wrong without its message, which may hold private values."""
    place = traceback.extract_tb(error.__traceback__)[-1]
    return (
        f"an unexpected {type(error).__name__} at {Path(place.filename).name}:"
        f"{place.lineno}. This is a bug in mapl, or in a learner: --debug shows the "
        "traceback, which may hold private values."
    )


def show_result(result: dict[str, Any], as_json: bool) -> None:
    """Print names and values, or JSON."""
    if as_json:
        click.echo(json.dumps(result))
        return
    for name, value in result.items():
        words = _WORDS.get(name, name.replace("_", " "))
        if isinstance(value, dict):  # figures of each class
            for key, figures in value.items():
                shown = ", ".join(
                    f"{n.replace('_', ' ')} {_shown(n, v)}" for n, v in figures.items()
                )
                click.echo(f"{printable(str(key)):14} {shown}")
            continue
        click.echo(f"{words:14} {printable(_shown(name, value))}")


_WORDS = {
    "paid_before": "charged before",
    "answered": "given a label",
    "abstained": "left without",
    "always_most_frequent": "most frequent",
    "without_privacy_PRIVATE_accuracy": "no privacy",
}
_SHARES = ("accuracy", "always_most_frequent", "recall", "precision")


def _shown(name: str, value: Any) -> str:
    """Return a value for a reader, rounded."""
    if name == "paid_before":
        return "yes, so this run was free" if value else "no"
    if name == "without_privacy_PRIVATE_accuracy":
        return f"accuracy {100 * value:.1f} % by boosting (private: do not pass it on)"
    if name == "predicted_as":
        return ", ".join(f"{other} {n}" for other, n in value.items())
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    if name in _SHARES:
        return f"{100 * value:.1f} %"
    if name in ("auc", "log_loss"):
        return f"{value:.3f}"
    return str(value)


def printable(text: str) -> str:
    """Return a text without control characters, which a terminal would obey."""
    return "".join(c if c.isprintable() else "?" for c in text)


def show_table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> None:
    """Print a table; 160 columns wide if the output is not a terminal."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(*head, box=None)
    for row in rows:
        table.add_row(*(escape(printable(cell)) for cell in row))
    Console(width=None if sys.stdout.isatty() else 160).print(table)


def split_at_commas(names: str | None) -> list[str]:
    """Split names at commas."""
    return [name.strip() for name in (names or "").split(",") if name.strip()]


def check_ending(path: Path, *endings: str, option: str = "--out") -> None:
    """Refuse a file name with another ending."""
    if path.suffix.lower() not in endings:
        raise ParameterError(
            f"{option} must end in {', '.join(endings)}, got {str(path)!r}."
        )
