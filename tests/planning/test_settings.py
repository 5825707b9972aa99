"""One setting: what a plan shows is what a fit opens."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import make_classification

from mapl import (
    ABSTAIN,
    BudgetExceededError,
    Ledger,
    ParameterError,
    PrivateClassifier,
)
from mapl.planning import plan
from mapl.planning.plan import find_setting
from mapl.planning.settings import MECHANISMS, Setting, setting_for
from mapl.privacy.events import GaussianEvent, StableReleaseEvent
from mapl.records.schema import Schema
from mapl.request import request_key

each_mechanism = pytest.mark.parametrize("mechanism", MECHANISMS)


SCHEMA = Schema({})


def sizes(**more: Any) -> dict[str, Any]:
    usual = {"n_records": 3000, "n_queries": 1000, "n_classes": 2}
    return usual | {"epsilon": 4.0, "delta": 1e-5, "n_teachers": 60} | more


def data(n_classes: int = 2) -> tuple[Any, Any, Any]:
    X, y = make_classification(
        4000, n_informative=6, n_classes=n_classes, class_sep=2.0, random_state=0
    )
    return X[:3000], y[:3000], X[3000:]


@each_mechanism
@pytest.mark.parametrize("n_classes", [2, 3])
def test_a_fit_opens_what_the_plan_shows(mechanism: str, n_classes: int) -> None:
    X, y, pool = data(n_classes)
    found = plan(**sizes(n_classes=n_classes))
    shown = next(option for option in found.options if option.name == mechanism)
    model = PrivateClassifier(
        epsilon=4,
        n_teachers=60,
        mechanism=mechanism,
        classes=list(range(n_classes)),
        on_abstain="random",
    ).fit(X, y, X_public=pool, allow_overlap=True)
    assert model.events_ == [model.plan_.event] == [shown.event]
    assert model.plan_.settings.keys() == shown.settings.keys()
    assert model.certificate_["mechanism"] == mechanism


@each_mechanism
def test_a_plan_overrides_the_other_parameters(mechanism: str) -> None:
    X, y, pool = data()
    setting = plan(**sizes(n_teachers=50)).setting(mechanism)
    model = PrivateClassifier(
        epsilon=5, n_teachers=9, plan=setting, classes=[0, 1], on_abstain="random"
    ).fit(X, y, X_public=pool, allow_overlap=True)
    assert model.plan_ is setting
    assert model.events_ == [setting.event]
    assert model.n_teachers_ == 50


def test_a_plan_shows_the_noise_that_a_fit_takes() -> None:
    """For these sizes the plan once message noise 53, 100 dissents, cutoff 1."""
    found = plan(n_records=30_000, n_queries=5000, n_classes=2, epsilon=1, delta=1e-5)
    dissent, _, sparse, _ = found.options
    assert dissent.settings["sigma"] == pytest.approx(263.9, abs=0.1)
    assert dissent.settings["dissents"] == 2500
    assert sparse.settings == {"cutoff": 15, "threshold": 420}


def test_labels_are_predicted_as_they_are_given() -> None:
    X, y, pool = data()
    setting = plan(**sizes(teacher_error=0.12)).setting("dissent")
    model = PrivateClassifier(epsilon=4, plan=setting, classes=[0, 1], random_state=0)
    model.fit(X, y, X_public=pool, allow_overlap=True)
    given = int((model.public_labels_ != ABSTAIN).sum())
    assert abs(setting.expected_answers - given) < 0.05 * len(pool)


@each_mechanism
def test_a_setting_survives_json_and_opens_its_event(mechanism: str) -> None:
    setting = plan(**sizes(n_classes=4)).setting(mechanism)
    again = Setting.from_json(json.loads(json.dumps(setting.to_json())))
    assert again == setting
    assert again.make_mechanism().event == setting.event


@pytest.mark.parametrize(
    "change",
    [
        {"event": {"kind": "gaussian/1"}},
        {"event": 3},
        {"name": "magic"},
        {"name": "sparse-vector"},
        {"n_teachers": 0},
        {"n_points": "many"},
        {"extra": 1},
        {"event": StableReleaseEvent(noise_scale=3, threshold=9).to_json()},
        {"event": GaussianEvent(sigma=3, steps=7).to_json()},  # no whole dissents
    ],
    ids=str,
)
def test_a_changed_setting_is_refused(change: dict[str, Any]) -> None:
    form = plan(**sizes()).setting("dissent").to_json()
    with pytest.raises(ParameterError):
        Setting.from_json(form | change)


def test_a_plan_for_other_sizes_is_refused_before_anything_is_spent() -> None:
    X, y, pool = data()
    setting = plan(**sizes()).setting()
    model = PrivateClassifier(epsilon=4, plan=setting, classes=[0, 1])
    with pytest.raises(ParameterError, match="plan is for 1,000 public points, got 9"):
        model.fit(X, y, X_public=pool[:9], allow_overlap=True)
    model.set_params(classes=[0, 1, 2])
    with pytest.raises(ParameterError, match="plan is for 2 classes, got 3"):
        model.fit(X, y, X_public=pool, allow_overlap=True)
    model.set_params(classes=[0, 1], plan={"name": "dissent"})
    with pytest.raises(ParameterError, match=r"plan must be a setting.*got dict"):
        model.fit(X, y, X_public=pool, allow_overlap=True)
    model.set_params(epsilon=1, plan=setting)
    with pytest.raises(BudgetExceededError, match="Nothing was released"):
        model.fit(X, y, X_public=pool, allow_overlap=True)


def test_a_plan_that_recommends_nothing_says_so() -> None:
    nothing = plan(**sizes(epsilon=0.01, n_teachers=10))
    assert nothing.recommended is None
    with pytest.raises(ParameterError, match="recommends nothing"):
        nothing.setting()
    assert nothing.setting("noisy-max").name == "noisy-max"
    with pytest.raises(ParameterError, match="has no mechanism 'magic'"):
        find_setting(nothing.to_json(), "magic")
    for odd in ({}, {"mechanisms": 3}, {"mechanisms": [3]}, {"mechanisms": [{}]}):
        with pytest.raises(ParameterError, match="has no mechanism 'dissent'"):
            find_setting(odd, "dissent")


def test_votes_change_what_is_expected_and_nothing_else() -> None:
    rng = np.random.default_rng(0)
    for mechanism in MECHANISMS:
        usual = setting_for(
            mechanism,
            n_teachers=int(rng.integers(50, 900)),
            n_points=800,
            n_classes=2,
            epsilon=2.0,
            delta=1e-6,
        )
        assert usual.records_each is None
        other = plan(
            **sizes(
                n_queries=800,
                n_teachers=usual.n_teachers,
                epsilon=2.0,
                delta=1e-6,
                teacher_error=0.05,
            )
        ).setting(mechanism)
        assert other.event == usual.event
        assert other.settings.get("dissents") == usual.settings.get("dissents")


def test_epsilon_limits_a_plan_with_a_ledger_too(tmp_path: Path) -> None:
    X, y, pool = data()
    url = f"sqlite:///{tmp_path}/budget.db"
    ledger = Ledger(url, create=True)
    ledger.create("people", epsilon=10, delta=1e-4)
    model = PrivateClassifier(
        epsilon=0.5,
        plan=plan(**sizes()).setting(),
        classes=[0, 1],
        ledger=url,
        dataset="people",
    )
    with pytest.raises(BudgetExceededError, match=r"of epsilon 0\.5"):
        model.fit(X, y, X_public=pool, allow_overlap=True)
    assert ledger.balance("people").releases == 0


def test_two_plans_with_one_event_are_two_jobs() -> None:
    forms = {}
    for name in ("dissent", "noisy-max"):
        setting = replace(plan(**sizes()).setting("noisy-max"), name=name)
        model = PrivateClassifier(plan=setting, random_state=0)
        model.classes_, model.n_teachers_, model._grouped = np.arange(2), 60, False
        model.method_, model._outline, model._seed = "votes", None, 0
        forms[name] = request_key(model, SCHEMA)
    assert forms["dissent"] != forms["noisy-max"]
