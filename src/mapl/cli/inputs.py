"""The files of ``mapl learn``: the public one decides the types of the private one."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rich_click as click

from mapl.errors import ParameterError

if TYPE_CHECKING:
    from mapl.records.dictionary import Dictionary
    from mapl.records.schema import Schema
    from mapl.records.sources import Source
    from mapl.records.table import Table

_SAME_FILE = "--public is the private file itself: labels.parquet would publish it."


@dataclass(frozen=True, repr=False)
class Records:
    """The private records that have a label, and a group if groups are asked for."""

    table: Table
    labels: list[str | None]
    groups: list[str | None] | None


@dataclass(frozen=True, repr=False)
class Inputs:
    """The public records, and where the private ones are."""

    public: Any  # None if there is a data dictionary alone
    private: Path | Source
    schema: Schema
    only_public: list[str]
    target: str
    groups: str | None
    dictionary: Dictionary | None = None
    names: list[str] = field(default_factory=list)  # not learned from

    def is_private(self, path: Path) -> bool:
        """Whether a file is the private one, or one of them."""
        return _is_same(self.private, path)

    def read_records(self, classes: list[str], *, on_invalid: str) -> Records:
        """Read the private records; those without a label are left out."""
        import numpy as np

        from mapl.records.files import is_missing, read_private

        assert isinstance(self.private, Path)
        columns = {"target": self.target, "owner": self.groups}
        file = read_private(self.private, self.schema, **columns)
        if not file.readable and on_invalid == "error":
            raise ParameterError(
                f"{self.private} has a line that cannot be read: it has another number "
                "of cells than the first line, an open quote, or bytes that are not "
                "UTF-8 (--encoding latin-1?). See mapl check, or leave such lines out "
                "with --on-invalid drop."
            )
        labels = file.texts[self.target]
        rows = np.flatnonzero([not is_missing(label, classes) for label in labels])
        if not len(rows) and on_invalid == "error":
            raise ParameterError(
                f"{self.private} has no record with a {self.target!r}: there is "
                "nothing to learn from."
            )
        return Records(
            file.table.take(rows),
            [labels[i] for i in rows],
            [file.texts[self.groups][i] for i in rows] if self.groups else None,
        )

    def encode(self, encoder: Any, records: Records, width: int) -> Any:
        """Return the records as numbers, silently; scikit-learn encodes no empty
        table.
        """
        import numpy as np

        from mapl.teachers.silence import teacher_surroundings

        if not len(records.table):
            return np.empty((0, width))
        with teacher_surroundings():
            return encoder.transform(records.table.data)

    def say_what_is_left_out(self) -> None:
        """Say it whether there are such records or not: that is private."""
        click.echo(
            f"Records without a {self.target!r}, if any, are left out. NA and the like "
            "count as missing, unless --classes names them.",
            err=True,
        )
        if self.groups:
            click.echo(
                f"Records without a {self.groups!r}, if any, each count as a person.",
                err=True,
            )
        else:
            click.echo(
                "Protects single records; if a person may have several, use --groups "
                "COL.",
                err=True,
            )

    def show_columns(self) -> None:
        """Show the type of each column; column names and the public file are public."""
        if self.only_public:
            names = ", ".join(self.only_public)
            click.echo(f"Left out, not in the private file: {names}", err=True)
        if self.names:
            click.echo(
                f"Left out, nearly every value differs: {', '.join(self.names)}. Names "
                "and ID numbers teach nothing, and say who somebody is.",
                err=True,
            )
        free = self.free_texts()
        kinds = ("Numbers", "Categories", "Texts", "Times")
        shown: dict[str, list[str]] = {kind: [] for kind in kinds}
        for name, column in self.schema.columns.items():
            kind = {"number": "Numbers", "time": "Times"}.get(column.kind, "Categories")
            shown["Texts" if name in free else kind].append(name)
        for kind, own in shown.items():
            if own:
                click.echo(f"{kind}: {', '.join(own)}", err=True)
        if self.public is None:
            if free:
                click.echo(
                    f"Not learned from, free text needs --public: {', '.join(free)}",
                    err=True,
                )
            return
        click.echo("Columns that --public lacks, if any, are left out.", err=True)
        self._hint_at_columns(free)

    def free_texts(self) -> list[str]:
        """Return the columns that hold sentences: of a dictionary, those it says."""
        if self.dictionary is not None and self.public is None:
            return [n for n, c in self.schema.columns.items() if c.kind == "text"]
        from mapl.features.columns import is_free_text
        from mapl.records.columns import convert

        others = [n for n, c in self.schema.columns.items() if c.kind == "text"]
        return [n for n in others if is_free_text(convert(self.public[n], "text"))]

    def _hint_at_columns(self, free: list[str]) -> None:
        """Name public columns that are of no use."""
        public = self.public
        empty = [name for name in self.schema.columns if public[name].isna().all()]
        if empty:
            click.echo(
                f"Empty in --public, so that nothing is learned from: "
                f"{', '.join(empty)}",
                err=True,
            )
        texts = [name for name in self.schema.other_columns if name not in free]
        many = [name for name in texts if public[name].nunique() > 0.5 * len(public)]
        if many:
            click.echo(
                f"Nearly every value differs in {', '.join(many)}: names and ID "
                "numbers teach nothing. Leave them out with --drop.",
                err=True,
            )


def _is_name(column: Any) -> bool:
    """Whether public texts that nearly all differ are neither sentences nor times."""
    from mapl.features.columns import is_free_text
    from mapl.records import cells
    from mapl.records.columns import convert

    moments = convert(column, "time") != cells.NAT
    return not (moments.mean() > 0.5 or is_free_text(convert(column, "text")))


def _names_of(private: Path | Source) -> list[str]:
    """Return the names of the columns of private records."""
    from mapl.records.files import column_names

    return column_names(private) if isinstance(private, Path) else private.names


def _is_same(private: Path | Source, other: Path) -> bool:
    if isinstance(private, Path):
        return private.resolve() == other.resolve()
    return private.has_file(other)


def _refuse_private_file(private: Path | Source, pool: Path) -> None:
    """Refuse the private file as a public one."""
    if _is_same(private, pool):
        raise ParameterError(_SAME_FILE)


def read_dictionary(
    private: Path | Source,
    path: Path,
    *,
    target: str | None,
    groups: str | None,
    drop: list[str],
) -> Inputs:
    """Read a data dictionary, and see that the private file has its columns."""
    from mapl.records.dictionary import Dictionary
    from mapl.records.files import check_column

    found = Dictionary.read(path)
    target, groups = target or found.target, groups or found.groups
    if target is None:
        raise ParameterError(f"--target must be given: {path} names no target.")
    unused = {target, groups, *drop}
    found_names = {*found.columns, found.target, found.groups}
    columns = {n: e for n, e in found.columns.items() if n not in unused}
    classes = found.classes if target == found.target else ()
    found = replace(
        found, columns=columns, target=target, groups=groups, classes=classes
    )
    if not columns:
        raise ParameterError(f"{path} has no column to learn from.")
    _refuse_label(columns, path)
    if unknown := [name for name in drop if name not in found_names]:
        raise ParameterError(f"--drop: {path} has no column {unknown[0]!r}.")
    names = _names_of(private)
    for name in (target, *([groups] if groups else []), *columns):
        check_column(name, names, private)
    return Inputs(None, private, found.schema, [], target, groups, found)


def _refuse_label(columns: Any, path: Path) -> None:
    if "label" in columns:
        raise ParameterError(
            f"Column 'label' of {path} has the name of what labels.parquet adds. "
            "Rename it, or leave it out with --drop label."
        )


def with_public(data: Inputs, pool: Path) -> Inputs:
    """Add public records to a data dictionary: it keeps the types."""
    from mapl.records.files import check_column, read_table

    _refuse_private_file(data.private, pool)
    public = read_table(pool)
    for name in data.schema.columns:
        check_column(name, public.columns, pool)
    return replace(data, public=data.schema.cast(public[list(data.schema.columns)]))


def read_inputs(
    private: Path | Source,
    pool: Path,
    *,
    target: str,
    groups: str | None,
    drop: list[str],
    categories: list[str],
) -> Inputs:
    """Read the public file; what is wrong with columns shows before anything is
    spent.
    """
    from mapl.records.files import check_column, read_public
    from mapl.records.overlap import naming_columns
    from mapl.records.schema import Schema

    _refuse_private_file(private, pool)
    public = read_public(pool, without=target, categories=categories)
    names = _names_of(private)
    unused = {target, *drop, *([groups] if groups else [])}
    for name in (target, *([groups] if groups else []), *drop):
        check_column(name, names, private)
    shared = [c for c in public.columns if c in names and c not in unused]
    if not shared:
        raise ParameterError(f"{private} and {pool} have no column in common.")
    _refuse_label(shared, pool)
    for name in categories:
        if name not in shared:
            raise ParameterError(
                f"--categories: {name!r} is not among the columns that are learned "
                f"from: {', '.join(shared)}."
            )
    # Names that only the private file has are not shown: without a line of names they
    # are a record.
    only_public = sorted(set(public.columns) - unused - set(shared))
    public = public[shared]
    schema = Schema.of_numbers_and_texts(public)
    texts = public[schema.other_columns].select_dtypes(exclude="datetime")
    names = [name for name in naming_columns(texts) if _is_name(texts[name])]
    if len(names) == len(shared):
        raise ParameterError(f"Nearly every value differs in each column of {pool}.")
    public = public.drop(columns=names)
    schema = Schema.of_numbers_and_texts(public)
    return Inputs(public, private, schema, only_public, target, groups, names=names)


def read_public_side(
    private: Path | Source,
    schema: Path | None,
    pool: Path | None,
    *,
    target: str | None,
    groups: str | None,
    drop: list[str],
    categories: list[str],
) -> Inputs:
    """Read what is public: a data dictionary, public records, or both."""
    if schema is not None:
        if categories:
            raise ParameterError("--categories: the schema says what is a category.")
        found = read_dictionary(
            private, schema, target=target, groups=groups, drop=drop
        )
        return found if pool is None else with_public(found, pool)
    if pool is None:
        raise click.UsageError(
            "Missing option '--schema' or '--public': describe the columns (mapl "
            "schema draft), or give records that are not sensitive."
        )
    if target is None:
        raise click.UsageError("Missing option '--target'.")
    args: dict[str, Any] = {"drop": drop, "categories": categories}
    return read_inputs(private, pool, target=target, groups=groups, **args)
