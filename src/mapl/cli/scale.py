"""Options of ``mapl learn`` for records beyond memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import rich_click as click

from mapl.errors import ParameterError

_OPTIONS = ("engine", "memory", "spool", "address", "query")


def scale_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add where records are read, and how much memory that may take."""
    options = [
        click.option(
            "--engine",
            help="Where records are read in parts: local (--jobs processes) or ray.",
        ),
        click.option(
            "--memory",
            help="About how much memory all workers may take for records, such as "
            "500MB; records are then read in parts. Default: 1GB.",
        ),
        click.option(
            "--address",
            help="A running Ray cluster, such as auto or ray://host:10001. Default: "
            "one that is started here.",
        ),
        click.option(
            "--spool",
            type=click.Path(file_okay=False, path_type=Path),
            help="Folder where records are sorted, encrypted, and removed at the end. "
            "On a cluster, one that all machines share. Default: the state folder.",
        ),
        click.option(
            "--query", help="SQL query; PRIVATE is then the URL of a database."
        ),
    ]
    for option in reversed(options):
        command = option(command)
    return command


@dataclass(frozen=True)
class Scale:
    """Where the private records are, and how they are read."""

    private: Any  # a path, or a Source
    streamed: bool
    options: dict[str, Any]

    @classmethod
    def of(cls, private: str, settings: dict[str, Any]) -> Scale:
        """Read records in parts if an option says so, or PRIVATE is not one file."""
        options = {name: settings.pop(name) for name in _OPTIONS}
        query = options.pop("query")
        given = any(value is not None for value in options.values())
        if query is None and Path(private).is_file() and not given:
            return cls(Path(private), False, {})
        from mapl.records.sources import Query, Source

        if options["address"] is not None and options["engine"] != "ray":
            raise ParameterError("--address goes with --engine ray.")
        source = Source.of(private if query is None else Query(private, query))
        return cls(source, True, options)

    def set_up(self, model: Any) -> None:
        """Tell a classifier how to read."""
        model.memory, model.spool = self.options["memory"], self.options["spool"]
        model.engine = self.options["engine"] or "local"
        if self.options["address"] is not None:
            from mapl.engines.on_ray import RayEngine

            model.engine = RayEngine(address=self.options["address"])
