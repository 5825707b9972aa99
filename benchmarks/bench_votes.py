"""Every aggregator on the same votes: answers, their accuracy, and students.

    python benchmarks/bench_votes.py --data DIR [--runs 5] [--parts pate,own,students]
        [--sets adult,mnist,covtype] [--json]

DIR holds pate_votes.npz, mnist.npz, adult.parquet and covtype.parquet. delta is 1e-5.

pate      the vote tables of the PATE authors (2018). They are histograms, so votes are
          dealt to the 250 teachers at random; the guess comes from a student of the
          points themselves. Every aggregator is offered the same points in the same
          order.
own       votes of 250 teachers trained here, at one noise: how many labels each
          aggregator gives for an epsilon, and how good they are.
students  what is learned in the end; the number of teachers goes by the rule. Noisy
          max is tuned over its noise on the test part, to its advantage, and its
          student is the same.
"""

import argparse
import json
import math
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn.base import clone
from sklearn.decomposition import PCA
from sklearn.ensemble import ExtraTreesClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.svm import SVC

from bench_learner import encoder, load
from mapl import (
    ABSTAIN,
    ChargedDissent,
    ConfidentNoisyMax,
    NoisyMax,
    PrivateClassifier,
    SparseVector,
    Votes,
    accounting,
)
from mapl.learners import fit_labels
from mapl.privacy.answers import ShareBatch
from mapl.privacy.calibration import least_sigma
from mapl.privacy.gaussian_prices import gaussian_limit
from mapl.privacy.noisy_counts import steps_per_query
from mapl.records.encoding import public_features
from mapl.student.smoothing import Shares, Smoother, decide
from mapl.teachers.panel import ask
from mapl.teachers.training import train

DELTA = 1e-5
N_TEACHERS = 250
Data = tuple[Any, Any, Any, Any, Any, Any]  # private X, y; pool X, y; test X, y


# Data -------------------------------------------------------------------------------


def adult(folder: Path, run: int) -> Data:
    X, y, X_test, y_test = load(folder)
    order = np.random.default_rng(run).permutation(len(X))
    pool, private = order[: len(X) // 5], order[len(X) // 5 :]
    code = encoder(X.iloc[pool]).transform
    return (
        *(code(X.iloc[private]), y[private]),
        *(code(X.iloc[pool]), y[pool], code(X_test), y_test),
    )


def mnist(folder: Path, run: int) -> Data:
    z = np.load(folder / "mnist.npz")
    X, X_test = (z[f"X_{part}"].reshape(-1, 784) / 255.0 for part in ("train", "test"))
    order = np.random.default_rng(run).permutation(len(X))
    pool, private = order[:12_000], order[12_000:]
    y = z["y_train"].astype(int)
    code = PCA(50, random_state=0).fit(X[pool]).transform
    return (
        *(code(X[private]), y[private], code(X[pool]), y[pool]),
        *(code(X_test), z["y_test"].astype(int)),
    )


def covtype(folder: Path, run: int) -> Data:
    table = pd.read_parquet(folder / "covtype.parquet")
    y = table.pop("Cover_Type").to_numpy(int) - 1
    X = table.to_numpy(np.float32)
    order = np.random.default_rng(run).permutation(len(X))
    test, pool, private = np.split(order, [20_000, 70_000])
    return X[private], y[private], X[pool], y[pool], X[test], y[test]


SETS: dict[str, tuple[Callable[[Path, int], Data], int, Any, Any]] = {
    # data, classes, teacher, student
    "adult": (adult, 2, LogisticRegression(C=10, max_iter=200), None),
    "mnist": (mnist, 10, SVC(C=10), SVC()),
    "covtype": (
        covtype,
        7,
        ExtraTreesClassifier(30, max_features=0.5),
        ExtraTreesClassifier(50, max_features=0.5, min_samples_leaf=5),
    ),
}


# Aggregators ------------------------------------------------------------------------


class InOrder:
    """Charged dissent over points in a given order, each asked for once; the guess
    comes from a student of what was published, refitted as batches grow.
    """

    def __init__(self, features: Any, order: Any, mechanism: ChargedDissent) -> None:
        self.features, self.order, self.mechanism = features, order, mechanism
        n_classes = mechanism.n_classes
        self.shares = Shares(len(features), n_classes)
        self.variance = (float(mechanism.sigma) / mechanism.n_teachers) ** 2
        rng = np.random.default_rng(0)
        self.student = Smoother(features, self.variance, rng)
        self.smooth = np.full((len(features), n_classes), 1 / n_classes)
        self.asked, self.spent = 0, 0.0

    def ask(self, votes: Any, *, until_spent: bool) -> None:
        """Ask for all, or until the published counts say that dissents run out."""
        n, dissents = len(self.order), self.mechanism.dissents
        while self.asked < n:
            size = max(20, self.asked // 3)
            if until_spent:
                price = max(0.02, 1 - float(self.smooth.max(axis=1).mean()))
                room = 0.95 - self.spent
                if room <= 0.02:
                    return
                size = min(size, int(room * dissents / price) + 1)
            rows = self.order[self.asked : self.asked + size]
            guess = self.smooth[rows].argmax(axis=1)
            answer = self.mechanism.answer(
                Votes(votes[:, rows], self.mechanism.n_classes), guess
            )
            batch = ShareBatch(rows, guess, answer.shares)
            self.shares.add(batch)
            self.asked += len(rows)
            expected = float((1 - self.smooth[rows].max(axis=1)).sum())
            self.spent += max(batch.dissent(), expected / 2) / dissents
            last = self.asked >= n
            self.smooth = self.student.fit(self.shares, self.spent, last=last)

    def decided(self) -> tuple[Any, Any]:
        """Return label and sureness of each point that was asked for, in order."""
        found = decide(self.shares, self.smooth, self.variance)
        rows = self.order[: self.asked]
        return found.label[rows], found.share[rows]


def gaussian_epsilon(steps_over_sigma2: list[tuple[int, float]]) -> float:
    from fractions import Fraction

    from mapl.privacy.events import GaussianEvent

    events = [
        GaussianEvent(sigma=Fraction(str(sigma)), steps=steps)
        for steps, sigma in steps_over_sigma2
    ]
    return accounting.epsilon(events, delta=DELTA)


def data_dependent_epsilon(
    counts: Any, answered: Any, threshold: float, check: float, sigma: float
) -> float:
    """The epsilon of PATE 2018 (Theorem 6, Proposition 10): a function of the private
    votes, which therefore MUST NOT BE PUBLISHED. Here the votes are public.
    """
    from scipy.special import erfc, log_ndtr

    orders = np.concatenate((np.arange(1.5, 10, 0.25), np.arange(10, 500, 5)))
    top = np.sort(counts, axis=1)[:, ::-1].astype(float)
    total = np.zeros(len(orders))
    # The check: a coin whose probability moves when the top count moves by 1.
    coins = np.zeros((len(top), len(orders)))
    for move in (-1, 1):
        z, w = (top[:, 0] - threshold) / check, (top[:, 0] + move - threshold) / check
        both = [
            orders * log_ndtr(sign * z)[:, None]
            + (1 - orders) * log_ndtr(sign * w)[:, None]
            for sign in (1, -1)
        ]
        coins = np.maximum(coins, np.logaddexp(*both) / (orders - 1))
    total += coins.sum(axis=0)
    # The answer, where there was one.
    some = top[answered]
    q = np.minimum(
        0.5 * erfc((some[:, :1] - some[:, 1:]) / (2 * sigma)).sum(axis=1), 1 - 1e-9
    )[:, None]
    plain = orders / sigma**2
    second = sigma * np.sqrt(np.log(1 / np.maximum(q, 1e-300)))
    first = second + 1
    e1, e2 = first / sigma**2, second / sigma**2
    with np.errstate(all="ignore"):
        allowed = (orders <= first) & (second > 1)
        bound = np.exp((second - 1) * e2)
        bound /= ((first / (first - 1)) * (second / (second - 1))) ** second
        allowed &= q <= bound
        a = (1 - q) / (1 - (q * np.exp(e2)) ** ((second - 1) / second))
        log_b = e1 - np.log(q) / (first - 1)
        better = np.logaddexp(
            np.log1p(-q) + (orders - 1) * np.log(a), np.log(q) + (orders - 1) * log_b
        ) / (orders - 1)
    total += np.where(allowed, np.minimum(better, plain), plain).sum(axis=0)
    return float((total + math.log(1 / DELTA) / (orders - 1)).min())


# Part 1: the votes of the PATE authors ----------------------------------------------

PATE = {
    # points offered, threshold, noise of the check, noise; answers to beat; epsilons
    "mnist": (640, 200, 150, 40, 286, (2.0, 1.5)),
    "adult": (1500, 300, 200, 40, 524, (1.3, 1.1)),
}


def pate_points(folder: Path, name: str) -> Any:
    if name == "mnist":
        X = np.load(folder / "mnist.npz")["X_test"][:9000].reshape(-1, 784) / 255.0
        return PCA(50, random_state=0).fit_transform(X)
    X = load(folder)[2]
    return encoder(X).transform(X)


def dealt(counts: Any, rng: np.random.Generator) -> Any:
    """Deal each histogram's votes to the teachers at random."""
    n, n_classes = counts.shape
    votes = np.repeat(np.tile(np.arange(n_classes), n), counts.ravel())
    return rng.permuted(votes.reshape(n, -1), axis=1).T.astype(np.int8)


def pate(folder: Path, runs: int) -> Iterator[dict[str, Any]]:
    z = np.load(folder / "pate_votes.npz")
    for name, (m, threshold, check, sigma, goal, epsilons) in PATE.items():
        counts = z[f"{name}_votes"].astype(int)
        truth = z[f"{name}_labels"].astype(int)
        features = pate_points(folder, name)
        n_classes = counts.shape[1]
        found: dict[str, list[tuple[float, ...]]] = {}
        for run in range(runs):
            rng = np.random.default_rng(run)
            order = rng.permutation(len(counts))[:m]
            votes = np.zeros((N_TEACHERS, len(counts)), dtype=np.int8)
            votes[:, order] = dealt(counts[order], rng)
            offered = Votes(votes[:, order], n_classes)
            mechanism = ConfidentNoisyMax(
                sigma=sigma,
                check_sigma=check,
                threshold=threshold,
                n_queries=m,
                n_answers=m,
                n_classes=n_classes,
            )
            labels = mechanism.answer(offered)
            answered = labels != ABSTAIN
            n_answers = int(answered.sum())
            steps = steps_per_query(n_classes) * n_answers
            right = float((labels == truth[order])[answered].mean())
            independent = gaussian_epsilon([(m, check), (steps, sigma)])
            dependent = data_dependent_epsilon(
                counts[order], answered, threshold, check, sigma
            )
            found.setdefault("confident noisy max", []).append(
                (n_answers, right, independent)
            )
            found.setdefault("  its epsilon from the votes: UNPUBLISHABLE", []).append(
                (n_answers, right, dependent)
            )
            for epsilon in epsilons:
                two: dict[str, Any] = {"epsilon": epsilon, "delta": DELTA}
                published = SparseVector.published(**two, cutoff=10, n_queries=m)
                tight = SparseVector.for_budget(**two, cutoff=10)
                for kind, sparse in (("published", published), ("tight", tight)):
                    given = sparse.answer(offered)
                    hits = given.labels[given.answered] == truth[order][given.answered]
                    rate = float(hits.mean()) if hits.size else math.nan
                    title = f"Algorithm 2, {kind}, epsilon {epsilon}"
                    found.setdefault(title, []).append((hits.size, rate, epsilon))
                most = int(
                    sigma**2 * gaussian_limit(**two) / steps_per_query(n_classes)
                )
                plain = NoisyMax.for_budget(
                    **two, n_queries=min(m, most), n_classes=n_classes
                )
                some = order[: plain.n_queries]
                given_labels = plain.answer(Votes(votes[:, some], n_classes)).labels
                rate = float((given_labels == truth[some]).mean())
                title = f"noisy max, epsilon {epsilon}"
                found.setdefault(title, []).append((len(some), rate, epsilon))
                charged = ChargedDissent.for_budget(
                    **two,
                    dissents=2 * m // 5,
                    n_teachers=N_TEACHERS,
                    n_classes=n_classes,
                    n_queries=m,
                )
                rounds = InOrder(features, order, charged)
                rounds.ask(votes, until_spent=False)
                decided, lead = rounds.decided()
                sure = np.argsort(-lead)[: max(int(goal * 1.05), n_answers)]
                rate = float((decided == truth[order])[sure].mean())
                title = f"charged dissent, epsilon {epsilon}"
                found.setdefault(title, []).append((len(sure), rate, epsilon))
        for title, rows in found.items():
            answers, right, epsilon = np.mean(rows, axis=0)
            yield {
                "votes": f"PATE {name}",
                "offered": m,
                "aggregator": title,
                "answers": round(float(answers), 1),
                "accuracy": round(100 * float(right), 2),
                "epsilon": round(float(epsilon), 2),
            }


# Part 2: votes of our own -----------------------------------------------------------


def own(folder: Path, runs: int, names: list[str]) -> Iterator[dict[str, Any]]:
    sigma = N_TEACHERS // 3
    for name in names:
        read, n_classes, teacher, _ = SETS[name]
        found: dict[tuple[float, str], list[tuple[float, float]]] = {}
        for run in range(runs):
            X, y, pool, y_pool, _, _ = read(folder, run)
            votes = own_votes(teacher, X, y, pool, n_classes, run)
            features = public_features(teacher, pool)
            order = np.random.default_rng(run).permutation(len(pool))
            for epsilon in (1.0, 2.0):
                two: dict[str, Any] = {"epsilon": epsilon, "delta": DELTA}
                budget = sigma**2 * gaussian_limit(**two)
                q = int(budget / steps_per_query(n_classes))
                assert float(least_sigma(**two, steps=int(budget))) <= sigma
                plain = NoisyMax(sigma=sigma, n_queries=q, n_classes=n_classes)
                rows = order[:q]
                labels = plain.answer(Votes(votes[:, rows], n_classes)).labels
                rate = float((labels == y_pool[rows]).mean())
                found.setdefault((epsilon, "noisy max"), []).append((q, rate))
                charged = ChargedDissent(
                    sigma=sigma,
                    dissents=int(budget / 2),
                    n_teachers=N_TEACHERS,
                    n_classes=n_classes,
                )
                rounds = InOrder(features, order, charged)
                rounds.ask(votes, until_spent=True)
                decided, _ = rounds.decided()
                rate = float((decided == y_pool[order[: rounds.asked]]).mean())
                found.setdefault((epsilon, "charged dissent"), []).append(
                    (rounds.asked, rate)
                )
        for (epsilon, title), pairs in found.items():
            answers, right = np.mean(pairs, axis=0)
            yield {
                "votes": f"own {name}, 250 teachers",
                "noise": sigma,
                "epsilon": epsilon,
                "aggregator": title,
                "answers": round(float(answers)),
                "accuracy": round(100 * float(right), 2),
            }


# Part 3: students -------------------------------------------------------------------

EPSILONS = {
    "adult": (0.3, 0.5, 1.0, 2.0),
    "mnist": (0.5, 1.0, 2.0, 4.0),
    "covtype": (0.5, 1.0, 2.0, 4.0),
}
GOALS = {
    "adult": {0.3: 82.2, 0.5: 82.9, 1.0: 83.8, 2.0: 84.1},
    "mnist": {1.0: 80.5, 2.0: 87.0, 4.0: 89.5},
    "covtype": {1.0: 71.0, 2.0: 73.0, 4.0: 75.0},
}


def students(folder: Path, runs: int, names: list[str]) -> Iterator[dict[str, Any]]:
    for name in names:
        read, n_classes, teacher, student = SETS[name]
        scores: dict[float, list[float]] = {epsilon: [] for epsilon in EPSILONS[name]}
        tuned: dict[float, list[list[float]]] = {e: [] for e in EPSILONS[name]}
        k, seconds = {}, {}
        for run in range(runs):
            X, y, pool, _, X_test, y_test = read(folder, run)
            votes = own_votes(teacher, X, y, pool, n_classes, run)
            for epsilon in EPSILONS[name]:
                model = PrivateClassifier(
                    teacher,
                    method="votes",
                    epsilon=epsilon,
                    delta=DELTA,
                    n_records=len(X),
                    student=student,
                    classes=list(range(n_classes)),
                    n_jobs=2,
                    random_state=run,
                )
                start = time.perf_counter()
                model.fit(X, y, X_public=pool, allow_overlap=True)
                seconds[epsilon] = time.perf_counter() - start
                k[epsilon] = model.n_teachers_
                scores[epsilon].append(model.score(X_test, y_test))
                rest = (votes, n_classes, pool, X_test, y_test)
                learner = teacher if student is None else student
                tuned[epsilon].append(tuned_noisy_max(learner, epsilon, *rest))
                print(
                    f"{name}, run {run + 1} of {runs}, epsilon {epsilon}: "
                    f"{scores[epsilon][-1]:.4f} in {seconds[epsilon]:.0f} s, "
                    f"noisy max {max(tuned[epsilon][-1]):.4f}",
                    file=sys.stderr,
                )
        for epsilon in EPSILONS[name]:
            yield {
                "student": name,
                "epsilon": epsilon,
                "teachers": k[epsilon],
                "accuracy": round(100 * float(np.mean(scores[epsilon])), 2),
                "spread": round(100 * float(np.std(scores[epsilon])), 2),
                "goal": GOALS[name].get(epsilon),
                "noisy_max_of_250_tuned_on_test": round(
                    100 * float(np.mean(tuned[epsilon], axis=0).max()), 2
                ),
                "fit_seconds": round(seconds[epsilon], 1),
            }


def own_votes(teacher: Any, X: Any, y: Any, pool: Any, n_classes: int, run: int) -> Any:
    """The votes of 250 teachers on the pool."""
    chunks = np.array_split(np.arange(len(X)), N_TEACHERS)
    labels = np.arange(n_classes)
    teachers = train(teacher, X, y, chunks, labels=labels, random_state=run)
    return ask(teachers, pool, n_classes=n_classes)


def tuned_noisy_max(
    learner: Any,
    epsilon: float,
    votes: Any,
    n_classes: int,
    pool: Any,
    X_test: Any,
    y_test: Any,
) -> list[float]:
    """Scores of students of noisy max at several noises; the best mean is taken."""
    two: dict[str, Any] = {"epsilon": epsilon, "delta": DELTA}
    limit = gaussian_limit(**two)
    scores = []
    for part in (0.05, 0.1, 0.2, 0.35, 0.6, 1.0):  # sigma, of the teachers
        q = int((part * N_TEACHERS) ** 2 * limit / steps_per_query(n_classes))
        q = max(1, min(q, len(pool), 8000))
        mechanism = NoisyMax.for_budget(**two, n_queries=q, n_classes=n_classes)
        rows = np.random.default_rng(q).permutation(len(pool))[:q]
        labels = mechanism.answer(Votes(votes[:, rows], n_classes)).labels
        model = fit_labels(clone(learner), pool[rows], labels)
        scores.append(float(model.score(X_test, y_test)))
    return scores


def throughput() -> dict[str, Any]:
    """10^5 queries of 250 teachers in batches with a fixed guess, over a numpy sum."""
    rng = np.random.default_rng(0)
    votes = (rng.random((N_TEACHERS, 100_000)) < 0.1).astype(np.int8)
    start = time.perf_counter()
    for _ in range(3):
        (votes == 1).sum(axis=0)
    bare = (time.perf_counter() - start) / 3
    mechanism = ChargedDissent(
        sigma=1000, dissents=50_000, n_teachers=N_TEACHERS, n_classes=2
    )
    guess = np.zeros(10_000, dtype=np.int64)
    start = time.perf_counter()
    for at in range(0, 100_000, 10_000):
        mechanism.answer(Votes(votes[:, at : at + 10_000], 2), guess)
    ours = time.perf_counter() - start
    return {
        "throughput": "10^5 queries x 250 teachers, batches of 10^4",
        "seconds": round(ours, 3),
        "over_a_numpy_sum": round(ours / bare, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--parts", default="pate,own,students,throughput")
    parser.add_argument("--sets", default="adult,mnist,covtype")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    names = options.sets.split(",")
    parts: dict[str, Callable[[], Any]] = {
        "pate": lambda: pate(options.data, options.runs),
        "own": lambda: own(options.data, options.runs, names),
        "students": lambda: students(options.data, options.runs, names),
        "throughput": lambda: [throughput()],
    }
    for part in options.parts.split(","):
        for row in parts[part]():
            row = {**row, "runs": options.runs, "delta": DELTA}
            if options.json:
                print(json.dumps(row), flush=True)
            else:
                print("  ".join(f"{n}={v}" for n, v in row.items()), flush=True)


if __name__ == "__main__":
    main()
