"""PrivateClassifier: any classifier in, a private one out."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, MetaEstimatorMixin
from sklearn.utils import get_tags
from threadpoolctl import threadpool_limits

from mapl.arrays import n_rows
from mapl.learners import PasswordsHidden, fit_labels, fixed_seed
from mapl.ledger.budget import CarriesBudgets, charged_to_open_budgets
from mapl.methods.moments import learn_by_moments, learn_labels_by_moments
from mapl.methods.published import Published, distilled
from mapl.methods.votes import Panel, learn_by_votes
from mapl.parameters import (
    check_parameters,
    refuse_fit_params,
    warn_of_lacking_classes,
    warn_of_noise,
    warn_unsafe_use,
)
from mapl.planning.settings import Setting
from mapl.publish import certificate
from mapl.publish.released import Released
from mapl.records.dictionary import Dictionary, groups_by_schema
from mapl.records.overlap import refuse_shared
from mapl.records.private import PrivateRecords
from mapl.records.table import Table
from mapl.release.account import Account
from mapl.request import open_fit_account
from mapl.scale.records import StreamedRecords
from mapl.streaming import ReadsFiles
from mapl.student.prediction import StudentPredictions


class PrivateClassifier(
    CarriesBudgets,
    ReadsFiles,
    Released,
    StudentPredictions,
    PasswordsHidden,
    MetaEstimatorMixin,
    ClassifierMixin,
    BaseEstimator,
):
    """Learn a classifier from private records that may be published.

    Without an estimator, every record speaks for itself: noisy sums over all records
    lead to a linear model of features that public points define. With one, clones of it
    are trained on disjoint chunks, and their votes on public points, released with
    noise, correct that model. What `fit` publishes, and everything computed from it, is
    (epsilon, delta)-differentially private.

    Parameters
    ----------
    estimator : classifier or None
        Any scikit-learn classifier: a pipeline, a grid search, a boosting library.
        What happens inside a teacher costs no privacy.
    method : {"auto", "moments", "votes", "both"}
        What is learned from: sums over records, teachers' votes, or both. "auto" is
        "moments" without an estimator, and "both" with one.
    epsilon, delta : float
        What the fit may cost.
    n_teachers : int or "auto"
        How many chunks, for votes. Few suit a large epsilon, many a small one; "auto"
        goes by epsilon, the number of classes and ``n_records``.
    n_records : int or None
        A public figure for the number of records, where you have one. The true number
        is private; moments count classes with noise, for 2 % of the budget.
    mechanism : {"auto", "dissent", "noisy-max", "sparse-vector"}
        How votes are released, with method "votes". "auto" is "dissent".
    plan : Setting or None
        A setting of `mapl.planning.plan`, to be run exactly: its mechanism, teachers
        and noise. It must be made for as many public points and classes.
    student : classifier or None
        What is published: it learns from the labels of the public points. If None, with
        method "votes" a clone of ``estimator``, else the model of the moments itself.
    class_weight : "balanced", dict or None
        How much classes count in a prediction, for moments. "balanced" makes rare
        classes as probable as the others.
    schema : path, dict, Dictionary or None
        A data dictionary: columns with kinds, ranges and categories. With it no public
        records are needed: `fit` sketches the columns first. Not read off private data.
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
        Workers, or threads for moments, as in joblib.
    time_limit : float or None
        Seconds that a teacher may take; one that takes longer has no vote.
    random_state : int, RandomState, Generator or None
        Seeds teachers, partition and student. Noise takes no seed.
    engine : {"local", "ray"} or Engine
        Where `fit_files` reads records: in ``n_jobs`` processes, or on Ray.
    memory : str or int or None
        About what `fit_files` may take, such as "500MB"; 1GB if None.
    spool : path or None
        Where `fit_files` sorts records, encrypted; the state folder if None. On a
        cluster, a folder that all machines share.
    verbose : int
        With 1, a line after each fit says what it cost.

    Attributes
    ----------
    student_, classes_ : classifier, ndarray
        The published model, and the classes.
    plan_ : Setting or None
        What was run, and what was expected of it; None if there is one class only.
    method_ : str
        "moments", "votes" or "both".
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
    made_up_points_ : DataFrame
        Where there were no public points: records drawn from the published counts of
        each column, which ``public_labels_`` and ``soft_labels_`` belong to.
    soft_labels_ : ndarray of shape (n_public, n_classes)
        The probabilities of the published model for the public points; the published
        shares with mechanism "dissent".

    Examples
    --------
    >>> from sklearn.datasets import make_classification
    >>> from mapl import PrivateClassifier
    >>> X, y = make_classification(6000, random_state=0)
    >>> model = PrivateClassifier(epsilon=2, classes=[0, 1])
    >>> model.fit(X[:4000], y[:4000], X_public=X[4000:5000])
    PrivateClassifier(classes=[0, 1], epsilon=2)
    >>> bool(model.score(X[5000:], y[5000:]) > 0.8)
    True
    """

    __metadata_request__fit = {  # noqa: RUF012
        "X_public": True,
        "groups": True,
        "allow_overlap": True,
    }

    def __init__(
        self,
        estimator: Any = None,
        *,
        method: str = "auto",
        epsilon: float = 1.0,
        delta: float = 1e-5,
        n_teachers: int | str = "auto",
        n_records: int | None = None,
        mechanism: str = "auto",
        plan: Setting | None = None,
        student: Any = None,
        class_weight: Any = None,
        schema: Any = None,
        privacy: str = "records",
        classes: Any = None,
        on_abstain: str = "drop",
        on_invalid: str = "error",
        ledger: str | None = None,
        dataset: str | None = None,
        n_jobs: int | None = None,
        time_limit: float | None = None,
        random_state: Any = None,
        engine: Any = "local",
        memory: Any = None,
        spool: Any = None,
        verbose: int = 0,
    ) -> None:
        self.estimator = estimator
        self.method = method
        self.epsilon = epsilon
        self.delta = delta
        self.n_teachers = n_teachers
        self.n_records = n_records
        self.mechanism = mechanism
        self.plan = plan
        self.student = student
        self.class_weight = class_weight
        self.schema = schema
        self.privacy = privacy
        self.classes = classes
        self.on_abstain = on_abstain
        self.on_invalid = on_invalid
        self.ledger = ledger
        self.dataset = dataset
        self.n_jobs = n_jobs
        self.time_limit = time_limit
        self.random_state = random_state
        self.engine = engine
        self.memory = memory
        self.spool = spool
        self.verbose = verbose

    def fit(
        self,
        X: Any,
        y: Any,
        *,
        X_public: Any = None,
        groups: Any = None,
        allow_overlap: bool = False,
        **fit_params: Any,
    ) -> PrivateClassifier:
        """Train the teachers, publish answers about the public points, fit the student.

        Parameters
        ----------
        X : array-like, DataFrame, sparse matrix or sequence of strings
            The private records.
        y : array-like
            Their labels.
        X_public : like X
            Records that are not sensitive, without labels. Needed unless there is a
            ``schema``, or only labels are private.
        groups : array-like or None
            Whose record each is: the guarantee is then for a whole person.
        allow_overlap : bool
            Whether records of ``X_public`` may be private ones, too, whose features are
            then published; else the fit is refused if one is.
        **fit_params
            Refused, ``sample_weight`` with the reason.
        """
        refuse_fit_params(fit_params)
        with charged_to_open_budgets(self.carried_budgets):
            return self._fit(X, y, X_public, groups, allow_overlap=allow_overlap)

    def _fit(
        self, X: Any, y: Any, X_public: Any, groups: Any, *, allow_overlap: bool
    ) -> PrivateClassifier:
        self._begin(streamed=False)
        self._allow_overlap = bool(allow_overlap)
        if X_public is X and X is not None and self.privacy == "records":
            refuse_shared(not allow_overlap)
        groups = groups_by_schema(self._dictionary, X, groups)
        self._grouped = groups is not None
        return self._publish(*self._read(X, y, groups, X_public))

    def fit_files(
        self,
        files: Any,
        *,
        target: str,
        groups: str | None = None,
        X_public: Any = None,
        allow_overlap: bool = False,
    ) -> PrivateClassifier:
        """Do what `fit` does with records that need not fit into memory.

        They are read in parts, as often as there are steps; sums and votes are the same
        to the last bit as in memory.

        Parameters
        ----------
        files : path, pattern, URL, list of these, pyarrow dataset or Query
            The private records: Parquet or CSV files, or what a database returns.
        target : str
            The column with the labels.
        groups : str or None
            The column that says whose record each is.
        X_public : DataFrame
            Public records, as for `fit`; not needed where there is a ``schema``.
        allow_overlap : bool
            As for `fit`.
        """
        with charged_to_open_budgets(self.carried_budgets):
            return self._fit_files(
                files, target, groups, X_public, allow_overlap=allow_overlap
            )

    def _fit_files(
        self,
        files: Any,
        target: str,
        groups: str | None,
        X_public: Any,
        *,
        allow_overlap: bool,
    ) -> PrivateClassifier:
        self._begin(streamed=True)
        self._allow_overlap = bool(allow_overlap)
        if groups is None and self._dictionary is not None:
            groups = self._dictionary.groups
        self._grouped = groups is not None
        records, table, pool = self._read_files(
            files, target=target, groups=groups, X_public=X_public
        )
        try:
            return self._publish(records, table, pool)
        finally:
            records.close()

    def _begin(self, *, streamed: bool) -> None:
        """Check the parameters, and forget an earlier fit."""
        self._streamed = streamed
        self._dictionary = None if self.schema is None else Dictionary.read(self.schema)
        check_parameters(self, self._dictionary)
        self._seed = fixed_seed(self.random_state)
        warn_unsafe_use(self)
        for name in [name for name in vars(self) if name.endswith("_")]:
            delattr(self, name)  # nothing of an earlier fit may be left
        self.method_ = self._choose_method()

    def _publish(
        self, private: PrivateRecords | StreamedRecords, table: Table, pool: Any
    ) -> PrivateClassifier:
        """Charge, learn, and keep what was published."""
        account = open_fit_account(self, private, table)
        if self.plan_ is None:  # one class: there is nothing to ask
            labels = np.zeros(n_rows(pool), dtype=np.int64)
            only = fit_labels(self._student(), pool, self.classes_[labels])
            points = None if self._outline is None else table
            published = Published(only, labels, None, [], points)
        else:
            account.check(self.plan_.event)
            warn_of_noise(self)
            with self._sorted(private, account):
                published = self._learn(private, table, pool, account, self.plan_)
        self._keep(published)
        self.events_, self.paid_before_ = account.events, account.paid_before
        self.certificate_ = certificate.of_classifier(
            self, self.events_, grouped=self._grouped, receipt=account.receipt()
        )
        self._say_cost()
        return self

    def _learn(
        self,
        private: PrivateRecords | StreamedRecords,
        table: Table,
        pool: Any,
        account: Account,
        setting: Setting,
    ) -> Published:
        """Go from private records to a published model, by the chosen method."""
        if self.method_ == "votes":
            return learn_by_votes(
                self._panel(),
                *(private, table, pool, account, setting, self._student()),
                classes=self.classes_,
                on_abstain=self.on_abstain,
            )
        with threadpool_limits(self._n_threads):
            published = self._learn_with_moments(private, table, account, setting)
        if self.student is None:
            return published
        pool = pool if published.points is None else published.points.data
        return distilled(published, self._student(), pool, self.classes_, account.seed)

    def _learn_with_moments(
        self,
        private: PrivateRecords | StreamedRecords,
        table: Table,
        account: Account,
        setting: Setting,
    ) -> Published:
        params = {
            "classes": self.classes_,
            "class_weight": self.class_weight,
            "n_threads": self._n_threads,
        }
        learned = private, table, self._public_map, account, setting
        if self.privacy == "labels":
            return learn_labels_by_moments(*learned, **params)
        return learn_by_moments(
            *learned,
            n_records=self.n_records,
            panel=self._panel() if self.method_ == "both" else None,
            missing=self.student is None and self.method_ == "moments",
            **params,
        )

    def _panel(self) -> Panel:
        return Panel(
            self._estimator(),
            self.n_teachers_,
            self.n_jobs,
            self.time_limit,
            self._rehearsal.seconds_each,
        )

    def _keep(self, published: Published) -> None:
        """Keep what was published."""
        self.student_, self.spending_ = published.student, published.spending
        self.public_labels_ = published.labels
        if published.shares is not None:
            self.soft_labels_ = published.shares
        if published.points is not None:
            self.made_up_points_ = published.points.data
        warn_of_lacking_classes(self)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        inner = get_tags(self._estimator())
        tags.input_tags = inner.input_tags
        if self.estimator is None and self.method in ("auto", "moments"):
            tags.input_tags.allow_nan = True
        if inner.classifier_tags is not None:
            tags.classifier_tags.multi_class = inner.classifier_tags.multi_class
        tags.classifier_tags.poor_score = True
        tags.non_deterministic = True
        return tags
