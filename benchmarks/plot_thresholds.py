"""Draw docs/img/thresholds.svg: threshold against cutoff, paper and tight.

    python benchmarks/plot_thresholds.py [--epsilon 1] [--delta 1e-5]

All thresholds in votes that may flip: the paper's margins are halved.
"""

import argparse
from pathlib import Path

import matplotlib.pyplot as plt

from mapl import accounting
from mapl.privacy.calibration import (
    sparse_vector_with_threshold_noise,
    sparse_vector_without_threshold_noise,
)
from mapl.privacy.sparse_vector import SparseVector

CUTOFFS = [1, 2, 3, 5, 7, 10, 14, 20, 30, 50, 70, 100, 200, 300, 500, 700, 1000]
TARGET = Path(__file__).parent.parent / "docs" / "img" / "thresholds.svg"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--delta", type=float, default=1e-5)
    options = parser.parse_args()
    epsilon, delta = options.epsilon, options.delta
    published, once, none = [], [], []
    print(f"epsilon {epsilon}, delta {delta}, published with 10 queries a cutoff")
    print("cutoff  published/2  (certified)   drawn once   none   for_budget")
    for cutoff in CUTOFFS:
        paper = SparseVector.published(
            epsilon=epsilon, delta=delta, cutoff=cutoff, n_queries=10 * cutoff
        )
        certified = accounting.epsilon([paper.event], delta=delta)
        published.append(paper.threshold / 2)
        once.append(
            sparse_vector_with_threshold_noise(epsilon, delta, cutoff).threshold
        )
        none.append(
            sparse_vector_without_threshold_noise(epsilon, delta, cutoff).threshold
        )
        print(
            f"{cutoff:6} {published[-1]:12.1f}   {certified:10.3f} "
            f"{once[-1]:12} {none[-1]:6} {min(once[-1], none[-1]):12}"
        )
    plt.switch_backend("svg")
    plt.rcParams["svg.hashsalt"] = "mapl"  # the same figures give the same file
    figure, axes = plt.subplots(figsize=(6.4, 4))
    axes.loglog(CUTOFFS, published, "o-", color="#888888", label="paper (margin / 2)")
    axes.loglog(CUTOFFS, once, "s--", color="#d9822b", label="threshold noise once")
    axes.loglog(CUTOFFS, none, "^--", color="#2b6cb0", label="no threshold noise")
    best = [min(pair) for pair in zip(once, none, strict=True)]
    axes.loglog(CUTOFFS, best, color="black", linewidth=2, label="for_budget")
    axes.set_xlabel("cutoff (abstentions until it halts)")
    axes.set_ylabel("votes that must be able to flip")
    axes.set_title(f"SparseVector threshold, epsilon {epsilon:g}, delta {delta:g}")
    axes.grid(which="both", alpha=0.2)
    axes.legend()
    TARGET.parent.mkdir(exist_ok=True)
    figure.savefig(TARGET, bbox_inches="tight", metadata={"Date": None})
    print(f"wrote {TARGET}")


if __name__ == "__main__":
    main()
