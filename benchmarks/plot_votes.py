"""Draw docs/img/answers.svg: labels against epsilon, on the PATE authors' MNIST votes.

    python benchmarks/plot_votes.py --data DIR [--noise 40] [--runs 3]

The same noise for all; delta 1e-5; 9000 points in random order. Histograms are dealt to
250 teachers at random. Noisy max and its confident variant answer what their price
allows; charged dissent answers until the published counts say that it is spent.
"""

import argparse
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from bench_votes import DELTA, N_TEACHERS, InOrder, dealt, pate_points
from mapl import ChargedDissent, Votes
from mapl.privacy.gaussian_prices import gaussian_limit

EPSILONS = (0.5, 1.0, 1.5, 2.0, 3.0, 4.0)
TARGET = Path(__file__).parent.parent / "docs" / "img" / "answers.svg"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--noise", type=int, default=40)
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    z = np.load(options.data / "pate_votes.npz")
    counts, truth = z["mnist_votes"].astype(int), z["mnist_labels"].astype(int)
    features = pate_points(options.data, "mnist")
    plain, confident, charged = [], [], []
    print(f"noise {options.noise}, delta {DELTA}, {options.runs} runs")
    print("epsilon   noisy max   confident   charged dissent   its accuracy")
    for epsilon in EPSILONS:
        price = gaussian_limit(epsilon=epsilon, delta=DELTA)
        budget = price * options.noise**2
        plain.append(int(budget / 2))
        # One check of scale 150 a point; 0.447 of the points pass it (286 of 640).
        passed = 286 / 640
        each = 1 / 150**2 + passed * 2 / options.noise**2
        confident.append(int(passed * price / each))
        asked, right = [], []
        for run in range(options.runs):
            rng = np.random.default_rng(run)
            order = rng.permutation(len(counts))
            votes = dealt(counts, rng)
            mechanism = ChargedDissent(
                sigma=options.noise,
                dissents=int(budget / 2),
                n_teachers=N_TEACHERS,
                n_classes=10,
            )
            rounds = InOrder(features, order, mechanism)
            rounds.ask(Votes(votes, 10).predictions, until_spent=True)
            labels, _ = rounds.decided()
            asked.append(rounds.asked)
            right.append((labels == truth[order[: rounds.asked]]).mean())
        charged.append(float(np.mean(asked)))
        print(
            f"{epsilon:7g} {plain[-1]:11.0f} {confident[-1]:11.0f} "
            f"{charged[-1]:17.0f} {np.mean(right):14.1%}",
            flush=True,
        )
    plt.switch_backend("svg")
    plt.rcParams["svg.hashsalt"] = "mapl"
    figure, axes = plt.subplots(figsize=(6.4, 4))
    axes.semilogy(EPSILONS, charged, "o-", color="#2b6cb0", label="charged dissent")
    axes.semilogy(EPSILONS, plain, "s--", color="#888888", label="noisy max")
    axes.semilogy(
        EPSILONS, confident, "^--", color="#d9822b", label="confident noisy max"
    )
    axes.set_xlabel("epsilon (delta 1e-5)")
    axes.set_ylabel("labels")
    axes.set_title(f"PATE's MNIST votes, 250 teachers, noise {options.noise}")
    axes.grid(which="both", alpha=0.2)
    axes.legend()
    figure.savefig(TARGET, bbox_inches="tight", metadata={"Date": None})
    print(f"wrote {TARGET}")


if __name__ == "__main__":
    main()
