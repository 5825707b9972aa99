"""Exact noise: draws a second, beside opendp's vector call, in one run.

python benchmarks/bench_noise.py [--size 1000000] [--json]
"""

import argparse
import json
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import opendp.prelude as dp

from mapl.privacy.noise import discrete_gaussian, discrete_laplace

dp.enable_features("contrib")


def rate(draw: Callable[[int], Any], size: int, repeats: int = 3) -> float:
    """Return the best number of draws a second."""
    draw(min(size, 1000))  # caches, imports
    best = 0.0
    for _ in range(repeats):
        start = time.perf_counter()
        draw(size)
        best = max(best, size / (time.perf_counter() - start))
    return best


def oracle(kind: str, scale: int) -> Callable[[int], Any]:
    domain = dp.vector_domain(dp.atom_domain(T="i32"))
    if kind == "laplace":
        make = dp.m.make_laplace(domain, dp.l1_distance(T="i32"), scale=float(scale))
    else:
        make = dp.m.make_gaussian(domain, dp.l2_distance(T="f64"), scale=float(scale))
    return lambda size: make([0] * size)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=10**6)
    parser.add_argument("--oracle-size", type=int, default=10**5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for kind, sampler in (
        ("laplace", discrete_laplace),
        ("gaussian", discrete_gaussian),
    ):
        for scale in (1, 10, 100, 1000):
            ours = rate(partial(sampler, scale), options.size)
            theirs = rate(oracle(kind, scale), options.oracle_size)
            rows.append(
                {
                    "noise": kind,
                    "scale": scale,
                    "mapl_per_second": round(ours),
                    "opendp_per_second": round(theirs),
                    "ratio": round(ours / theirs, 1),
                }
            )
    result = {"size": options.size, "oracle_size": options.oracle_size, "rows": rows}
    if options.json:
        print(json.dumps(result, indent=2))
        return
    print(f"{options.size} draws (opendp: {options.oracle_size}), best of 3")
    for row in rows:
        print(
            f"{row['noise']:9} scale {row['scale']:5}: "
            f"{row['mapl_per_second'] / 1e6:6.2f} M/s, "
            f"opendp {row['opendp_per_second'] / 1e6:6.3f} M/s, {row['ratio']} times"
        )


if __name__ == "__main__":
    main()
