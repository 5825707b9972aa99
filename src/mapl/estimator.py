"""PrivateClassifier: any classifier in, a private one out."""

from __future__ import annotations

import warnings
from hashlib import sha256
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, MetaEstimatorMixin, clone
from sklearn.utils import get_tags

from mapl.arrays import Integers, n_rows
from mapl.errors import (
    MaplError,
    ParameterError,
    PrivacyWarning,
    integer,
    one_of,
    positive,
    probability,
)
from mapl.learners import (
    MODEL_SELECTION,
    PasswordsHidden,
    check_classifier,
    check_jobs,
    default_classifier,
    fit_labels,
    in_model_selection,
    learner_digest,
    seed_of,
    set_seeds,
)
from mapl.planning.plan import large_delta_message, mostly_noise_message
from mapl.planning.settings import MECHANISMS, Setting, choose_setting
from mapl.privacy.charged_dissent import ChargedDissent
from mapl.publish import certificate
from mapl.records import private as records
from mapl.records.containers import unwrapped
from mapl.records.encoding import public_features
from mapl.records.keys import record_keys
from mapl.records.labels import checked_labels, classes_and_codes, declared_classes
from mapl.records.private import PrivateRecords
from mapl.records.schema import Schema
from mapl.records.table import Table, canonical_table, copy_of
from mapl.records.validation import validate_records
from mapl.rehearsal import rehearse
from mapl.release.account import Account, check_ledger, open_account
from mapl.release.labeler import Labeler
from mapl.student.fitting import fit_to_rounds
from mapl.student.one_batch import OneBatch
from mapl.student.prediction import StudentPredictions
from mapl.student.rounds import Rounds, SoftLabels
from mapl.teachers.voting import Checkpoints, Chunks, collect_votes


class PrivateClassifier(
    StudentPredictions,
    PasswordsHidden,
    MetaEstimatorMixin,
    ClassifierMixin,
    BaseEstimator,
):
    """Learn a classifier from private records that may be published.

    The records are split into ``n_teachers`` chunks, a clone of ``estimator`` is
    trained on each, and the teachers' votes on public points are released with noise.
    A student learns from these alone: what `fit` publishes, and everything computed
    from it, is (epsilon, delta)-differentially private.

    Parameters
    ----------
    estimator : classifier, default=LogisticRegression(C=10, max_iter=200)
        Any scikit-learn classifier: a pipeline, a grid search, a boosting library.
        What happens inside a teacher costs no privacy.
    epsilon, delta : float
        What the fit may cost.
    n_teachers : int or "auto"
        How many chunks. Few suit a large epsilon, many a small one; "auto" goes by
        epsilon, the number of classes and ``n_records``.
    n_records : int or None
        A public figure for the number of records, where you have one. The true number
        is private, and nothing is derived from it.
    mechanism : {"auto", "dissent", "noisy-max", "sparse-vector"}
        How votes are released. "auto" is "dissent".
    plan : Setting or None
        A setting of `mapl.planning.plan`, to be run exactly: its mechanism, teachers
        and noise. It must be made for as many public points and classes.
    student : classifier or None
        What is published; a clone of ``estimator`` if None.
    privacy : {"records", "labels"}
        Whether records are private, or only their labels. With "labels", all features
        are public: half of the records serve as public points unless you give some.
    classes : array-like or None
        All labels that may occur. If None they are read from y, with a warning: the
        list of classes is then not protected.
    on_abstain : {"drop", "random"}
        What the student does with points that got no answer.
    on_invalid : {"error", "drop"}
        What happens to private records that do not fit (a label outside ``classes``, a
        missing cell where the estimator takes none): the fit is refused before anything
        is charged, which only you should see; or they are left out, unseen.
    ledger, dataset : str or None
        URL of the ledger, and the name of the data set there (``mapl ledger create``).
        A fit that was interrupted goes on, and the same fit again costs nothing. If
        None, the budget is for this fit alone.
    n_jobs : int or None
        Workers, as in joblib.
    time_limit : float or None
        Seconds that a teacher may take; one that takes longer has no vote.
    random_state : int or None
        Seeds teachers, partition and student. Noise takes no seed.

    Attributes
    ----------
    student_, classes_ : classifier, ndarray
        The published model, and the classes.
    plan_ : Setting or None
        What was run, and what was expected of it; None if there is one class only.
    n_teachers_, n_public_ : int
        How many teachers and public points there were.
    events_ : list of Event
        What was released; ``mapl.accounting`` turns it into epsilon.
    certificate_ : dict
        The guarantee, what it stands on and what it assumes.
    paid_before_ : bool
        Whether an earlier run of the same fit was charged, so that this one was free.
    public_labels_ : ndarray of int, shape (n_public,)
        The class index published for each public point, ``ABSTAIN`` for none.
    spending_ : list of (int, float)
        For each batch, how many points it asked about, and the part of the price used
        by then, as far as published values tell.
    soft_labels_ : ndarray of shape (n_public, n_classes)
        The published shares, with mechanism "dissent".

    Examples
    --------
    >>> from sklearn.datasets import make_classification
    >>> from mapl import PrivateClassifier
    >>> X, y = make_classification(6000, random_state=0)
    >>> model = PrivateClassifier(epsilon=2, n_teachers=100, classes=[0, 1])
    >>> model.fit(X[:4000], y[:4000], X_public=X[4000:5000])
    PrivateClassifier(classes=[0, 1], epsilon=2, n_teachers=100)
    >>> bool(model.score(X[5000:], y[5000:]) > 0.7)
    True
    """

    __metadata_request__fit = {"X_public": True, "groups": True}  # noqa: RUF012

    def __init__(
        self,
        estimator: Any = None,
        *,
        epsilon: float = 1.0,
        delta: float = 1e-5,
        n_teachers: int | str = "auto",
        n_records: int | None = None,
        mechanism: str = "auto",
        plan: Setting | None = None,
        student: Any = None,
        privacy: str = "records",
        classes: Any = None,
        on_abstain: str = "drop",
        on_invalid: str = "error",
        ledger: str | None = None,
        dataset: str | None = None,
        n_jobs: int | None = None,
        time_limit: float | None = None,
        random_state: int | None = None,
    ) -> None:
        self.estimator = estimator
        self.epsilon = epsilon
        self.delta = delta
        self.n_teachers = n_teachers
        self.n_records = n_records
        self.mechanism = mechanism
        self.plan = plan
        self.student = student
        self.privacy = privacy
        self.classes = classes
        self.on_abstain = on_abstain
        self.on_invalid = on_invalid
        self.ledger = ledger
        self.dataset = dataset
        self.n_jobs = n_jobs
        self.time_limit = time_limit
        self.random_state = random_state

    def fit(
        self, X: Any, y: Any, *, X_public: Any = None, groups: Any = None
    ) -> PrivateClassifier:
        """Train the teachers, publish answers about the public points, fit the student.

        Parameters
        ----------
        X : array-like, DataFrame, sparse matrix or sequence of strings
            The private records.
        y : array-like
            Their labels.
        X_public : like X
            Records that are not sensitive, without labels.
        groups : array-like or None
            Whose record each is: the guarantee is then for a whole person.
        """
        self._check_parameters()
        self._warn_unsafe_use()
        for name in [name for name in vars(self) if name.endswith("_")]:
            delattr(self, name)  # nothing of an earlier fit may be left
        self._grouped = groups is not None
        private, table, pool = self._read(X, y, groups, X_public)
        account = self._open_account(private, table)
        if self.plan_ is None:  # one class: there is nothing to ask
            self.public_labels_ = np.zeros(self.n_public_, dtype=np.int64)
            self.spending_: list[tuple[int, float]] = []
            only = self.classes_[self.public_labels_]
            self.student_ = fit_labels(self._student(), pool, only)
        else:
            account.check(self.plan_.event)
            self._warn_of_noise()
            features = None
            if self.plan_.name == "dissent":
                features = public_features(self._estimator(), pool)
            with account.checkpoints() as kept:
                votes = self._collect_votes(private, table, account.seed, kept)
                answers = self._release(self.plan_, votes, account, features)
            self._fit_student(answers, pool, features, account.seed)
        self.events_, self.paid_before_ = account.events, account.paid_before
        self.certificate_ = certificate.of_classifier(
            self, self.events_, grouped=self._grouped, receipt=account.receipt()
        )
        return self

    # What goes in -----------------------------------------------------------------

    def _check_parameters(self) -> None:
        """Refuse bad parameters before any record is looked at."""
        positive(epsilon=self.epsilon)
        probability(delta=self.delta)
        if self.n_teachers != "auto":
            integer(n_teachers=self.n_teachers, at_least=1)
        if self.n_records is not None:
            integer(n_records=self.n_records, at_least=1)
        one_of("auto", *MECHANISMS, mechanism=self.mechanism)
        one_of("records", "labels", privacy=self.privacy)
        one_of("drop", "random", on_abstain=self.on_abstain)
        one_of("error", "drop", on_invalid=self.on_invalid)
        if self.time_limit is not None:
            positive(time_limit=self.time_limit)
        check_classifier(self._estimator())
        if self.classes is not None:
            declared_classes(self.classes)
        elif self.on_invalid == "drop":
            raise ParameterError("classes must be given where on_invalid is 'drop'.")
        check_jobs(self.n_jobs)
        check_ledger(self.ledger, self.dataset)
        seed_of(self.random_state)

    def _warn_unsafe_use(self) -> None:
        if in_model_selection():
            message = MODEL_SELECTION.format(epsilon=self.epsilon)
            warnings.warn(message, PrivacyWarning, stacklevel=3)
        if self.n_records is not None and self.delta * self.n_records >= 1:
            text = large_delta_message(self.delta, self.n_records)
            warnings.warn(text, PrivacyWarning, stacklevel=3)

    def _warn_of_noise(self) -> None:
        sizes = {"epsilon": self.epsilon, "delta": self.delta}
        if message := mostly_noise_message(self.n_teachers_, **sizes):
            warnings.warn(message, stacklevel=3)

    def _read(
        self, X: Any, y: Any, groups: Any, X_public: Any
    ) -> tuple[PrivateRecords, Table, Any]:
        """Return the private records, and the public pool in two forms: canonical for
        teachers, untouched for the student.

        Private cells are converted when all that is public has been tried.
        """
        X, y, groups = unwrapped(X), unwrapped(y), unwrapped(groups)
        strict = self.on_invalid == "error"
        if strict or self.privacy == "labels":
            checked = self._validate(X, reset=True, private=self.privacy != "labels")
            # A check converts whole columns: private ones are taken as they came.
            X = checked if self.privacy == "labels" else X
        if strict:
            y = checked_labels(y)
        records.check_lengths(X, y, groups)
        self.classes_, codes = classes_and_codes(y, self.classes)
        if X_public is not None:
            fresh = not (strict or self.privacy == "labels")
            pool = self._validate_pool(X_public, reset=fresh)
        elif self.privacy == "labels":
            X, codes, groups, pool = records.split_public_features(
                X, codes, groups, seed=self.random_state or 0
            )
        else:
            raise ParameterError(
                "X_public must be given: records without labels that are not "
                "sensitive. If only the labels are, use privacy='labels'."
            )
        pool = copy_of(pool)  # a student may write to it
        self.n_public_ = n_rows(pool)
        schema = Schema.of(pool)
        table = canonical_table(pool, schema)
        self._rehearse(table, pool)
        private = records.private_records(
            canonical_table(X, schema),
            codes,
            groups,
            takes_missing=self._rehearsal.takes_missing,
            on_invalid=self.on_invalid,
            privacy=self.privacy,
        )
        return private, table, pool

    def _rehearse(self, table: Table, pool: Any) -> None:
        """Choose what to run, and try what can fail for a public reason."""
        self.n_teachers_, self.plan_ = choose_setting(
            self.plan,
            mechanism=self.mechanism,
            n_teachers=self.n_teachers,
            n_points=self.n_public_,
            n_classes=len(self.classes_),
            epsilon=float(self.epsilon),
            delta=float(self.delta),
            n_records=self.n_records,
        )
        soft = self.plan_ is not None and self.plan_.name == "dissent"
        self._rehearsal = rehearse(
            self._estimator(), self._student(), table, pool, self.classes_, soft=soft
        )

    def _validate(self, X: Any, *, reset: bool, private: bool = False) -> Any:
        return validate_records(self, X, reset=reset, private=private)

    def _validate_pool(self, pool: Any, *, reset: bool) -> Any:
        try:
            return self._validate(pool, reset=reset)
        except ValueError as error:
            raise ParameterError(
                f"X_public does not go with X: {error} Give both the same columns."
            ) from error

    def _estimator(self) -> Any:
        return default_classifier() if self.estimator is None else self.estimator

    def _student(self) -> Any:
        return clone(self._estimator() if self.student is None else self.student)

    # Before anything is charged ---------------------------------------------------

    def _open_account(self, private: PrivateRecords, table: Table) -> Account:
        """Open the account; what identifies the request is public."""
        digest = b"" if self.ledger is None else record_keys(table, None).tobytes()
        return open_account(
            epsilon=float(self.epsilon),
            delta=float(self.delta),
            ledger=self.ledger,
            dataset=self.dataset,
            request=self._request_key(table.schema).encode() + sha256(digest).digest(),
            note=f"PrivateClassifier, {self.n_teachers_} teachers, "
            f"{len(table)} public points",
            seed=seed_of(self.random_state),
            keys=private.keys if self.ledger is None else private.digests(),
            assignment=lambda seed: private.assignment(self.n_teachers_, salt=seed),
            quiet=self.on_invalid == "drop",
        )

    def _request_key(self, schema: Schema) -> str:
        """Return what decides the votes, and identifies stored jobs: in another form
        the same fit would be charged again. The student is not part of it.
        """
        names = ("n_teachers_", "mechanism", "privacy", "_grouped")
        params = {name: getattr(self, name) for name in names}
        params |= {"epsilon": float(self.epsilon), "delta": float(self.delta)}
        if self.plan is not None:
            params["plan"] = (self.plan.name, self.plan.event.to_json())
        learner = learner_digest(self._estimator())
        seed = None if self.random_state is None else int(self.random_state)
        return repr((params, seed, self.classes_.tolist(), learner, schema.describe()))

    # From private records to public answers ----------------------------------------

    def _collect_votes(
        self, private: PrivateRecords, table: Table, seed: int, kept: Checkpoints | None
    ) -> Integers:
        """Return the votes of all teachers on the public points. Private."""
        before, rows = table.digest(), private.chunks(self.n_teachers_, salt=seed)
        votes = collect_votes(
            self._estimator(),
            Chunks(private.table.data, private.codes, rows, private.keys),
            table.data,
            labels=self.classes_,
            random_state=seed,
            n_jobs=self.n_jobs,
            seconds_each=self._rehearsal.seconds_each,
            time_limit=self.time_limit,
            checkpoints=kept,
        )
        if table.digest() != before:
            raise MaplError(
                "A teacher changed the public points. Nothing was released."
            )
        return votes

    def _release(
        self, setting: Setting, votes: Integers, account: Account, features: Any
    ) -> SoftLabels | OneBatch:
        """Publish answers about the public points, through the labeler."""
        labeler = Labeler(votes, n_classes=len(self.classes_), account=account)
        mechanism = setting.make_mechanism()
        labeler.open(mechanism)
        if isinstance(mechanism, ChargedDissent):
            with Rounds(features, mechanism, seed=account.seed) as rounds:
                while not rounds.done:
                    rounds.take(labeler.shares(*rounds.next()))
            return rounds.result()
        batch = OneBatch(votes.shape[1], mechanism, seed=account.seed)
        batch.take(labeler.labels(batch.rows))
        return batch

    def _fit_student(
        self, answers: SoftLabels | OneBatch, pool: Any, features: Any, seed: int
    ) -> None:
        """Fit the student to what was published."""
        student = self._student()
        set_seeds(student, seed)
        self.public_labels_ = answers.labels
        if isinstance(answers, OneBatch):
            self.spending_ = [answers.spending()]
            self.student_ = answers.fit(
                student, pool, self.classes_, on_abstain=self.on_abstain
            )
        else:
            self.soft_labels_ = answers.noisy
            self.spending_ = list(zip(answers.asked, answers.spent, strict=True))
            self.student_ = fit_to_rounds(
                student, pool, answers, features, self.classes_, n_jobs=self.n_jobs
            )

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        inner = get_tags(self._estimator())
        tags.input_tags = inner.input_tags
        if inner.classifier_tags is not None:
            tags.classifier_tags.multi_class = inner.classifier_tags.multi_class
        tags.classifier_tags.poor_score = True
        tags.non_deterministic = True
        return tags
