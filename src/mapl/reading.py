"""What goes into a fit: what is public first, private records when that was tried."""

from __future__ import annotations

from typing import Any

from joblib import effective_n_jobs
from sklearn.base import clone
from threadpoolctl import threadpool_limits

from mapl.arrays import Array, n_rows
from mapl.errors import ParameterError
from mapl.features.sketch import N_DRAWN
from mapl.learners import default_classifier, fixed_seed
from mapl.methods.pool import (
    FEW_PUBLIC,
    N_REHEARSED,
    NOTHING_PUBLIC,
    Outline,
    PublicMap,
    outline_for,
)
from mapl.parameters import check_parameters, warn_unsafe_use
from mapl.planning.choice import METHODS, choose_method, choose_setting
from mapl.planning.settings import Setting
from mapl.records import private as records
from mapl.records.containers import unwrapped
from mapl.records.dictionary import Dictionary, columns_by_schema
from mapl.records.keys import record_keys
from mapl.records.labels import checked_labels, classes_and_codes, declared_classes
from mapl.records.overlap import found_among, must_compare, refuse_shared
from mapl.records.private import PrivateRecords
from mapl.records.schema import Schema
from mapl.records.table import Table, canonical_table, copy_of
from mapl.records.validation import validate_pool, validate_records
from mapl.rehearsal import Rehearsal, rehearse


class ReadsRecords:
    """A mixin for `PrivateClassifier`: it reads, chooses and rehearses."""

    estimator: Any
    student: Any
    method: str
    mechanism: str
    plan: Setting | None
    n_teachers: int | str
    n_records: int | None
    epsilon: float
    delta: float
    schema: Any
    classes: Any
    privacy: str
    on_invalid: str
    n_jobs: int | None
    random_state: Any
    _seed: int | None
    classes_: Array
    method_: str
    _dictionary: Dictionary | None
    _rehearsal: Rehearsal
    _streamed = False
    _allow_overlap = False

    def foresee(self, *, X_public: Any = None) -> Setting | None:
        """Return what `fit` would run, and try what can fail, on public values alone.

        Nothing is read, charged or released; ``classes`` must be declared.
        """
        self._dictionary = None if self.schema is None else Dictionary.read(self.schema)
        check_parameters(self, self._dictionary)
        self._seed = fixed_seed(self.random_state)
        warn_unsafe_use(self)
        declared = self._declared_classes()
        if declared is None:
            raise ParameterError("classes must be declared to foresee a fit.")
        self.classes_ = declared_classes(declared)
        self.method_ = self._choose_method()
        pool = None
        if X_public is not None:
            pool = validate_pool(self, X_public, reset=True)
        self._rehearse(*self._public_points(pool))
        return self.plan_

    def _declared_classes(self) -> Any:
        """Return the classes that the caller or the schema lists, None for none."""
        if self.classes is None and self._dictionary is not None:
            return self._dictionary.classes or None
        return self.classes

    def _choose_method(self) -> str:
        return choose_method(
            self.method,
            self.plan,
            estimator=self.estimator,
            mechanism=self.mechanism,
            privacy=self.privacy,
        )

    def _read(
        self, X: Any, y: Any, groups: Any, X_public: Any
    ) -> tuple[PrivateRecords, Table, Any]:
        """Return the private records, and the public pool in two forms: canonical for
        teachers, untouched for the student.

        Private cells are converted when all that is public has been tried.
        """
        X, y, groups = unwrapped(X), unwrapped(y), unwrapped(groups)
        strict = self.on_invalid == "error"
        if strict:
            records.check_order(X, y, groups)
        if strict or self.privacy == "labels":
            checked = self._validate(X, reset=True, private=self.privacy != "labels")
            # A check converts whole columns: private ones are taken as they came.
            X = checked if self.privacy == "labels" else X
        if strict:
            y = checked_labels(y)
        records.check_lengths(X, y, groups)
        declared = self._declared_classes()
        self.classes_, codes = classes_and_codes(y, declared)
        self._declared = declared is not None
        if X_public is not None:
            fresh = not (strict or self.privacy == "labels")
            pool = validate_pool(self, X_public, reset=fresh)
        elif self.privacy == "labels" and self.method_ == "moments":
            pool = X
        elif self.privacy == "labels":
            X, codes, groups, pool = records.split_public_features(
                X, codes, groups, seed=self._seed or 0
            )
        else:
            pool = None
        table, pool = self._public_points(pool)
        self._rehearse(table, pool)
        own = canonical_table(X, table.schema)
        if (shown := self._compared()) is not None:
            refuse_shared(found_among(record_keys(shown, None), record_keys(own, None)))
        private = records.private_records(
            own,
            codes,
            groups,
            takes_missing=self._rehearsal.takes_missing,
            on_invalid=self.on_invalid,
            privacy=self.privacy,
        )
        return private, table, pool

    def _compared(self) -> Table | None:
        """Return the public records that must not be private ones, if there are any."""
        if self._given is None or not must_compare(
            allow_overlap=self._allow_overlap,
            on_invalid=self.on_invalid,
            privacy=self.privacy,
        ):
            return None
        return self._given

    def _public_points(self, pool: Any) -> tuple[Table, Any]:
        """Return the public points in canonical form and untouched; where there are
        few or none, made-up ones that follow the data dictionary.
        """
        self._outline: Outline | None = None
        self.n_public_ = 0 if pool is None else n_rows(pool)
        schema = None if self._dictionary is None else self._dictionary.schema
        self._given: Table | None = None
        if schema is not None and self.n_public_ < FEW_PUBLIC:
            if pool is not None:
                self._given = canonical_table(pool, schema)
            self._outline = outline_for(self._dictionary, self._given, self)
            table = self._outline.points(N_REHEARSED)
            if not hasattr(self, "n_features_in_"):
                self._validate(table.data, reset=True)
            return table, copy_of(table.data)
        if pool is None:
            raise ParameterError(NOTHING_PUBLIC)
        pool = copy_of(pool)  # a student may write to it
        self._given = canonical_table(pool, schema or Schema.of(pool))
        return self._given, pool

    def _rehearse(self, table: Table, pool: Any) -> None:
        """Choose what to run, and try what can fail for a public reason."""
        if self.method_ != "votes" and len(self.classes_) > 1:
            self._public_map: Any = self._outline or self._map_of(table)
        self.n_teachers_, self.plan_ = choose_setting(
            self.plan,
            method=self.method_,
            mechanism=self.mechanism,
            n_teachers=self.n_teachers,
            n_points=N_DRAWN if self._outline else self.n_public_,
            n_classes=len(self.classes_),
            epsilon=float(self.epsilon),
            delta=float(self.delta),
            n_records=self.n_records,
        )
        teacher = None if self.method_ == "moments" else self._estimator()
        own = self.student is not None or self.method_ == "votes"
        student = self._student() if own else None
        soft = self.plan_ is not None and self.plan_.name in ("dissent", *METHODS)
        self._rehearsal = rehearse(
            teacher, student, table, pool, self.classes_, soft=soft
        )

    @property
    def _n_threads(self) -> int:
        """How many threads compute in this process. One where records are read in
        parts: the number of workers then changes no bit of what is published.
        """
        return 1 if self._streamed else effective_n_jobs(self.n_jobs)

    def _map_of(self, table: Table) -> PublicMap | None:
        """Return features of the public points. Where none can be made, there are
        votes alone, unless moments were asked for.
        """
        try:
            with threadpool_limits(self._n_threads):
                return PublicMap.or_error(table, seed=self._seed or 0)
        except ParameterError:
            if self.method != "auto" or self.estimator is None:
                raise
            self.method_ = "votes"
            return None

    def _validate(self, X: Any, *, reset: bool, private: bool = False) -> Any:
        X = columns_by_schema(self._dictionary, X)
        return validate_records(self, X, reset=reset, private=private)

    def _estimator(self) -> Any:
        return default_classifier() if self.estimator is None else self.estimator

    def _student(self) -> Any:
        return clone(self._estimator() if self.student is None else self.student)
