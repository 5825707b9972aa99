"""PrivateClassifier: any classifier in, a private one out."""

from __future__ import annotations

import warnings
from hashlib import sha256
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, MetaEstimatorMixin, clone
from sklearn.utils import _safe_indexing, get_tags

from mapl.arrays import Array, Integers, Ints, n_rows
from mapl.errors import (
    ParameterError,
    PrivacyWarning,
    integer,
    one_of,
    positive,
    probability,
)
from mapl.learners import (
    check_classifier,
    default_classifier,
    dry_run,
    fit_labels,
    in_model_selection,
    learner_digest,
    seed_of,
    set_seeds,
)
from mapl.ledger.rules import check_composition
from mapl.planning.plan import large_delta_message, mostly_noise_message
from mapl.planning.settings import MECHANISMS, Setting, setting_for, teachers_for
from mapl.privacy.charged_dissent import ChargedDissent
from mapl.publish import certificate
from mapl.records import private as records
from mapl.records.canonical import validate_records
from mapl.records.encoding import public_features
from mapl.records.keys import chunk_rows, record_keys
from mapl.records.labels import checked_labels, declared_classes, encode_declared
from mapl.records.private import PrivateRecords
from mapl.records.schema import cast_like
from mapl.release.account import Account, check_ledger, open_account
from mapl.release.labeler import Labeler
from mapl.student.fitting import fit_to_rounds
from mapl.student.one_batch import OneBatch
from mapl.student.prediction import StudentPredictions
from mapl.student.rounds import Rounds, SoftLabels
from mapl.teachers.panel import ask
from mapl.teachers.training import train

_FEWEST_TO_TRY = 50  # public points, for a dry run


class PrivateClassifier(
    StudentPredictions, MetaEstimatorMixin, ClassifierMixin, BaseEstimator
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
    ledger, dataset : str or None
        URL of the ledger, and the name of the data set there (``mapl ledger create``).
        A fit that was interrupted goes on, and the same fit again costs nothing. If
        None, the budget is for this fit alone.
    n_jobs : int or None
        Workers, as in joblib.
    random_state : int or None
        Seeds teachers, partition and student. Noise takes no seed.

    Attributes
    ----------
    student_, classes_ : classifier, ndarray
        The published model, and the classes.
    plan_ : Setting or None
        What was run, and what was expected of it; None if there is one class only.
    n_teachers_ : int
        How many teachers there were.
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
        ledger: str | None = None,
        dataset: str | None = None,
        n_jobs: int | None = None,
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
        self.ledger = ledger
        self.dataset = dataset
        self.n_jobs = n_jobs
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
        private, pool = self._read(X, y, groups, X_public)
        self._dry_run(pool)
        self.plan_ = self._setting(n_rows(pool))
        account = self._open_account(private, pool)
        if self.plan_ is None:  # one class: there is nothing to ask
            self.public_labels_ = np.zeros(n_rows(pool), dtype=np.int64)
            self.spending_: list[tuple[int, float]] = []
            labels = self.classes_[self.public_labels_]
            self.student_ = fit_labels(self._student(), pool, labels)
        else:
            account.check(self.plan_.event)
            sizes = {"epsilon": self.epsilon, "delta": self.delta}
            if message := mostly_noise_message(self.n_teachers_, **sizes):
                warnings.warn(message, stacklevel=2)
            features = None
            if self.plan_.name == "dissent":
                features = public_features(self._estimator(), pool)
            with account.checkpoint_dir() as folder:
                votes = self._train_and_ask(private, pool, account.seed, folder)
                answers = self._release(self.plan_, votes, account, features)
            self._fit_student(answers, pool, features, account.seed)
        self.events_, self.paid_before_ = account.events, account.paid_before
        receipt = account.receipt()
        self.certificate_ = certificate.of_classifier(self, self._grouped, receipt)
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
        check_classifier(self._estimator())
        if self.classes is not None:
            declared_classes(self.classes)
        check_ledger(self.ledger, self.dataset)
        seed_of(self.random_state)

    def _warn_unsafe_use(self) -> None:
        if in_model_selection():
            warnings.warn(
                f"A search or a cross-validation over private records pays for each "
                f"of its fits: k of them cost up to k times epsilon {self.epsilon:g}, "
                "and its scores are not covered by any guarantee. Choose parameters on "
                "public data, or put the search inside: "
                "PrivateClassifier(GridSearchCV(...)) searches in each teacher, for "
                "nothing.",
                PrivacyWarning,
                stacklevel=3,
            )
        if self.n_records is not None and self.delta * self.n_records >= 1:
            message = large_delta_message(self.delta, self.n_records)
            warnings.warn(message, PrivacyWarning, stacklevel=3)

    def _read(
        self, X: Any, y: Any, groups: Any, X_public: Any
    ) -> tuple[PrivateRecords, Any]:
        """Return the private records, and the public pool."""
        X, y = self._validate(X, reset=True), checked_labels(y)
        records.check_lengths(X, y, groups)
        codes = self._encode(y)
        if X_public is not None:
            pool = self._validate_pool(X_public)
        elif self.privacy == "labels":
            seed = self.random_state or 0
            X, codes, groups, pool = records.split_public_features(
                X, codes, groups, seed=seed
            )
        else:
            raise ParameterError(
                "X_public must be given: records without labels that are not "
                "sensitive. If only the labels are, use privacy='labels'."
            )
        if self.privacy == "labels":
            return records.private_labels(X, codes, groups), pool
        return records.private_records(X, codes, groups, pool), pool

    def _validate(self, X: Any, *, reset: bool) -> Any:
        tags = get_tags(self._estimator()).input_tags
        return validate_records(self, X, reset=reset, allow_nan=tags.allow_nan)

    def _validate_pool(self, pool: Any) -> Any:
        try:
            return self._validate(pool, reset=False)
        except ValueError as error:
            raise ParameterError(
                f"X_public does not go with X: {error} Give both the same columns."
            ) from error

    def _encode(self, y: Array) -> Ints:
        """Set the classes, and return each label's index among them."""
        if self.classes is None:
            warnings.warn(
                "classes were read from y: which labels exist is not protected. Pass "
                "classes=[...] if a class could identify a person.",
                PrivacyWarning,
                stacklevel=4,
            )
            self.classes_, codes = np.unique(y, return_inverse=True)
            return np.asarray(codes, dtype=np.int64)
        self.classes_ = declared_classes(self.classes)
        return encode_declared(y, self.classes_)

    def _estimator(self) -> Any:
        return default_classifier() if self.estimator is None else self.estimator

    def _student(self) -> Any:
        return clone(self._estimator() if self.student is None else self.student)

    # Before anything is charged ---------------------------------------------------

    def _dry_run(self, pool: Any) -> None:
        """Try teacher and student on public records with made-up labels."""
        n = min(n_rows(pool), 400)
        if n < _FEWEST_TO_TRY or len(self.classes_) < 2:
            return
        sample = _safe_indexing(pool, np.arange(n))
        typed = cast_like(sample, sample)
        dry_run("estimator", self._estimator(), typed, sample, self.classes_)
        if self.student is not None:
            dry_run("student", self.student, sample, sample, self.classes_)

    def _setting(self, n_points: int) -> Setting | None:
        """Return what to run, from public numbers: as planned, or by the same rules."""
        n_classes = len(self.classes_)
        if self.plan is not None:
            if not isinstance(self.plan, Setting):
                raise ParameterError(
                    f"plan must be a setting of mapl.planning.plan, got "
                    f"{type(self.plan).__name__}. Pass plan(...).setting()."
                )
            self.plan.check_sizes(n_points=n_points, n_classes=n_classes)
            limits = {"epsilon": self.epsilon, "delta": self.delta}
            check_composition([], self.plan.event, **limits)
            self.n_teachers_ = self.plan.n_teachers
            return self.plan
        mechanism = "dissent" if self.mechanism == "auto" else self.mechanism
        sizes = self.epsilon, n_classes, self.n_records
        self.n_teachers_ = (
            teachers_for(*sizes, mechanism=mechanism)
            if self.n_teachers == "auto"
            else int(self.n_teachers)
        )
        if n_classes < 2:
            return None
        return setting_for(
            mechanism,
            n_teachers=self.n_teachers_,
            n_points=n_points,
            n_classes=n_classes,
            epsilon=self.epsilon,
            delta=self.delta,
            n_records=self.n_records,
        )

    def _open_account(self, private: PrivateRecords, pool: Any) -> Account:
        """Open the account; what identifies the request is public."""
        digest = b"" if self.ledger is None else record_keys(pool, None).tobytes()
        return open_account(
            epsilon=self.epsilon,
            delta=self.delta,
            ledger=self.ledger,
            dataset=self.dataset,
            request=self._request_key().encode() + sha256(digest).digest(),
            note=f"PrivateClassifier, {self.n_teachers_} teachers, "
            f"{n_rows(pool)} public points",
            seed=seed_of(self.random_state),
            keys=private.keys if self.ledger is None else private.digests(),
        )

    def _request_key(self) -> str:
        """Return what decides the votes, and identifies stored jobs: in another form
        the same fit would be charged again. The student is not part of it.
        """
        names = ("n_teachers_", "mechanism", "privacy", "_grouped")
        params = {name: getattr(self, name) for name in names}
        params |= {"epsilon": float(self.epsilon), "delta": float(self.delta)}
        if self.plan is not None:
            params["plan"] = (self.plan.name, self.plan.event.to_json())
        learner = learner_digest(self._estimator())
        return repr((params, self.random_state, self.classes_.tolist(), learner))

    # From private records to public answers ----------------------------------------

    def _train_and_ask(
        self, private: PrivateRecords, pool: Any, seed: int, checkpoint_dir: str | None
    ) -> Integers:
        """Return the votes of all teachers on the public points. Private."""
        chunks = chunk_rows(
            private.keys, private.groups, n_chunks=self.n_teachers_, salt=seed
        )
        teachers = train(
            self._estimator(),
            private.X,
            private.codes,
            chunks,
            labels=self.classes_,
            random_state=seed,
            n_jobs=self.n_jobs,
            checkpoint_dir=checkpoint_dir,
            keys=private.keys,
        )
        return ask(teachers, pool, n_classes=len(self.classes_), n_jobs=self.n_jobs)

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
