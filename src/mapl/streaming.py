"""What goes into a fit of files: the public side first, then every record once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from joblib import effective_n_jobs

from mapl.engines.engine import make_engine
from mapl.errors import ParameterError
from mapl.reading import ReadsRecords
from mapl.records.labels import declared_classes
from mapl.records.sources import Source
from mapl.records.table import Table
from mapl.records.validation import validate_pool
from mapl.release.account import Account
from mapl.scale.limits import DEFAULT_MEMORY, batch_rows, bytes_of
from mapl.scale.records import Reading, StreamedRecords
from mapl.scale.spool import Spool


class ReadsFiles(ReadsRecords):
    """A mixin for `PrivateClassifier`: it reads files in parts."""

    engine: Any
    memory: Any
    spool: Any
    ledger: str | None
    n_teachers_: int

    def _read_files(
        self, files: Any, *, target: str, groups: str | None, X_public: Any
    ) -> tuple[StreamedRecords, Table, Any]:
        """Return the private records, unread but for one look, and the public pool."""
        if self.privacy == "labels":
            raise ParameterError(
                "privacy='labels' needs the records in memory: use fit."
            )
        source = Source.of(files)
        bytes_of(self.memory or DEFAULT_MEMORY)  # or an error
        declared = self._declared_classes()
        if declared is None:
            raise ParameterError("classes must be declared to learn from files.")
        self.classes_, self._declared = declared_classes(declared), True
        pool = None
        if X_public is not None:
            pool = validate_pool(self, X_public, reset=True)
        table, pool = self._public_points(pool)
        if table.schema.container not in ("pandas", "polars"):
            raise ParameterError(
                "X_public must be a data frame whose columns have the names of those "
                "in the files."
            )
        needed = [target] if groups is None else [target, groups]
        source.check_columns([*table.schema.columns, *needed])
        self._rehearse(table, pool)
        records = self._opened(source, table, target, groups)
        try:
            records.check(digest=self.ledger is not None, public=self._compared())
        except BaseException:
            records.close()
            raise
        return records, table, pool

    def _opened(
        self, source: Source, table: Table, target: str, groups: str | None
    ) -> StreamedRecords:
        """Return the records, of which none is read yet."""
        engine = make_engine(self.engine, n_workers=effective_n_jobs(self.n_jobs))
        memory = bytes_of(self.memory or DEFAULT_MEMORY)
        n_columns = len(table.schema.columns)
        rows = batch_rows(memory, n_columns=n_columns, n_workers=engine.n_workers)
        reading = Reading(
            table.schema,
            target,
            groups,
            self.classes_,
            self._rehearsal.takes_missing,
            self.on_invalid,
            rows,
        )
        spool = Spool(self.spool)
        return StreamedRecords(source, reading, engine, spool, memory=memory)

    @contextmanager
    def _sorted(self, records: Any, account: Account) -> Iterator[None]:
        """Bring units together, where they must be: for teachers, and for persons. Keep
        finished tasks, where the account outlives a crash.
        """
        if not isinstance(records, StreamedRecords):
            yield
            return
        if self.method_ in ("votes", "both"):
            records.partition(max(1, self.n_teachers_), salt=account.seed)
        elif records.grouped:
            records.partition(records.needed_buckets(), salt=account.seed)
        with account.checkpoints() as records.checkpoints:
            yield
