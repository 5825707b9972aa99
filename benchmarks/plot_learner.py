"""Draw docs/img/adult.svg: accuracy against epsilon on UCI Adult.

    python benchmarks/bench_learner.py --data DIR --teachers auto --json > results.json
    python benchmarks/plot_learner.py results.json

The others' figures were measured on the same files, as README.md says.
"""

import argparse
import json
from pathlib import Path

import matplotlib.pyplot as plt

TARGET = Path(__file__).parent.parent / "docs" / "img" / "adult.svg"
OTHERS = {
    "DP-SGD, linear (Opacus 1.6)": ([84.4, 84.5, 84.6, 84.6, 84.7], "#888888", "s--"),
    "DP-EBM, defaults (interpret 0.7.8)": (
        [78.5, 79.7, 80.6, 81.2, 81.6],
        "#d9822b",
        "^--",
    ),
    "logistic regression (diffprivlib 0.6.6)": (
        [76.4, 79.0, 82.5, 84.1, 84.6],
        "#805ad5",
        "v--",
    ),
    "noisy max, tuned (PATE 2018)": ([78.1, 81.4, 82.5, 82.9, 83.0], "#38a169", "D--"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path)
    options = parser.parse_args()
    accuracy = json.loads(options.results.read_text())["accuracy"]
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
    axes.axhline(84.7, color="black", linewidth=0.8, linestyle=":")
    axes.text(epsilons[0], 84.8, "logistic regression without privacy", fontsize=8)
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
