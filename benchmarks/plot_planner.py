"""Draw docs/img/sample-complexity.svg: private records against the error wanted.

    python benchmarks/plot_planner.py [--vc-dim 10] [--epsilon 1]

Theorems 4.2 and 4.3 beside learning without privacy and beside the same construction
with every query paid for by advanced composition; all constants 1, logarithms left out.
"""

import argparse
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from mapl.planning.theorems import sample_complexity

TARGET = Path(__file__).parent.parent / "docs" / "img" / "sample-complexity.svg"
COLOURS = {
    "": "#2b6cb0",
    ", advanced composition": "#d9822b",
    ", not private": "#888888",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--vc-dim", type=float, default=10)
    parser.add_argument("--epsilon", type=float, default=1.0)
    options = parser.parse_args()
    print(f"VC dimension {options.vc_dim:g}, epsilon {options.epsilon:g}")
    for alpha in (0.1, 0.03, 0.01, 0.003):
        found = sample_complexity(alpha, options.vc_dim, options.epsilon)
        print(f"alpha {alpha}")
        for name, records in found.items():
            print(f"  {name:36} {float(records):14,.0f}")
    plt.switch_backend("svg")
    plt.rcParams["svg.hashsalt"] = "mapl"
    figure, both = plt.subplots(1, 2, figsize=(9, 3.8), sharey=True)
    alphas = np.logspace(-3, -1, 50)
    found = sample_complexity(alphas, options.vc_dim, options.epsilon)
    for axes, case in zip(both, ("realizable", "agnostic"), strict=True):
        for way, colour in COLOURS.items():
            label = way.removeprefix(", ") or "the paper"
            axes.loglog(alphas, found[case + way], color=colour, label=label)
        axes.set(xlabel="error alpha", title=case)
        axes.invert_xaxis()
        axes.grid(alpha=0.2)
    both[0].set_ylabel("private records")
    both[0].legend(frameon=False)
    figure.savefig(TARGET, bbox_inches="tight", metadata={"Date": None})
    print(f"wrote {TARGET}")


if __name__ == "__main__":
    main()
