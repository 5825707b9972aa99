"""What teachers and student both need of a scikit-learn classifier."""

from __future__ import annotations

import sys
import warnings
from secrets import token_hex
from typing import Any

import joblib
import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.linear_model import LogisticRegression
from sklearn.utils import get_tags
from sklearn.utils.metaestimators import available_if

from mapl.arrays import Array, Floats, n_rows
from mapl.errors import ParameterError, hide_passwords, integer


def default_classifier() -> LogisticRegression:
    """Return the learner that is used where none is given.

    Weakly penalised teachers are worse alone and better together.
    """
    return LogisticRegression(C=10, max_iter=200)


def check_classifier(estimator: Any) -> None:
    """Refuse an estimator with another tag; custom estimators may have none."""
    kind = get_tags(estimator).estimator_type
    if kind not in ("classifier", None):
        raise ParameterError(f"estimator must be a classifier, got a {kind}.")


def check_jobs(n_jobs: Any) -> None:
    """Refuse a number of workers that joblib has no meaning for."""
    if n_jobs is not None and int(n_jobs) == 0:
        raise ParameterError("n_jobs must not be 0. Pass None, 1 or -1.")


def check_class_weight(class_weight: Any, method: str) -> None:
    """Refuse weights that are not positive numbers, or that nothing would use."""
    if class_weight is None:
        return
    if method == "votes":
        raise ParameterError("class_weight needs moments: method must not be 'votes'.")
    weights = class_weight.values() if isinstance(class_weight, dict) else [0]
    if class_weight != "balanced":
        try:
            sound = all(0 < float(w) < float("inf") for w in weights)
        except (TypeError, ValueError):
            sound = False
        if not sound:
            raise ParameterError(
                "class_weight must be 'balanced', or a dict of labels to positive "
                f"numbers, got {class_weight!r}."
            )


def seed_names(model: Any) -> list[str]:
    """Return the names of all parameters that are a random_state."""
    return [
        name
        for name in sorted(model.get_params(deep=True))
        if name == "random_state" or name.endswith("__random_state")
    ]


def set_seeds(model: Any, *seed: int, names: list[str] | None = None) -> None:
    """Set every random_state among the parameters, each to its own value."""
    names = seed_names(model) if names is None else names
    if not names:
        return
    drawn = np.random.SeedSequence(seed).generate_state(len(names)) >> 1
    values = dict(zip(names, drawn.tolist(), strict=True))
    if names == ["random_state"]:
        model.random_state = values["random_state"]  # ten times as fast
    else:
        model.set_params(**values)


def fit_labels(learner: Any, X: Any, labels: Array, **fit_params: Any) -> Any:
    """Return a clone fitted to labels; with a single label, one that always gives it.

    A learner that refuses the labels is given class numbers without gaps.
    """
    if len(set(labels.tolist())) == 1:
        from sklearn.dummy import DummyClassifier

        return DummyClassifier(strategy="most_frequent").fit(X, labels)
    try:
        return clone(learner).fit(X, labels, **fit_params)
    except (TypeError, ValueError):
        return LabelDecoder(learner).fit(X, labels, **fit_params)


def fit_made_up_labels(learner: Any, X: Any, classes: Array) -> Any:
    """Return the learner fitted to made-up labels, each class in turn, silently."""
    labels = classes[np.arange(n_rows(X)) % len(classes)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return fit_labels(learner, X, labels)


def learner_digest(learner: Any) -> str:
    """Return a digest of a learner; a random one if it cannot be pickled."""
    try:
        return str(joblib.hash(learner))
    except Exception:  # such a learner is never recognised again
        return token_hex(16)


def fixed_seed(random_state: Any) -> int | None:
    """Return a seed for one fit; a generator gives the next of its numbers."""
    if isinstance(random_state, np.random.RandomState):
        return int(random_state.randint(2**31 - 1))
    if isinstance(random_state, np.random.Generator):
        return int(random_state.integers(2**31 - 1))
    return None if random_state is None else seed_of(random_state)


def seed_of(random_state: int | None) -> int:
    """Return the seed, drawn if there is none."""
    if random_state is None:
        return int(np.random.SeedSequence().generate_state(1)[0])
    return integer(random_state=random_state, at_least=0)


_REFITTING = (
    "sklearn.model_selection.",
    "sklearn.calibration",
    "sklearn.ensemble._",
    "sklearn.multiclass",
    "sklearn.feature_selection.",
)
MODEL_SELECTION = (
    "What fits this model several times (a search, cross-validation, calibration, "
    "bagging) pays for each of its fits: k "
    "of them cost up to k times epsilon {epsilon:g}, and its scores are not covered by "
    "any guarantee. Choose parameters on public data, or put the search inside: "
    "PrivateClassifier(GridSearchCV(...)) searches in each teacher, for nothing."
)


def in_model_selection() -> bool:
    """Whether what fits a model several times is among the callers."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        if frame.f_globals.get("__name__", "").startswith(_REFITTING):
            return True
        frame = frame.f_back
    return False


class PasswordsHidden:
    """A mixin for estimators with a URL among their parameters."""

    def __repr__(self, N_CHAR_MAX: int = 700) -> str:
        # scikit-learn's own passes the limit by name
        shown: str = BaseEstimator.__repr__(self, N_CHAR_MAX=N_CHAR_MAX)
        return hide_passwords(shown)

    def _repr_html_inner(self) -> str:
        return hide_passwords(BaseEstimator._repr_html_inner(self))

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, str]:
        bundle = BaseEstimator._repr_mimebundle_(self, **kwargs)
        return {kind: hide_passwords(text) for kind, text in bundle.items()}


def _inner_has(name: str) -> Any:
    return lambda self: hasattr(getattr(self, "classifier_", self.classifier), name)


class LabelDecoder(ClassifierMixin, BaseEstimator):
    """A classifier of class numbers that answers with the labels themselves."""

    def __init__(self, classifier: Any) -> None:
        self.classifier = classifier

    def fit(self, X: Any, y: Array, **fit_params: Any) -> LabelDecoder:
        """Fit the classifier to the labels' numbers, without gaps."""
        self.classes_, codes = np.unique(y, return_inverse=True)
        self.classifier_ = clone(self.classifier).fit(X, codes, **fit_params)
        return self

    def predict(self, X: Any) -> Array:
        """Return the label of each record."""
        return np.asarray(self.classes_[np.asarray(self.classifier_.predict(X))])

    @available_if(_inner_has("predict_proba"))
    def predict_proba(self, X: Any) -> Floats:
        """Return the probability of each label."""
        return np.asarray(self.classifier_.predict_proba(X))

    @available_if(_inner_has("decision_function"))
    def decision_function(self, X: Any) -> Floats:
        """Return the score of each label."""
        return np.asarray(self.classifier_.decision_function(X))
