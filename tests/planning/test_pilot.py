"""Teachers tried on public records, and a private estimate of their error."""

import itertools
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import make_classification
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.tree import DecisionTreeClassifier

from mapl import Ledger, accounting
from mapl.errors import BudgetExceededError, ParameterError
from mapl.planning import private_error as module
from mapl.planning.pilot import pilot
from mapl.planning.private_error import in_caps, private_error
from mapl.privacy.events import GaussianEvent
from mapl.records.labels import encode
from mapl.release.account import Budget


def data(n: int = 8000) -> tuple[Any, Any]:
    return make_classification(n, 6, n_informative=4, class_sep=1.0, random_state=0)


def test_a_pilot_sees_what_teachers_of_that_size_do() -> None:
    X, y = data()
    learner = LogisticRegression()
    small = pilot(learner, X, y, records_each=10, n_teachers=60)
    large = pilot(learner, X, y, records_each=200, n_teachers=60)
    assert 0 < large.teacher_error < small.teacher_error < 0.5
    assert small.dissent.shape == (2000,)
    rate = (LogisticRegression().fit(X, y).predict(X) != y).mean()
    assert abs(large.best_error - rate) < 0.03


def test_a_pilot_needs_enough_records() -> None:
    X, y = data(100)
    with pytest.raises(ParameterError, match="at most a tenth of the 100 public"):
        pilot(LogisticRegression(), X, y, records_each=11)
    with pytest.raises(ParameterError, match="at least two classes"):
        pilot(LogisticRegression(), X, 0 * y, records_each=10)
    for few in ("n_teachers", "n_queries"):
        with pytest.raises(ParameterError, match=f"{few} must be an integer >= "):
            pilot(LogisticRegression(), X, y, records_each=10, **{few: 0})
    with pytest.raises(ParameterError, match="same length, got 100, 99"):
        pilot(LogisticRegression(), X, y[:99], records_each=10)
    with pytest.raises(ValueError, match="continuous"):
        pilot(LogisticRegression(), X, X[:, 0], records_each=10)
    with pytest.raises(ParameterError, match="Most of the teachers have no vote"):
        pilot(LogisticRegression(), X + np.nan, y, records_each=10)


def test_teachers_of_a_pilot_are_not_all_the_same() -> None:
    X, y = data(1000)
    found = pilot(LogisticRegression(), X, y, records_each=50, n_teachers=60)
    assert found.dissent.shape == (500,)
    assert found.teacher_error > 0.05


# The private estimate -----------------------------------------------------------------


def largest_move(units: Any, *, k: int = 3, cap: int = 3, most: int = 7) -> int:
    """How far all counts of mistakes, with one of them changed, move the units."""
    move = 0
    for counts in itertools.product(range(most + 1), repeat=k):
        base = units(np.array(counts), cap)
        for j, other in itertools.product(range(k), range(most + 1)):
            changed = np.array(counts)
            changed[j] = other
            move = max(move, abs(units(changed, cap) - base))
    return move


def test_one_block_moves_the_units_by_one() -> None:
    for cap in (1, 2, 3, 4, 7):
        assert largest_move(in_caps, cap=cap) == 1


def test_the_check_catches_a_missing_cap() -> None:
    assert largest_move(lambda counts, cap: int(counts.sum() // cap)) > 1


def test_the_check_catches_records_that_every_teacher_is_tried_on() -> None:
    """Planted bug: a new record in one block is counted by all teachers."""

    def shared(counts: Any, cap: int) -> int:
        return in_caps(np.repeat(counts[:1], 3) + counts[1:].sum(), cap)

    assert largest_move(shared) > 1


def gap(sigma: float, shift: int, epsilon: float) -> float:
    """The divergence of discrete Gaussian noise and itself, shifted; by summing."""
    at = np.arange(-400, 401)
    weights = np.exp(-(at**2) / (2 * sigma**2))
    first = weights / weights.sum()
    second = np.exp(-((at - shift) ** 2) / (2 * sigma**2)) / weights.sum()
    return float(np.maximum(first - np.exp(epsilon) * second, 0).sum())


def test_the_event_covers_one_unit_and_no_more() -> None:
    event = GaussianEvent(sigma=Fraction(7), steps=1)
    for epsilon in (0.05, 0.2, 0.5):
        claimed = accounting.delta([event], epsilon=epsilon)
        assert gap(7, 1, epsilon) <= claimed <= 1.05 * gap(7, 1, epsilon) + 1e-12
        assert gap(7, 2, epsilon) > claimed  # a unit that moves by two
        assert gap(3.5, 1, epsilon) > claimed  # half the noise


def estimate(**kwargs: Any) -> module.PrivateError:
    X, y = data()
    usual: dict[str, Any] = {
        "epsilon": 20.0,
        "delta": 1e-6,
        "n_teachers": 100,
        "n_records": len(X),
        "classes": [0, 1],
    }
    learner = kwargs.pop("estimator", LogisticRegression())
    return private_error(learner, X, y, **usual | kwargs)


def test_it_is_near_the_truth_where_epsilon_allows() -> None:
    X, y = data()
    found = estimate()
    errors = []
    for j in range(20):
        rows = np.arange(j, len(X), 200)
        model = LogisticRegression().fit(X[rows], y[rows])
        errors.append((model.predict(X) != y).mean())
    assert found.standard_error < 0.01
    assert abs(found.error - np.mean(errors)) < 0.03 + 6 * found.standard_error
    assert found.certificate["epsilon"] <= 20
    assert found.certificate["public"]["n_teachers"] == 100


def test_it_is_charged_first_and_refused_when_too_much() -> None:
    budget = Budget(epsilon=0.5, delta=1e-6)
    first = estimate(epsilon=0.4, budget=budget)
    assert budget.epsilon_spent <= 0.4
    assert first.standard_error > estimate(epsilon=4).standard_error
    with pytest.raises(BudgetExceededError):
        estimate(epsilon=0.4, budget=budget)


def test_the_same_again_costs_nothing_and_anything_else_does(url: str) -> None:
    ledger = Ledger(url, create=True)
    ledger.create("people", epsilon=2, delta=1e-4)
    kwargs: dict[str, Any] = {"epsilon": 0.5, "ledger": url, "dataset": "people"}
    found = [estimate(**kwargs) for _ in range(2)]
    assert found[0].error == found[1].error
    assert ledger.balance("people").releases == 1
    assert found[0].certificate["ledger"]["rows"]
    estimate(**kwargs, n_teachers=50)
    estimate(**kwargs, groups=np.arange(8000) // 2)
    estimate(**kwargs, delta=2e-6)
    assert ledger.balance("people").releases == 4


def test_who_is_charged_is_clear(url: str) -> None:
    budget = Budget(epsilon=1, delta=1e-5)
    for kwargs in (
        {"ledger": url},
        {"dataset": "people"},
        {"ledger": url, "dataset": "people", "budget": budget},
    ):
        with pytest.raises(ParameterError, match="who is charged"):
            estimate(epsilon=0.5, **kwargs)


def test_one_label_of_another_kind_moves_one_block() -> None:
    X, y = data(400)
    labels = np.array([0, 1])
    usual = encode(y.tolist(), labels)
    for odd in ("x", None, [3], 0.5, float("nan")):
        codes = encode([odd, *y[1:].tolist()], labels)
        assert codes[0] == -1
        assert (codes[1:] == usual[1:]).all()
        both = [
            module._mistakes(
                LogisticRegression(),
                module._checked_records(X, given, None, labels),
                labels,
                k=4,
                seed=0,
            )
            for given in (y.tolist(), [odd, *y[1:].tolist()])
        ]
        assert (both[0] != both[1]).sum() <= 2  # where it was, and where it is


@pytest.mark.parametrize(
    ("classes", "odd"),
    [([0, 1], odd) for odd in ("x", (1, 2), [3], 1j, ([],), None, b"")]
    + [([2**53, 2**53 + 1], 2**53)],
    ids=str,
)
@pytest.mark.parametrize("at", [0, 200])
def test_a_record_moves_what_is_published_by_one(
    classes: list[int], odd: Any, at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From records to units, whatever a label is; copies but for their labels."""
    monkeypatch.setattr(
        "mapl.privacy.noisy_counts.discrete_gaussian", lambda *_, **__: np.zeros(1, int)
    )
    monkeypatch.setattr(module, "_uncapped", lambda counted, *_: (counted, 1.0))
    before, after = units_with_and_without(classes, odd, at)
    assert before > 10
    assert abs(before - after) < 1.01


def units_with_and_without(classes: list[int], odd: Any, at: int) -> list[float]:
    """What would be published but for the noise, without a label and with it."""
    labels = [classes[i % 2] for i in range(400)]
    return [
        private_error(
            LogisticRegression(),
            np.zeros((len(y), 1)),
            y,
            epsilon=20,
            delta=1e-6,
            n_teachers=20,
            n_records=400,
            classes=classes,
        ).error
        * (20 / 5)  # teachers, and a cap of 5 mistakes
        for y in (labels, [*labels[:at], odd, *labels[at:]])
    ]


def test_the_check_catches_one_label_that_changes_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Planted bug: a label that is no class makes every other one unknown."""
    monkeypatch.setattr(
        "mapl.privacy.noisy_counts.discrete_gaussian", lambda *_, **__: np.zeros(1, int)
    )
    monkeypatch.setattr(module, "_uncapped", lambda counted, *_: (counted, 1.0))
    alone = encode

    def together(y: Any, labels: Any) -> Any:
        codes = alone(y, labels)
        return np.full_like(codes, -1) if (codes < 0).any() else codes

    monkeypatch.setattr(module, "encode", together)
    before, after = units_with_and_without([0, 1], "x", 0)
    assert abs(before - after) > 1.01


def test_labels_are_the_same_in_every_form() -> None:
    import pyarrow as pa

    for classes in ([0, 1], ["0", "1"], [0.0, 1.0]):
        labels = np.unique(np.asarray(classes))
        for cells in ([0, 1], ["0", "1"], [0.0, 1.0], pa.chunked_array([[0, 1]])):
            assert encode(cells, labels).tolist() == [0, 1]
    X, y = data(400)
    kwargs: dict[str, Any] = {"epsilon": 20, "delta": 1e-6, "n_teachers": 50}
    kwargs |= {"n_records": 400, "classes": [0, 1]}
    found = [
        private_error(LogisticRegression(), X, some, **kwargs)
        for some in (y, y[:, None])
    ]
    assert abs(found[0].error - found[1].error) < 0.1
    budget = Budget(epsilon=50, delta=1e-5)
    for wrong in (
        {"random_state": -1},
        {"groups": np.arange(3)},
        {"estimator": LinearRegression()},
    ):
        with pytest.raises(ParameterError):
            estimate(budget=budget, **wrong)
    assert budget.events == []


def test_what_the_cap_cuts_off_is_made_up_for() -> None:
    rng = np.random.default_rng(0)
    for error in (0.05, 0.2, 0.4, 0.6):
        wrong = rng.binomial(rng.poisson(10, 100_000), error)
        counted = float(np.minimum(wrong, 5).mean())
        found, uncut = module._uncapped(counted, 10, 5)
        assert found == pytest.approx(error, abs=0.01)
        assert uncut == pytest.approx((wrong < 5).mean(), abs=0.01)
    assert module._uncapped(5.0, 10, 5)[0] > 0.99
    assert module._uncapped(-1.0, 10, 5)[0] < 1e-9


def test_an_estimate_that_would_be_all_noise_is_refused_and_not_charged() -> None:
    budget = Budget(epsilon=1, delta=1e-5)
    for kwargs, message in (
        ({"n_teachers": 3}, "3 teachers are too few: noise of"),
        ({"classes": [1]}, "two at least"),
    ):
        with pytest.raises(ParameterError, match=message):
            estimate(epsilon=0.5, budget=budget, **kwargs)
    X, y = data(400)
    with pytest.raises(ParameterError, match="same length"):
        private_error(
            LogisticRegression(),
            X,
            y[:399],
            epsilon=1,
            delta=1e-5,
            n_teachers=50,
            n_records=400,
            classes=[0, 1],
            budget=budget,
        )
    assert budget.events == []


def test_records_must_be_numbers() -> None:
    import pandas as pd

    X, y = data(400)
    for records in (pd.DataFrame(X), X.tolist(), X[:, 0], X.astype(object)):
        with pytest.raises(ParameterError, match="X must be an array of numbers"):
            private_error(
                LogisticRegression(),
                records,
                y,
                epsilon=1,
                delta=1e-5,
                n_teachers=5,
                n_records=400,
                classes=[0, 1],
            )


def test_persons_with_many_records_and_undeclared_labels() -> None:
    X, y = data()
    people = np.arange(len(X)) // 40
    found = private_error(
        DecisionTreeClassifier(max_depth=3),
        X,
        np.where(y == 1, "yes", "no"),
        epsilon=8,
        delta=1e-6,
        n_teachers=50,
        n_records=len(X),
        classes=["yes", "other"],
        groups=people,
    )
    assert found.error > 0.3  # half of the labels are none of the classes
    assert found.certificate["unit"] == "all records of one group"


def test_more_teachers_than_records() -> None:
    with pytest.raises(ParameterError, match="n_records"):
        estimate(n_teachers=5000)
    few = estimate(n_teachers=1500, estimator=DecisionTreeClassifier())
    assert 0 <= few.error <= 1  # empty blocks and all
