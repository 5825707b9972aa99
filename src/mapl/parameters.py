"""The parameters of `PrivateClassifier`: what is refused, and what is warned of."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from mapl.errors import (
    ParameterError,
    PrivacyWarning,
    integer,
    one_of,
    positive,
    probability,
)
from mapl.learners import (
    MODEL_SELECTION,
    check_class_weight,
    check_classifier,
    check_jobs,
    default_classifier,
    in_model_selection,
)
from mapl.planning.choice import METHODS
from mapl.planning.plan import (
    is_large_delta,
    large_delta_message,
    mostly_noise_message,
)
from mapl.planning.settings import MECHANISMS
from mapl.records.dictionary import Dictionary
from mapl.records.labels import declared_classes
from mapl.release.account import check_ledger


def check_parameters(model: Any, dictionary: Dictionary | None) -> None:
    """Refuse bad parameters before any record is looked at."""
    positive(epsilon=model.epsilon)
    probability(delta=model.delta)
    if model.n_teachers != "auto":
        integer(n_teachers=model.n_teachers, at_least=1)
    if model.n_records is not None:
        integer(n_records=model.n_records, at_least=1)
    one_of("auto", *METHODS, method=model.method)
    one_of("auto", *MECHANISMS, mechanism=model.mechanism)
    one_of("records", "labels", privacy=model.privacy)
    one_of("drop", "random", on_abstain=model.on_abstain)
    one_of("error", "drop", on_invalid=model.on_invalid)
    if model.time_limit is not None:
        positive(time_limit=model.time_limit)
    estimator = default_classifier() if model.estimator is None else model.estimator
    check_classifier(estimator)
    if model.classes is not None:
        declared_classes(model.classes)
    elif model.on_invalid == "drop" and not (dictionary and dictionary.classes):
        raise ParameterError("classes must be given where on_invalid is 'drop'.")
    check_class_weight(model.class_weight, model.method)
    check_jobs(model.n_jobs)
    check_ledger(model.ledger, model.dataset)


_WEAK_EPSILON, _WEAK_DELTA = 20.0, 1e-3


def refuse_fit_params(given: Mapping[str, Any]) -> None:
    """Refuse what scikit-learn's classifiers may take and this one does not."""
    if "sample_weight" in given:
        raise ParameterError(
            "sample_weight is not supported: a record with a large weight would need "
            "as much more noise. Use class_weight for rare classes, or repeat nothing "
            "and leave records out."
        )
    if given:
        raise TypeError(f"fit() got an unexpected keyword argument {min(given)!r}.")


def warn_unsafe_use(model: Any) -> None:
    """Warn of searches over private records, and of parameters that protect nobody."""
    if model.epsilon > _WEAK_EPSILON:
        warnings.warn(
            f"epsilon {model.epsilon:g} protects hardly anybody: probabilities may "
            f"change by a factor e^{model.epsilon:g}. Values up to 8 are usual.",
            PrivacyWarning,
            stacklevel=4,
        )
    if model.delta > _WEAK_DELTA:
        warnings.warn(
            f"delta {model.delta:g} is large: with that probability, anything about a "
            "person may come out. Take at most 1/(10 x number of people).",
            PrivacyWarning,
            stacklevel=4,
        )
    teachers, records = model.n_teachers, model.n_records
    if records is not None and teachers != "auto" and teachers > records:
        warnings.warn(
            f"There are more teachers ({teachers:,}) than records ({records:,}): most "
            "of them learn nothing.",
            stacklevel=4,
        )
    if in_model_selection():
        message = MODEL_SELECTION.format(epsilon=model.epsilon)
        warnings.warn(message, PrivacyWarning, stacklevel=4)
    if model.n_records is not None and is_large_delta(model.delta, model.n_records):
        text = large_delta_message(model.delta, model.n_records)
        warnings.warn(text, PrivacyWarning, stacklevel=4)


def warn_of_noise(model: Any) -> None:
    """Warn where teachers are far too few for the budget."""
    sizes = {"epsilon": model.epsilon, "delta": model.delta}
    if model.method_ == "votes" and (
        message := mostly_noise_message(model.n_teachers_, **sizes)
    ):
        warnings.warn(message, stacklevel=4)
    plan = model.plan_
    if plan is not None and plan.name == "sparse-vector" and not plan.feasible:
        warnings.warn(
            f"About {plan.expected_answers:,} of {plan.n_points:,} public points will "
            "get a label: too few teachers for a sparse vector at this epsilon. "
            "mechanism='auto' answers more.",
            stacklevel=4,
        )


def warn_of_lacking_classes(model: Any) -> None:
    """Say which classes no public point has: their labels are public."""
    given = set(model.public_labels_.tolist())
    lacking = [str(c) for i, c in enumerate(model.classes_) if i not in given]
    made_up = hasattr(model, "made_up_points_")
    point = "made-up record" if made_up else "public point"
    if lacking:
        warnings.warn(
            f"No {point} gets class {', '.join(lacking)}: it is rare, or there is "
            "too little signal. class_weight='balanced' predicts rare classes more "
            "often.",
            stacklevel=5,
        )
