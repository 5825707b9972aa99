"""Pictures: the only module that draws."""

from pathlib import Path
from typing import Any

from mapl.cli.output import check_ending
from mapl.errors import ParameterError
from mapl.progress import Progress


def new_figure(path: Path, width: float, height: float) -> Any:
    """Return an empty figure that can be saved to a path."""
    check_ending(path, ".png", ".svg", ".pdf", option="--plot")
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ParameterError(
            "--plot needs matplotlib: pip install 'mapl[plot]'."
        ) from None
    return Figure(figsize=(width, height), layout="constrained")


def draw_balances(
    balances: list[dict[str, Any]], rows: list[dict[str, Any]], path: Path
) -> None:
    """Draw what is spent and what is left, a bar for each data set; and when."""
    figure = new_figure(path, 7, 4 + 0.5 * len(balances))
    axes, later = figure.subplots(2, 1, height_ratios=(1 + len(balances), 4))
    _draw_times(later, balances, rows)
    names = [b["name"] for b in balances]
    shares = [100 * b["epsilon_spent"] / b["epsilon_limit"] for b in balances]
    axes.barh(names, [100] * len(names), color="#e2e8f0", label="left")
    axes.barh(names, shares, color="#2b6cb0", label="spent")
    for name, b in zip(names, balances, strict=True):
        text = (
            f"{b['epsilon_spent']:.3g} of {b['epsilon_limit']:g}, delta "
            f"{b['delta_spent']:.1g} of {b['delta_limit']:.1g}"
        )
        axes.text(101, name, text, va="center")
    axes.set(xlim=(0, 165), xticks=range(0, 101, 20), xlabel="epsilon, % of the limit")
    axes.invert_yaxis()
    axes.legend(loc="upper right", ncols=2, frameon=False, bbox_to_anchor=(1, 1.25))
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=120)


def _draw_times(
    axes: Any, balances: list[dict[str, Any]], rows: list[dict[str, Any]]
) -> None:
    """Draw when each data set was charged: the sum of the prices of its releases."""
    from datetime import datetime

    from matplotlib import dates

    for balance in balances:
        own = [row for row in rows if row["dataset"] == balance["name"]]
        charges = [row for row in own if row["kind"] in ("create", "charge")]
        times = [datetime.fromisoformat(row["at"]) for row in charges]
        spent, total = [], 0.0
        for row in charges:
            total += row["loss"] if row["kind"] == "charge" else 0.0
            spent.append(total)
        axes.step(times, spent, where="post", marker="o", label=balance["name"])
    axes.set(xlabel="time", ylabel="charged, added up")
    untyped: Any = dates
    locator = untyped.AutoDateLocator()
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(untyped.ConciseDateFormatter(locator))
    axes.spines[["top", "right"]].set_visible(False)


def draw_plan(figure: Any, epsilon: float, params: dict[str, Any]) -> None:
    """Draw how many labels each mechanism gives around an epsilon."""
    from mapl.planning import plan

    axes = figure.add_subplot()
    around = [epsilon * 2.0**power for power in (-3, -2, -1, -0.5, 0, 0.5, 1, 2, 3)]
    around = [other for other in around if 1e-6 <= other <= 1e6]
    plans = []
    with Progress("Planning", len(around)) as progress:
        for other in around:
            plans.append(plan(epsilon=other, **params))
            progress.advance(1)
    for i, first in enumerate(plans[0].options):
        options = [found.options[i] for found in plans]
        answers = [option.expected_answers for option in options]
        color = f"C{i}"
        inside = [color if option.feasible else "white" for option in options]
        axes.plot(around, answers, color=color, label=first.name)
        axes.scatter(around, answers, c=inside, edgecolors=color, zorder=3)
    n_points = params["n_queries"]
    axes.axvline(epsilon, color="#888888", linestyle=":")
    axes.axhline(n_points, color="#888888", linestyle=":")
    axes.annotate(f"all {n_points:,} points", (around[0], n_points), va="bottom")
    axes.set_xscale("log", base=2)
    axes.set_yscale("symlog", linthresh=10)
    axes.set_xticks(around[::2], [f"{other:.3g}" for other in around[::2]])
    axes.set(xlabel="epsilon", ylabel="points labelled", ylim=(0, 2 * n_points))
    axes.set_title(
        f"{params['n_records']:,} records, {params['n_classes']} classes, delta "
        f"{params['delta']:g}, teacher error {params['teacher_error']:g}\n"
        "hollow: too little to learn from",
        fontsize=9,
    )
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)


def draw_sweep(tried: list[dict[str, float]], figure: Any, path: Path) -> None:
    """Draw the accuracy to expect against epsilon."""
    axes = figure.add_subplot()
    epsilons = [row["epsilon"] for row in tried]
    accuracy = [100 * row["accuracy"] for row in tried]
    spread = [100 * row["spread"] for row in tried]
    axes.errorbar(epsilons, accuracy, yerr=spread, marker="o", capsize=3)
    frequent = 100 * tried[0]["always_most_frequent"]
    axes.axhline(frequent, color="#888888", linestyle=":")
    axes.annotate("always the most frequent class", (epsilons[0], frequent))
    axes.set_xscale("log")
    axes.set_xticks(epsilons, [f"{epsilon:g}" for epsilon in epsilons])
    axes.set(xlabel="epsilon", ylabel="accuracy to expect, %")
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=120)


def draw_audits(found: dict[str, tuple[Any, Any]], path: Path) -> None:
    """Draw, for each audit, what its claim allows and what was measured."""
    import numpy as np

    columns = min(4, len(found))
    rows = -(-len(found) // columns)
    figure = new_figure(path, 3.4 * columns, 3.4 * rows)
    rates = np.linspace(0, 1, 101)
    every = figure.subplots(rows, columns, squeeze=False).ravel()
    for axes, (name, (claim, verdict)) in zip(every, found.items(), strict=False):
        allowed = claim.most_power(rates)
        axes.fill_between(rates, allowed, 1, color="#fde2dd", label="refutes the claim")
        axes.plot(rates, allowed, color="#c0392b", label="claimed")
        axes.plot(rates, rates, color="#94a3b8", lw=0.8, ls="--", label="guessing")
        x, y = zip(*(point.rates for point in verdict.points), strict=True)
        axes.plot(x, y, "o", ms=3.5, color="#2b6cb0", label="measured")
        title = f"{name}: {'REFUTED' if verdict.refuted else 'not refuted'}"
        axes.set(xlim=(0, 1), ylim=(0, 1), aspect="equal", title=title)
        axes.set(xlabel="false positive rate", ylabel="true positive rate")
    for axes in every[len(found) :]:
        axes.set_axis_off()
    every[0].legend(frameon=False, fontsize=8, loc="lower right")
    figure.savefig(path, dpi=120)
