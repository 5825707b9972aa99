"""The theorems against values worked out by hand, and plans that make sense."""

import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from mapl import NoisyMax, SparseVector, Votes, planner
from mapl.cli import main
from mapl.errors import ParameterError
from mapl.planning.pilot import Pilot
from mapl.planning.settings import _asked_until
from mapl.planning.vote_model import VoteModel


def close(value: Any, expected: float) -> bool:
    return math.isclose(float(value), expected, rel_tol=1e-4)


def test_theorems_2_4_and_2_5() -> None:
    # ln(1e5) = 11.512925, ln 20 = 2.995732
    assert close(planner.stable_threshold(2, 1e-5), 11.512925 / 2)
    assert close(planner.stability_needed(2, 1e-5, 0.05), (11.512925 + 2.995732) / 2)


def test_theorem_3_2() -> None:
    # e m = 10; ln(100/0.05) = 7.600902; sqrt(10 * 7.600902 / 2) = 6.164779
    assert close(planner.cutoff(100, 0.1, 0.05), 3 * (10 + 6.164779))


def test_algorithm_2_asks_for_what_the_paper_says() -> None:
    # ln(2e5) = 12.206073; sqrt(32 * 12.206073) = 19.763
    assert close(planner.noise_scale(1, 1e-5, 1), 19.76346)
    found = planner.n_teachers(1, 1e-5, [1, 10, 100], 1000, 0.05)
    assert np.round(found).tolist() == [18822, 66441, 231987]
    # sqrt(32 ln 20) = 9.790962; ln(400/0.025) = 9.680344: here beta/2 is the smaller
    assert close(
        planner.n_teachers(1, 0.1, 1, 100, 0.05),
        34 * math.sqrt(2) * 9.790962 * 9.680344,
    )
    widths = planner.threshold(1, 1e-5, [10, 100], [100, 1000])
    assert np.round(widths).tolist() == [2101, 7555]


def test_lemma_3_3_and_claim_4_1() -> None:
    assert planner.hard_queries(7) == 21
    assert planner.hard_queries(7, 0.5) == 14
    assert close(planner.private_classifier_error(0.01, 0.1), 0.37)
    # ln(1/(0.1 * 0.05)) = 5.298317
    assert close(planner.public_points(0.1, 0.05), 40 * 5.298317)


def test_learner_error() -> None:
    # V + ln(1/beta) = 10 + 2.995732
    realizable = planner.learner_error(1000, 10, 0.05, realizable=True)
    agnostic = planner.learner_error(1000, 10, 0.05, realizable=False, constant=2)
    assert close(realizable, 0.012995732)
    assert close(agnostic, math.sqrt(2 * 0.012995732))
    assert planner.learner_error(1, 10, 0.05, realizable=True) == 1


@pytest.mark.parametrize("realizable", [True, False])
def test_the_loop_is_closed(realizable: bool) -> None:
    kwargs: dict[str, Any] = {"epsilon": 1, "delta": 1e-5, "beta": 0.05}
    sizes = np.logspace(4, 13, 200)
    loop = planner.solve_loop(sizes, 10, 1000, **kwargs, realizable=realizable)
    assert loop.feasible.any()
    assert not loop.feasible.all()
    assert (np.diff(loop.T) <= 1e-6).all()  # more records, fewer abstentions
    k = planner.n_teachers(1, 1e-5, loop.T, 1000, 0.05)
    alpha = planner.learner_error(sizes / k, 10, 0.05 / k, realizable=realizable)
    T = np.maximum(1, planner.cutoff(1000, alpha, 0.05))
    fits = loop.feasible
    np.testing.assert_allclose(T[fits], loop.T[fits], rtol=1e-6)
    wrong = planner.cutoff(1000, alpha, 0.05)[fits] / 1000
    np.testing.assert_allclose(loop.misclassification[fits], wrong, rtol=1e-6)


def test_the_loop_at_its_ends() -> None:
    kwargs: dict[str, Any] = {"delta": 1e-5, "beta": 0.05}
    agnostic = planner.solve_loop(
        *(1e12, 10, 1000), epsilon=1, gamma=0.1, realizable=False, **kwargs
    )
    assert close(agnostic.T, 378.49)
    assert close(agnostic.k, 475_933)
    assert close(agnostic.alpha, 0.0035224)
    one = planner.solve_loop(1e15, 10, [1, 2], epsilon=1, **kwargs)
    assert one.feasible.all()
    assert (one.misclassification < 1e-3).all()  # and not 1/m
    rich = planner.solve_loop(1000, 1, 1000, epsilon=1e6, delta=1e-5, beta=[0.05, 0.5])
    assert (rich.k == 1).all()
    assert rich.feasible.all()


def test_theorems_3_4_and_3_5() -> None:
    assert planner.free_queries(10**6, 10, 0.5) == 50_000
    kwargs: dict[str, Any] = {"realizable": False, "gamma": 0.01}
    assert planner.free_queries(10**6, 10, 0.5, **kwargs) == 100
    kwargs["gamma"] = 0.0
    assert close(planner.free_queries(10**6, 10, 0.5, **kwargs), math.sqrt(50_000))
    # V/(epsilon n) = 2e-5
    assert close(planner.misclassification(100, 10**6, 10, 0.5), 2e-5)
    assert close(planner.misclassification(10**6, 10**6, 10, 0.5), 4e-4)
    low = planner.misclassification(9, 10**6, 10, 0.5, gamma=0.1, realizable=False)
    assert close(low, 0.1 + math.sqrt(2e-5))
    high = planner.misclassification(1e4, 10**6, 10, 0.5, gamma=0.1, realizable=False)
    assert close(high, 0.1 + (1e4 * 4e-10) ** (1 / 3))
    composed = planner.misclassification_by_composition(10**4, 10**6, 10, 0.5)
    assert close(composed, 2e-3)
    gammas = planner.misclassification(
        9, 10**6, 10, 0.5, gamma=[0.1, 0.0], realizable=False
    )
    assert close(gammas[0] - gammas[1], 0.1)


def test_the_cutoff_of_theorems_3_4_and_3_5() -> None:
    # M = 50,000: T is 1 up to there; beyond it grows with the square
    found = planner.cutoff_needed([10, 10**5], 10**6, 10, 0.5)
    np.testing.assert_allclose(found, [1, 4])
    # M = 10; 10^4 * 0.1 + 10^4 (10^4 * 4e-10)^(1/3) = 1000 + 158.74
    kwargs: dict[str, Any] = {"gamma": 0.1, "realizable": False}
    assert close(planner.cutoff_needed(10**4, 10**6, 10, 0.5, **kwargs), 1158.74)


def test_sample_complexity() -> None:
    found = planner.sample_complexity(0.01, 4, 0.5, constant=2)
    # V^1.5/epsilon = 16
    assert close(found["realizable"], 2 * 16 / 0.001)
    assert close(found["realizable, ERM"], 2 * 16 / 0.01)
    assert close(found["realizable, efficient"], 2 * 32 / 0.01)
    assert close(found["agnostic"], 2 * 16 / 1e-5)
    assert close(found["agnostic, not private"], 2 * 4 / 1e-4)
    assert close(found["realizable, not private"], 2 * 4 / 0.01)
    assert close(found["realizable, advanced composition"], 2 * 16 / 1e-4)
    ratio = found["agnostic, advanced composition"] / found["agnostic"]
    assert close(ratio, 10)


def test_the_points_of_a_student() -> None:
    found = planner.student_points(0.1, 10, 0.05)
    # ln 20 = 2.995732
    assert close(found["realizable"], 1299.5732)
    assert close(found["agnostic"], 1299.5732)
    assert close(found["realizable, ERM"], 100)
    assert close(found["realizable, efficient"], 100)


def test_what_epsilon_means() -> None:
    assert close(planner.what_epsilon_means(1.0), math.e / (1 + math.e))
    assert close(planner.what_epsilon_means(math.log(9), prior=0.1), 0.5)


def plan(**kwargs: Any) -> planner.Plan:
    sizes: dict[str, Any] = {"n_records": 32_561, "n_queries": 5000, "n_classes": 2}
    return planner.plan(**sizes | {"epsilon": 1.0, "delta": 1e-5} | kwargs)


def test_plans_go_by_the_numbers() -> None:
    usual = plan()
    assert usual.recommended == "moments"
    assert "With votes alone, dissent is expected" in usual.reason
    answers = {option.name: option.expected_answers for option in usual.options}
    assert answers["dissent"] > 2 * answers["noisy-max"] > 0
    more = {option.name: option for option in plan(epsilon=4.0).options}
    assert more["dissent"].expected_answers > answers["dissent"]
    many = plan(n_records=10**6, teacher_error=0.03)
    sparse, dissent = many.options[2], many.options[0]
    assert sparse.expected_answers > 0.99 * dissent.expected_answers
    assert "With votes alone, dissent" in many.reason  # where it is as good
    assert "votes may change and the winner stays" in many.options[2].why
    assert "differs from the plurality of all teachers on 0.03" in many.assumed
    few = plan(n_queries=2, n_classes=10).options
    assert all(option.expected_answers <= 2 for option in few)


def test_where_sums_are_too_noisy_votes_may_still_fit() -> None:
    option = plan(n_records=32_561, epsilon=1e-4).options[-1]
    assert (option.name, option.feasible) == ("moments", False)
    assert "too little to learn from" in option.why
    only_votes = plan(n_records=100, n_queries=20, epsilon=0.4, n_teachers=100)
    assert only_votes.recommended in (None, "dissent", "noisy-max", "sparse-vector")


def test_an_infeasible_plan_says_by_how_much() -> None:
    made = plan(n_records=500, epsilon=0.05)
    assert not any(option.feasible for option in made.options)
    sparse = made.options[2]
    needs = re.search(r"needs ([\d,]+) teachers of at least 25 records", sparse.why)
    assert needs is not None
    assert made.recommended is None
    found = re.search(r"epsilon of ([\d.]+) .* about ([\d,]+) records", made.reason)
    assert found is not None
    # What it asks for does fit, and a little less does not.
    epsilon, records = float(found[1]), int(found[2].replace(",", ""))
    few: dict[str, Any] = {"n_records": 500, "n_teachers": 20}
    assert plan(epsilon=epsilon, **few).options[0].feasible
    assert not plan(epsilon=0.95 * epsilon, **few).options[0].feasible
    grown = plan(n_records=records, n_teachers=records // 25, epsilon=0.05)
    assert grown.options[0].feasible
    sparse_k = int(needs[1].replace(",", ""))
    enough = plan(n_records=25 * sparse_k, epsilon=0.05).options[2]
    assert enough.feasible
    assert not plan(n_records=20 * sparse_k, epsilon=0.05).options[2].feasible
    divided = plan(teacher_error=0.49999, n_queries=20).options[2]
    assert "too divided, however many" in divided.why
    # A mechanism that does not fit is not recommended.
    odd = plan(n_records=10**6, epsilon=0.0281, delta=1e-8, teacher_error=0.03)
    assert not odd.options[0].feasible
    assert "With votes alone, sparse-vector" in odd.reason
    tiny = plan(n_records=10**7, epsilon=1e-4)
    assert "You have them: ask for that many teachers." in tiny.reason
    fewer = plan(n_teachers=50, epsilon=4.0, delta=1e-6).options[2]
    assert re.search(r"needs \d+ teachers; ask for that many", fewer.why)
    assert (fewer.n_teachers, fewer.records_each) == (50, 651)
    with pytest.raises(ParameterError, match="n_records must be an integer"):
        plan(n_records=0)
    with pytest.raises(ParameterError, match=r"teacher_error must be < 0\.5"):
        plan(teacher_error=0.5)
    for wrong, message in ((-0.1, "> 0"), (0.9, r"< 0\.9"), ("a", "> 0")):
        with pytest.raises(ParameterError, match=f"best_error must be .*{message}"):
            plan(best_error=wrong, n_classes=10)
    for kwargs in ({"epsilon": 1e308}, {"epsilon": 1e-12}, {"delta": 1e-300}):
        with pytest.raises(ParameterError, match="Plans are made for epsilon from"):
            plan(**kwargs)
    with pytest.raises(ParameterError, match="n_teachers must be an integer >= 1"):
        plan(n_teachers=0)
    with pytest.raises(ParameterError, match="must not exceed the 32,561 records"):
        plan(n_teachers=40_000)
    assert plan(n_records=30, n_queries=2, epsilon=100.0).options[2].n_teachers >= 1
    one = plan(n_records=10_000, n_queries=1, epsilon=2.0).options[2]
    assert one.feasible == (one.expected_answers == 1)
    assert plan(n_records=3).options[0].n_teachers == 3
    assert planner.teachers_for(1e6, 2, None) == planner.teachers_for(1, 2, 50) == 5
    assert planner.teachers_for(1e-6, 2, None) == 5000


def test_the_error_of_the_plurality_is_counted_however_small() -> None:
    for n_classes, error in ((2, 0.15), (2, 0.45), (10, 0.15), (10, 0.5)):
        votes = [VoteModel.by_law(error, best, n_classes) for best in (0, 0.01, 0.05)]
        none = np.zeros(len(votes[0].lead))
        for some, best in zip(votes, (0, 0.01, 0.05), strict=True):
            assert abs(some.label_error(none) - best) < 2e-3
        wrong = [some.label_error(some.flipped(1 / 6)) for some in votes]
        assert wrong[0] <= wrong[1] <= wrong[2]
        assert wrong[0] < wrong[2] or error == 0.45  # where all is a toss of a coin
    for error in np.linspace(0.001, 0.03, 30):
        assert plan(teacher_error=error).options[0].expected_error is not None
    sure = plan(n_records=200_000, delta=1e-7, best_error=0.1).options[2]
    assert 0 < (sure.expected_error or 0) < 0.1  # it answers where teachers agree


@pytest.mark.parametrize(
    "kwargs",
    [
        {"epsilon": -1},
        {"delta": 2},
        {"n": 0},
        {"gamma": -0.1, "realizable": False},
        {"gamma": 0.1},
    ],
    ids=str,
)
def test_the_loop_refuses_what_the_theorem_does_not_speak_of(
    kwargs: dict[str, Any],
) -> None:
    usual = {
        "n": 10**6,
        "vc_dim": 10,
        "m": 100,
        "epsilon": 1,
        "delta": 1e-5,
        "beta": 0.1,
    }
    with pytest.raises(ParameterError, match=r"must be > 0|realizable=False"):
        planner.solve_loop(**usual | kwargs)


def test_unsafe_settings_are_warned_about() -> None:
    assert plan(n_records=10_000, delta=1e-5).warnings == []
    tried = Pilot(np.full(9, 0.1), np.full(9, 0.8), best_error=0.1, records_each=1000)
    (message,) = plan(delta=1e-6, pilot=tried).warnings
    assert "pilot(records_each=153)" in message
    assert plan(delta=1e-6).warnings == []
    (rather,) = plan(delta=1e-5).warnings
    assert "rather large. Take 3e-06 or less" in rather
    (too_large,) = plan(delta=1e-4).warnings
    assert "a method that publishes one record whole" in too_large
    for n_records in (15_000, 32_561, 99_999):
        (message,) = plan(n_records=n_records, delta=1e-4).warnings
        advised = float(re.findall(r"Take (\S+) or less", message)[0])
        assert plan(n_records=n_records, delta=advised).warnings == []
    (classes,) = plan(delta=1e-6, n_classes=50).warnings
    assert "1,061 teachers have 30 records each for 50 classes" in classes


def test_queries_are_asked_until_so_many_are_withheld() -> None:
    for T, withheld, m in ((1, 0.1, 50), (3, 0.02, 400), (4, 0.5, 4), (2, 0.9, 30)):
        exact = sum(
            sum(
                math.comb(i, j) * withheld**j * (1 - withheld) ** (i - j)
                for j in range(T)
            )
            for i in range(m)
        )
        assert close(_asked_until(T, withheld, m), exact)
    assert close(_asked_until(1, 0.0, 10), 10)
    for m in (10**6, 10**26):
        assert close(_asked_until(3, 0.083, m), 3 / 0.083)


def test_how_often_votes_are_withheld_is_what_the_mechanism_does() -> None:
    rng = np.random.default_rng(0)
    k, n = 200, 20_000
    dissent = rng.uniform(0, 0.5, n)
    votes = (rng.random((k, n)) < dissent).astype(np.int8)
    counts = votes.sum(axis=0) / k
    lead = np.abs(1 - 2 * counts)
    model = VoteModel(np.minimum(counts, 1 - counts), lead, 0.0, 2)
    mechanism = SparseVector(noise_scale=10, threshold=40, cutoff=n)
    answer = mechanism.answer(Votes(votes, 2))
    predicted = float(model.withheld(k, mechanism).mean())
    assert abs(float((~answer.answered).mean()) - predicted) < 0.02


def test_labels_are_wrong_by_noise_and_with_the_plurality() -> None:
    lead = np.linspace(0, 1, 1001)
    for best_error, n_classes in ((0.0, 2), (0.1, 2), (0.3, 2), (0.6, 10)):
        votes = VoteModel((1 - lead) / 2, lead, best_error, n_classes)
        assert abs(votes.label_error(np.zeros(1001)) - best_error) < 1e-3
        flipped = votes.flipped(0.2)
        more = votes.label_error(flipped) - best_error
        assert 0 <= more < float(flipped.mean()) + 1e-3
    votes = VoteModel((1 - lead) / 2, lead, 0.0, 2)
    # Two classes: of noise s on one count, 2s on the lead; more: of two counts.
    assert close(votes.flipped(0.25)[1000], 0.02275013194817921)  # two deviations


@pytest.mark.parametrize("n_classes", [2, 3, 10])
@pytest.mark.parametrize("error", [0.1, 0.3])
def test_how_often_noise_decides_is_what_the_mechanism_does(
    n_classes: int, error: float
) -> None:
    """Votes by the stated law, released by the mechanism itself."""
    model = VoteModel.by_law(error, 0.0, n_classes)
    assert abs(model.dissent.mean() - error) < 1e-3
    k, others = 600, max(n_classes - 2, 1)
    counts = np.zeros((len(model.lead), n_classes))
    counts[:, 0] = 1 - model.dissent
    counts[:, 1] = counts[:, 0] - model.lead
    counts[:, 2:] = (1 - counts[:, :2].sum(axis=1, keepdims=True)) / others
    assert counts.min() > -1e-9
    assert (counts[:, :1] >= counts - 1e-9).all()
    ends = np.round(k * counts.cumsum(axis=1)).astype(int)
    votes = np.array([np.searchsorted(row, np.arange(k), side="right") for row in ends])
    ballots = Votes(np.ascontiguousarray(votes.T.astype(np.int8)), n_classes)
    mechanism = NoisyMax(sigma=k // 6, n_queries=20_000, n_classes=n_classes)
    wrong = np.mean([(mechanism.answer(ballots).labels != 0).mean() for _ in range(10)])
    assert abs(model.flipped(1 / 6).mean() - wrong) < 0.01


def test_a_pilot_takes_the_place_of_the_law() -> None:
    tried = Pilot(
        np.full(100, 0.02), np.full(100, 0.96), best_error=0.01, records_each=100
    )
    made = plan(pilot=tried, n_teachers=300)
    usual = plan(n_teachers=300)
    assert [option.n_teachers for option in made.options] == [300, 300, 300, 0]
    more, less = (found.options[0].expected_answers for found in (made, usual))
    assert more > less > 0
    assert made.options[2].expected_answers > 1000  # nobody is divided


def test_mapl_plan() -> None:
    sizes = ["--records", "32561", "--queries", "6512", "--epsilon", "1"]
    result = CliRunner().invoke(main, ["plan", *sizes, "--json", "--vc-dim", "10"])
    made = json.loads(result.stdout)
    assert made["recommended"] == "moments"
    assert {"name", "n_teachers", "feasible", "expected_answers"} <= set(
        made["mechanisms"][0]
    )
    assert made["paper"]["feasible"] is False
    assert made["asked"]["n_records"] == 32561
    shown = CliRunner().invoke(main, ["plan", *sizes, "--vc-dim", "10"]).stdout
    found = re.search(r"promises nothing here; with ([\d,]+) records it", shown)
    assert found is not None
    records = int(found[1].replace(",", ""))
    assert "from 50% to 73.2%" in shown  # 73.11, rounded up
    assert "lost to noise" in shown
    more = ["plan", *sizes[2:], "--records", str(records), "--vc-dim", "10"]
    message = CliRunner().invoke(main, more).stdout
    assert "of the answers are wrong or withheld" in message
    never = ["plan", *sizes, "--vc-dim", "1", "--best-error", "0.4"]
    assert "no number of records" in CliRunner().invoke(main, never).stdout
    few = ["plan", *sizes, "--teachers", "10", "--epsilon", "0.0001", "--json"]
    assert json.loads(CliRunner().invoke(main, few).stdout)["recommended"] is None
    assert "Nothing fits" in CliRunner().invoke(main, few[:-1]).stdout
    for name in ("--epsilon", "--vc-dim", "--failure-prob"):
        bad = CliRunner().invoke(main, ["plan", *sizes, name, "0"])
        assert bad.exit_code == 2
        assert name[2:].replace("-", "_") in bad.stderr


def test_mapl_plan_draws(tmp_path: Path) -> None:
    sizes = ["--records", "3000", "--queries", "900", "--epsilon", "1"]
    target = tmp_path / "plan.png"
    found = CliRunner().invoke(main, ["plan", *sizes, "--plot", str(target)])
    assert found.exit_code == 0
    assert target.read_bytes().startswith(b"\x89PNG")
    assert f"Wrote {target}" in found.stdout
    large = ["plan", *sizes, "--epsilon", "1e6", "--plot", str(target)]
    assert CliRunner().invoke(main, large).exit_code == 0
    bad = CliRunner().invoke(main, ["plan", *sizes, "--plot", "plan.xyz"])
    assert bad.exit_code == 2
    assert "--plot must end in .png" in bad.stderr
