"""Draw docs/img/adult.svg: accuracy against epsilon on UCI Adult.

    python benchmarks/bench_moments.py --data DIR --sets adult --parts mapl
        --epsilons 0.1,0.3,0.5,1,2,4 --json > results.txt
    python benchmarks/plot_learner.py results.txt

The others' figures were measured on the same files, as README.md says.
"""

import argparse
import json
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

TARGET = Path(__file__).parent.parent / "docs" / "img" / "adult.svg"
OTHERS = {
    "DP-EBM, learning rate tuned on the test file": (
        [82.4, 84.5, 84.9, 85.5, 85.5, 85.6],
        "#c05621",
        "^-",
    ),
    "DP-SGD, linear (Opacus 1.6)": (
        [83.8, 84.4, 84.5, 84.6, 84.6, 84.7],
        "#888888",
        "s--",
    ),
    "DP-EBM, defaults (interpret 0.7.8)": (
        [77.9, 78.5, 79.7, 80.6, 81.2, 81.6],
        "#d9822b",
        "^--",
    ),
    "logistic regression (diffprivlib 0.6.6)": (
        [72.8, 76.4, 79.0, 82.5, 84.1, 84.6],
        "#805ad5",
        "v--",
    ),
    "noisy max, tuned (PATE 2018)": (
        [77.4, 78.1, 81.4, 82.5, 82.9, 83.0],
        "#38a169",
        "D--",
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path)
    options = parser.parse_args()
    last = options.results.read_text().splitlines()[-1]
    found = json.loads(last)["adult"]["mapl"]
    accuracy = {e: np.mean([score[0] for score in runs]) for e, runs in found.items()}
    epsilons = [float(epsilon) for epsilon in accuracy]
    plt.switch_backend("svg")
    plt.rcParams["svg.hashsalt"] = "mapl"
    figure, axes = plt.subplots(figsize=(6.8, 4))
    axes.semilogx(
        epsilons,
        list(accuracy.values()),
        "o-",
        color="#2b6cb0",
        linewidth=2.5,
        label="mapl, nothing tuned",
    )
    for name, (values, colour, style) in OTHERS.items():
        axes.semilogx(epsilons, values, style, color=colour, label=name)
    axes.axhline(76.4, color="black", linewidth=0.8, linestyle=":")
    axes.text(epsilons[0], 76.5, "always the larger class", fontsize=8)
    axes.axhline(87.2, color="black", linewidth=0.8, linestyle=":")
    axes.text(epsilons[0], 87.3, "gradient boosting without privacy", fontsize=8)
    axes.set_ylim(74, 88)
    axes.set_xticks(epsilons, [f"{epsilon:g}" for epsilon in epsilons], minor=False)
    axes.set_xticks([], minor=True)
    axes.set_xlabel("epsilon (delta 1e-5)")
    axes.set_ylabel("accuracy on the test file, %")
    axes.set_title("UCI Adult")
    axes.legend(fontsize=8, loc="lower right")
    axes.grid(alpha=0.2)
    figure.savefig(TARGET, bbox_inches="tight", metadata={"Date": None})


if __name__ == "__main__":
    main()
