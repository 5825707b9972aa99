"""PrivateClassifier: any classifier in, a private one out."""

from __future__ import annotations

import sys
import warnings
from hashlib import sha256
from secrets import token_hex
from typing import TYPE_CHECKING, Any

import joblib
import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator, ClassifierMixin, MetaEstimatorMixin, clone
from sklearn.linear_model import LogisticRegression
from sklearn.utils import _safe_indexing, assert_all_finite, get_tags
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import (
    _num_samples,
    check_is_fitted,
    column_or_1d,
    validate_data,
)

from mapl import certificate
from mapl.errors import ParameterError, PrivacyWarning, integer, positive, probability
from mapl.labeler import Budget, Labeler
from mapl.mechanisms import ABSTAIN, ChargedDissent, NoisyMax, SparseVector
from mapl.partition import chunk_rows, record_digests
from mapl.planner import dissents_for, large_delta, mostly_noise, teachers_for
from mapl.student import ask_in_rounds, fit_hard, fit_shares, public_features
from mapl.teachers import ask, check_classifier, set_seeds, train

if TYPE_CHECKING:
    from mapl.ledger import Job

Ints = npt.NDArray[np.int64]

_SURE = 0.35  # of the teachers: the threshold of a sparse vector, at most
_MECHANISMS = ("auto", "dissent", "noisy-max", "sparse-vector")


def _student_has(name: str) -> Any:
    def check(self: PrivateClassifier) -> bool:
        if hasattr(self, "student_"):
            getattr(self.student_, name)
            return True
        return hasattr(self._student(), name)

    return check


class PrivateClassifier(MetaEstimatorMixin, ClassifierMixin, BaseEstimator):
    """Learn a classifier from private records that may be published.

    The records are split into ``n_teachers`` chunks, a clone of ``estimator`` is
    trained on each, and the teachers' votes on public points are released with noise.
    A student learns from these alone: what `fit` leaves behind, and all that is
    computed from it, is (epsilon, delta)-differentially private.

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
    student : classifier or None
        What is published; a clone of ``estimator`` if None.
    privacy : {"records", "labels"}
        Whether records are private, or only their labels. With "labels", all features
        are public: half of the records serve as public points unless you give some.
    classes : array-like or None
        All labels there are. If None they are read from y, with a warning: the list of
        classes is then not protected.
    on_abstain : {"drop", "random"}
        What the student does with points that got no answer.
    ledger, dataset : str or None
        URL of the ledger, and the name under which it has the budget of these records
        (``mapl ledger create``). A fit that was interrupted goes on from there, and
        the same fit again costs nothing. If None, the budget is of this fit alone.
    n_jobs : int or None
        Workers, as in joblib.
    random_state : int or None
        Seeds teachers, partition and student. Noise takes no seed.

    Attributes
    ----------
    student_ : classifier
        The published model.
    classes_ : ndarray
        The classes.
    n_teachers_ : int
        How many teachers there were.
    events_ : list of Event
        What was released; ``mapl.accounting`` turns it into epsilon.
    certificate_ : dict
        The guarantee, what it stands on and what it assumes; `mapl.certificate`.
    paid_before_ : bool
        Whether the ledger had been charged for the same fit already, so that this one
        was free.
    public_labels_ : ndarray of int, shape (n_public,)
        The class index published for each public point, ``ABSTAIN`` for none.
    spending_ : list of (int, float)
        For each batch, how many points it asked for, and the part of what was paid for
        that was used until then, as far as published values tell.
    soft_labels_ : ndarray of shape (n_public, n_classes)
        The published shares of the vote, with mechanism "dissent".

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
        self.student = student
        self.privacy = privacy
        self.classes = classes
        self.on_abstain = on_abstain
        self.ledger = ledger
        self.dataset = dataset
        self.n_jobs = n_jobs
        self.random_state = random_state

    def fit(
        self,
        X: Any,
        y: Any,
        *,
        X_public: Any = None,
        groups: Any = None,
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
            Whose record each is: the guarantee then is for a whole person.
        """
        self._check_parameters()
        self._warn_of_what_is_unwise()
        self._forget()
        if isinstance(groups, str):
            raise ParameterError(
                "groups must say of each record whose it is, got the name of a column. "
                "Pass the column itself."
            )
        self._grouped = groups is not None
        X = self._validated(X, reset=True)
        y = _labels(y)
        lengths = {_num_samples(of) for of in (X, y, groups) if of is not None}
        if len(lengths) > 1:  # which are private: no number here
            raise ParameterError("X, y and groups must have the same length.")
        self.classes_, codes = self._encoded(y)
        X, codes, groups, pool, keys = self._split(X, codes, groups, X_public)
        self._rehearse(pool)
        self.n_teachers_ = self._n_teachers()
        budget, sealed = self._budget(X, codes, pool)
        n, n_classes = _num_samples(pool), len(self.classes_)
        mechanism = self._mechanism(n, n_classes) if n_classes > 1 else None
        if mechanism is not None:
            budget.check(mechanism.event)
            self._warn_of_noise()
        features = self._features(mechanism, pool)
        seed = int(sealed["seed"])  # of a job that was begun before, its own
        chunks = chunk_rows(X, keys, groups, n_chunks=self.n_teachers_, salt=seed)
        with budget.workshop() as folder:
            teachers = train(
                self._estimator(),
                X,
                codes,
                chunks,
                labels=self.classes_,
                random_state=seed,
                n_jobs=self.n_jobs,
                checkpoint=folder,
            )
            votes = ask(teachers, pool, n_classes=n_classes, n_jobs=self.n_jobs)
        labeler = Labeler(votes, n_classes=n_classes, budget=budget)
        self._publish(labeler, mechanism, pool, features, seed)
        self.events_, self.paid_before_ = budget.events, budget.paid_before
        self.certificate_ = self._certificate(budget.receipt())
        return self

    def _forget(self) -> None:
        """Nothing of an earlier fit may be taken for a part of this one."""
        for name in [name for name in vars(self) if name.endswith("_")]:
            delattr(self, name)

    def _warn_of_what_is_unwise(self) -> None:
        if _in_a_search():
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
            told = large_delta(self.delta, self.n_records)
            warnings.warn(told, PrivacyWarning, stacklevel=3)

    def _warn_of_noise(self) -> None:
        named = {"epsilon": self.epsilon, "delta": self.delta}
        if told := mostly_noise(self.n_teachers_, **named):
            warnings.warn(told, stacklevel=3)

    def _budget(
        self, X: Any, codes: Ints, pool: Any
    ) -> tuple[Budget | Job, dict[str, Any]]:
        """Return who is charged, and what is sealed with the seed in it."""
        seed = _seed(self.random_state)
        if self.ledger is None:
            budget = Budget(epsilon=self.epsilon, delta=self.delta)
            return budget, budget.begin({"seed": seed})
        from mapl.ledger import Ledger

        # Public values only: that an answer was there already must tell of no record.
        public = record_digests(pool, None).tobytes()
        return Ledger(self.ledger).begin(
            str(self.dataset),
            self._asked_for().encode() + sha256(public).digest(),
            delta=self.delta,
            what=f"PrivateClassifier, {self.n_teachers_} teachers, "
            f"{_num_samples(pool)} public points",
            seed=seed,
            records=record_digests(X, codes),
        )

    def _asked_for(self) -> str:
        """What decides which votes are asked for; not the student, which is free."""
        names = ("n_teachers_", "mechanism", "privacy", "_grouped")
        named = {name: getattr(self, name) for name in names}
        named |= {"epsilon": float(self.epsilon), "delta": float(self.delta)}
        try:
            learner = joblib.hash(self._estimator())
        except Exception:  # no pickle: such a job is not found again
            learner = token_hex(16)
        return repr((named, self.random_state, self.classes_.tolist(), learner))

    def _certificate(self, receipt: str | dict[str, Any]) -> dict[str, Any]:
        """Everything in it is public: parameters, and events made of them."""
        unit = "all records of one group" if self._grouped else "a record"
        neighbours = {
            "records": f"if one unit ({unit}) is added to the private data or removed",
            "labels": f"if the labels of one unit ({unit}) are changed",
        }
        declared = "X_public, classes and all parameters do not come from private data"
        undeclared = (
            "X_public and all parameters do not come from private data; the list of "
            "classes does, and is not protected"
        )
        return certificate.make(
            self.events_,
            delta=self.delta,
            unit=unit,
            neighbours=neighbours[self.privacy],
            mechanism="dissent" if self.mechanism == "auto" else self.mechanism,
            public={
                "n_teachers": self.n_teachers_,
                "classes": self.classes_.tolist(),
                "classes_declared": self.classes is not None,
                "n_public": len(self.public_labels_),
                "privacy": self.privacy,
                "assumed": undeclared if self.classes is None else declared,
            },
            ledger=receipt,
        )

    def _rehearse(self, pool: Any) -> None:
        """Try teacher and student on public records with made-up labels.

        What fails inside a teacher is never shown; here nothing is private, so a
        learner that cannot read such records is refused before anything is spent.
        """
        n = min(_num_samples(pool), 400)
        if n < 50 or len(self.classes_) < 2:
            return
        labels = self.classes_[np.arange(n) % len(self.classes_)]
        some = _safe_indexing(pool, np.arange(n))
        tried = [("estimator", self._estimator(), _like(some, some))]
        if self.student is not None:
            tried.append(("student", self.student, some))
        for name, learner, records in tried:
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    fit_hard(clone(learner), records, labels).predict(some)
            except Exception as error:  # whatever it is: it would come again later
                raise ParameterError(
                    f"{name} fails on the public records with made-up labels: {error} "
                    "Put what prepares the columns into a pipeline with it. Nothing "
                    "was released."
                ) from error

    def _features(self, mechanism: Any, pool: Any) -> Any:
        """Return numbers for the public points where they are needed, before anything
        is spent.
        """
        if not isinstance(mechanism, ChargedDissent):
            return None
        try:
            return public_features(self._estimator(), pool)
        except Exception as error:  # whatever it is: nothing here is private
            raise ParameterError(
                f"X_public cannot be turned into numbers: {error} Let the estimator be "
                "a pipeline that does it. Nothing was released."
            ) from error

    def _publish(
        self, labeler: Labeler, mechanism: Any, pool: Any, features: Any, seed: int
    ) -> None:
        """What leaves the labeler is public, and so is all that is made of it."""
        if mechanism is None:  # one class: nothing to ask
            self.public_labels_ = np.zeros(_num_samples(pool), dtype=np.int64)
            self.spending_ = []
            labels = self.classes_[self.public_labels_]
            self.student_ = fit_hard(self._student(), pool, labels)
            return
        labeler.open(mechanism)
        student = self._student()
        set_seeds(student, seed)
        if isinstance(mechanism, ChargedDissent):
            soft = ask_in_rounds(labeler, mechanism, features, seed=seed)
            self.soft_labels_ = soft.noisy
            self.public_labels_ = soft.labels
            self.spending_ = list(zip(soft.asked, soft.spent, strict=True))
            self.student_ = fit_shares(
                *(student, pool, soft, features, self.classes_), n_jobs=self.n_jobs
            )
        else:
            rng = np.random.default_rng(seed)
            self.public_labels_ = self._asked(labeler, mechanism, pool, rng)
            self.spending_ = [self._spent(mechanism)]
            rows, codes = self._answered(rng)
            chosen = _safe_indexing(pool, rows)
            self.student_ = fit_hard(student, chosen, self.classes_[codes])

    def _asked(
        self,
        labeler: Labeler,
        mechanism: NoisyMax | SparseVector,
        pool: Any,
        rng: np.random.Generator,
    ) -> Ints:
        """Ask for as many points as the mechanism answers, chosen at random."""
        n = _num_samples(pool)
        rows = np.sort(rng.permutation(n)[: getattr(mechanism, "n_queries", n)])
        labels = np.full(n, ABSTAIN, dtype=np.int64)
        labels[rows] = labeler.labels(rows)
        return labels

    def _spent(self, mechanism: NoisyMax | SparseVector) -> tuple[int, float]:
        """Return how many points were asked for, and the part that this spent."""
        if isinstance(mechanism, NoisyMax):
            return mechanism.n_queries, 1.0
        abstained = int((self.public_labels_ == ABSTAIN).sum())
        return len(self.public_labels_), min(1.0, abstained / mechanism.cutoff)

    def _answered(self, rng: np.random.Generator) -> tuple[Ints, Ints]:
        """Return which points the student learns from, and their class indices."""
        codes = self.public_labels_.copy()
        if self.on_abstain == "random":
            missing = codes == ABSTAIN
            codes[missing] = rng.integers(0, len(self.classes_), size=missing.sum())
        rows = np.flatnonzero(codes != ABSTAIN)
        if rows.size == 0:
            raise ParameterError(
                "mechanism='sparse-vector' withheld every answer: the teachers are too "
                "few for this epsilon. Use mechanism='auto', or more teachers. The "
                "budget of this fit is spent."
            )
        return rows, codes[rows]

    def _n_teachers(self) -> int:
        if self.n_teachers == "auto":
            sizes = self.epsilon, len(self.classes_), self.n_records
            return teachers_for(*sizes, mechanism=self.mechanism)
        return integer(n_teachers=self.n_teachers, at_least=1)

    def _mechanism(
        self, n: int, n_classes: int
    ) -> NoisyMax | SparseVector | ChargedDissent:
        """Choose parameters from public numbers: the sizes, epsilon and delta."""
        named: dict[str, Any] = {"epsilon": self.epsilon, "delta": self.delta}
        if self.mechanism == "noisy-max":
            most = _most_queries(n, n_classes, self.n_teachers_ / 6, **named)
            return NoisyMax.for_budget(n_queries=most, n_classes=n_classes, **named)
        if self.mechanism == "sparse-vector":
            cutoff, larger, highest = 1, 1, _SURE * self.n_teachers_
            while larger <= min(n, 1000) and _threshold(larger, **named) <= highest:
                cutoff, larger = larger, larger + max(1, larger // 4)
            return SparseVector.for_budget(cutoff=cutoff, **named)
        named |= {"n_teachers": self.n_teachers_, "n_classes": n_classes}
        return ChargedDissent.for_budget(dissents=dissents_for(n), **named)

    # What goes in -----------------------------------------------------------------

    def _check_parameters(self) -> None:
        positive(epsilon=self.epsilon)
        probability(delta=self.delta)
        if self.n_teachers != "auto":
            integer(n_teachers=self.n_teachers, at_least=1)
        if self.n_records is not None:
            integer(n_records=self.n_records, at_least=1)
        for name, allowed in (
            ("mechanism", _MECHANISMS),
            ("privacy", ("records", "labels")),
            ("on_abstain", ("drop", "random")),
        ):
            if getattr(self, name) not in allowed:
                raise ParameterError(
                    f"{name} must be one of {', '.join(map(repr, allowed))}, "
                    f"got {getattr(self, name)!r}."
                )
        check_classifier(self._estimator())
        if self.classes is not None and len(self.classes) == 0:
            raise ParameterError("classes must name every label that may occur.")
        _seed(self.random_state)
        if (self.ledger is None) != (self.dataset is None):
            raise ParameterError(
                "ledger and dataset must be given together: where the budget is kept, "
                "and under which name."
            )

    def _validated(self, X: Any, *, reset: bool) -> Any:
        """Check numbers as scikit-learn does; let frames and texts through."""
        if hasattr(X, "column_names") and hasattr(X, "to_pandas"):
            X = X.to_pandas()  # a pyarrow Table, which few learners take as it is
        if hasattr(X, "iloc") or hasattr(X, "get_columns") or _is_text(X):
            return validate_data(self, X, reset=reset, skip_check_array=True)
        tags = get_tags(self._estimator()).input_tags
        if isinstance(X, list | tuple):
            X = _by_cells(X)
        try:
            return validate_data(
                self,
                X,
                reset=reset,
                accept_sparse=["csr"],
                ensure_all_finite="allow-nan" if tags.allow_nan else True,
                dtype="numeric",
            )
        except ValueError as error:
            said = str(error)
            if "could not convert" in said:
                raise ParameterError(  # without the text, which may be private
                    "X must hold numbers only, got a text. Pass a DataFrame and an "
                    "estimator that is a pipeline which encodes its columns."
                ) from None
            if "array=" in said or "Complex data" in said:  # which goes on with records
                first = said.partition("array=")[0].partition("\n")[0].rstrip(": ")
                raise ParameterError(
                    f"{first}. Reshape your data: one row a record, real numbers."
                ) from None
            raise

    def _validated_pool(self, pool: Any) -> Any:
        try:
            return self._validated(pool, reset=False)
        except ValueError as error:
            raise ParameterError(
                f"X_public does not go with X: {error} Give both the same columns."
            ) from error

    def _encoded(self, y: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], Ints]:
        """Return the classes and each label's index among them."""
        if self.classes is None:
            warnings.warn(
                "classes were read from y: which labels exist is not protected. Pass "
                "classes=[...] if a class could give somebody away.",
                PrivacyWarning,
                stacklevel=3,
            )
            found, codes = np.unique(y, return_inverse=True)
            return found, codes.astype(np.int64)
        declared = np.unique(np.asarray(self.classes))
        position = np.clip(np.searchsorted(declared, y), 0, len(declared) - 1)
        if (declared[position] != y).any():
            raise ParameterError(
                "y holds a label that is not among classes. Declare every label that "
                "may occur."
            )
        return declared, position.astype(np.int64)

    def _split(
        self,
        X: Any,
        codes: Ints,
        groups: Any,
        pool: Any,
    ) -> tuple[Any, Ints, Any, Any, Any]:
        """Return private records, codes, groups, the public pool, and what of the
        labels may decide which chunk a record goes to.
        """
        if self.privacy == "records":
            if pool is None:
                raise ParameterError(
                    "X_public must be given: records without labels that are not "
                    "sensitive. If only the labels are, use privacy='labels'."
                )
            pool = self._validated_pool(pool)
            return _like(X, pool), codes, groups, pool, codes
        if pool is not None:
            return X, codes, groups, self._validated_pool(pool), None
        # Features are public: any split by position is. Labels decide nothing.
        n = _num_samples(X)
        order = np.random.default_rng(self.random_state or 0).permutation(n)
        kept, given = np.sort(order[: (n + 1) // 2]), np.sort(order[(n + 1) // 2 :])
        if given.size == 0:
            given = kept
        private = _safe_indexing(X, kept)
        some = None if groups is None else _safe_indexing(groups, kept)
        return private, codes[kept], some, _safe_indexing(X, given), None

    def _estimator(self) -> Any:
        if self.estimator is None:
            return LogisticRegression(C=10, max_iter=200)
        return self.estimator

    def _student(self) -> Any:
        return clone(self._estimator() if self.student is None else self.student)

    # What comes out ---------------------------------------------------------------

    def predict(self, X: Any) -> npt.NDArray[Any]:
        """Return the student's label for each record."""
        check_is_fitted(self, "student_")
        return np.asarray(self.student_.predict(self._validated(X, reset=False)))

    @available_if(_student_has("predict_proba"))
    def predict_proba(self, X: Any) -> npt.NDArray[np.float64]:
        """Return the student's probability of each class in ``classes_``."""
        check_is_fitted(self, "student_")
        some = self.student_.predict_proba(self._validated(X, reset=False))
        out = np.zeros((len(some), len(self.classes_)))
        out[:, np.searchsorted(self.classes_, self.student_.classes_)] = some
        return out

    @available_if(_student_has("decision_function"))
    def decision_function(self, X: Any) -> npt.NDArray[np.float64]:
        """Return how sure the student is of each class in ``classes_``, of two classes
        one number; of a class that it has never seen -inf.
        """
        check_is_fitted(self, "student_")
        X = self._validated(X, reset=False)
        some = np.asarray(self.student_.decision_function(X))
        seen = self.student_.classes_
        if len(seen) == len(self.classes_):
            return some
        out = np.full((len(some), len(self.classes_)), -np.inf)
        columns = some if some.ndim == 2 else np.stack((-some, some), axis=1)
        out[:, np.searchsorted(self.classes_, seen)] = columns
        return out

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        inner = get_tags(self._estimator())
        tags.input_tags = inner.input_tags
        if inner.classifier_tags is not None:
            tags.classifier_tags.multi_class = inner.classifier_tags.multi_class
        tags.classifier_tags.poor_score = True
        tags.non_deterministic = True
        return tags


def _seed(random_state: int | None) -> int:
    if random_state is None:
        return int(np.random.SeedSequence().generate_state(1)[0])
    return integer(random_state=random_state, at_least=0)


def _in_a_search() -> bool:
    """Whether scikit-learn's model selection is what called."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        if frame.f_globals.get("__name__", "").startswith("sklearn.model_selection."):
            return True
        frame = frame.f_back
    return False


def _by_cells(rows: Any) -> Any:
    """Turn a list into floats, each cell for itself: one value must not decide in what
    form the others come. What is not a number is left to the checks.
    """
    try:
        return np.asarray(rows, dtype=np.float64)
    except (TypeError, ValueError):
        return rows


def _labels(y: Any) -> npt.NDArray[Any]:
    """Check labels as scikit-learn does, whose message would hold their number."""
    try:
        y = column_or_1d(y, warn=True)
    except ValueError:
        raise ParameterError("y should be a 1d array of labels.") from None
    assert_all_finite(y, input_name="y")
    check_classification_targets(y)
    return np.asarray(y)


def _is_text(X: Any) -> bool:
    first = X[0] if isinstance(X, list) and X else None
    array_of_text = isinstance(X, np.ndarray) and X.ndim == 1 and X.dtype.kind in "OUT"
    return isinstance(first, str) or array_of_text


def _like(X: Any, pool: Any) -> Any:
    """Give a frame's columns the types of the public one, cell by cell.

    A column's type in the private frame may depend on any of its records.
    """
    if _kind_of_frame(X) != _kind_of_frame(pool):
        raise ParameterError(
            "X and X_public must be of one kind: both pandas, both polars, or neither."
        )
    if _kind_of_frame(X) == "polars":
        return X.select(pool.columns).cast(dict(pool.schema), strict=False)
    if _kind_of_frame(X) is None:
        return X
    import pandas as pd

    out = {}
    for name in pool.columns:
        column, public = X[name], pool[name]
        if isinstance(public.dtype, pd.CategoricalDtype):
            out[name] = pd.Categorical(column, categories=public.cat.categories)
        elif public.dtype.kind in "fiub":
            out[name] = numbers_of(column)
        elif public.dtype.kind in "mM":
            out[name] = _times(column, public.dtype)
        else:
            cells = column.astype(object)
            if column.dtype.kind == "f":  # as integers are as soon as one is missing
                whole = [
                    int(c) if isinstance(c, float) and c.is_integer() else c
                    for c in cells  # some of which are pandas.NA
                ]
                cells = pd.Series(whole, X.index, dtype=object)
            out[name] = cells.where(column.notna(), None)
    return pd.DataFrame(out, index=X.index)


def _kind_of_frame(X: Any) -> str | None:
    if hasattr(X, "get_columns"):
        return "polars"
    return "pandas" if hasattr(X, "iloc") and X.ndim == 2 else None


def numbers_of(column: Any) -> Any:
    """Turn the cells of a pandas column into floats, those that are no numbers into
    NaN; times are none, in whatever unit.
    """
    import pandas as pd

    if column.dtype.kind in "mM":
        return pd.Series(np.nan, column.index)
    return pd.to_numeric(column, errors="coerce").astype(np.float64)


def _times(column: Any, dtype: Any) -> Any:
    """Turn cells into times of a type, those that are none into NaT.

    A time without a zone is taken to be in UTC where one is wanted.
    """
    import pandas as pd

    zone = getattr(dtype, "tz", None)

    def moment(cell: Any) -> Any:
        try:
            if dtype.kind == "m":
                return pd.Timedelta(cell).as_unit(unit)
            time = pd.Timestamp(cell)
            time = time.tz_localize("UTC") if time.tz is None else time
            time = time.tz_convert(zone or "UTC").as_unit(unit)
            return time if zone else time.tz_localize(None)
        except (TypeError, ValueError, OverflowError):  # and must not spoil the others
            return pd.NaT

    if column.dtype == dtype:
        return column
    if column.dtype.kind == dtype.kind and getattr(column.dtype, "tz", None) == zone:
        try:
            return column.astype(dtype)
        except ValueError:  # some are out of its range
            pass
    unit = np.datetime_data(dtype)[0] if zone is None else dtype.unit
    return pd.Series([moment(cell) for cell in column], column.index, dtype=dtype)


def _most_queries(
    n: int, n_classes: int, sigma: float, *, epsilon: float, delta: float
) -> int:
    """Return how many queries noise of about ``sigma`` allows, at most n."""
    from mapl.dissent import least_sigma, steps_per_query

    one = float(least_sigma(epsilon=epsilon, delta=delta, steps=100))
    steps = 100 * (sigma / one) ** 2  # noise grows with the root of the steps
    return max(1, min(n, int(steps / steps_per_query(n_classes))))


def _threshold(cutoff: int, *, epsilon: float, delta: float) -> int:
    return SparseVector.for_budget(
        epsilon=epsilon, delta=delta, cutoff=cutoff
    ).threshold
