"""Tables and plots of a comparison."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

OURS = ("mapl, dictionary", "mapl, public records")
MARK = "<!-- Tables and pictures below are made by benchmarks/compare/run.py. -->"
_FIGURES = ["accuracy", "auc", "log_loss", "seconds", "megabytes"]


def best(rows: Any) -> Any:
    """Return two rows a method and epsilon: with defaults, and with each figure's best
    setting on the test part. Means over seeds.
    """
    keys = ["set", "method", "needs", "epsilon", "setting"]
    means = rows.groupby(keys, dropna=False, sort=False)[_FIGURES].mean().reset_index()
    default = means[means.setting == 0].assign(kind="")
    several = means.groupby(["set", "method"]).setting.transform("max") > 0
    groups = means[several].groupby(keys[:-1], dropna=False, sort=False)
    tuned = groups.agg(
        accuracy=("accuracy", "max"),
        auc=("auc", "max"),
        log_loss=("log_loss", "min"),
        seconds=("seconds", "mean"),
        megabytes=("megabytes", "max"),
    )
    tuned = tuned.reset_index().assign(kind="tuned")
    return pd.concat([default, tuned], ignore_index=True).sort_values(
        ["set", "method"], kind="stable", key=lambda c: _place(c, rows)
    )


def _place(column: Any, rows: Any) -> Any:
    """Return the order in which values came."""
    order = {value: i for i, value in enumerate(rows[column.name].drop_duplicates())}
    return column.map(order)


def table(found: Any, show: Any, epsilons: list[float]) -> str:
    """Return a Markdown table: a row a method, a column an epsilon."""
    head = "| method | needs | " + " | ".join(f"ε {e:g}" for e in epsilons)
    lines = [f"{head} | s | MB |", "|---" * (len(epsilons) + 4) + "|"]
    for (method, kind), own in found.groupby(["method", "kind"], sort=False):
        cells = []
        for epsilon in epsilons:
            at = own[(own.epsilon == epsilon) | own.epsilon.isna()]
            cells.append(
                show(at.iloc[0]) if len(at) and at.accuracy.notna().all() else "-"
            )
        name = f"{method}, *tuned*" if kind else method
        name = f"**{name}**" if method in OURS else name
        rest = f"{own.seconds.mean():.1f} | {own.megabytes.max():.0f}"
        lines.append(f"| {name} | {own.needs.iloc[0]} | {' | '.join(cells)} | {rest} |")
    return "\n".join(lines)


def summary(found: Any) -> str:
    """Return how often mapl wins, its mean rank, and where it is furthest behind."""
    lines = [
        "| | against | wins | mean rank | mean lead, points | worst |",
        "|---|---|---|---|---|---|",
    ]
    private = found[found.epsilon.notna()]
    for ours in OURS:
        for kind, label in (
            ("", "peers with defaults"),
            ("tuned", "peers tuned on the test part"),
        ):
            ranks, leads, where = [], [], []
            for at, group in private.groupby(["set", "epsilon"], sort=False):
                own = group[group.method == ours].accuracy
                peers = group[~group.method.str.startswith("mapl")]
                if kind:
                    peers = peers.sort_values("accuracy").groupby("method").tail(1)
                else:
                    peers = peers[peers.kind == ""]
                peers = peers.accuracy.dropna()
                if len(own) and len(peers):
                    ranks.append(1 + int((peers > own.iloc[0]).sum()))
                    leads.append(own.iloc[0] - peers.max())
                    where.append(at)
            if leads:
                worst = int(np.argmin(leads))
                wins = f"{sum(rank == 1 for rank in ranks)} of {len(ranks)}"
                lines.append(
                    f"| {ours} | {label} | {wins} "
                    f"| {np.mean(ranks):.1f} | {np.mean(leads):+.1f} | "
                    f"{leads[worst]:+.1f} ({where[worst][0]}, ε {where[worst][1]:g}) |"
                )
    return "\n".join(lines)


def draw(found: Any, name: str, path: Path) -> None:
    """Draw accuracy against epsilon, the better setting of each method."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 4.6), layout="constrained")
    for method, own in found[found.epsilon.notna()].groupby("method", sort=False):
        line = own.groupby("epsilon").accuracy.max()
        if method in OURS:
            style: dict[str, Any] = {
                "lw": 2.5,
                "color": "#2b6cb0" if method == OURS[0] else "#c05621",
            }
        else:
            style = {
                "lw": 1,
                "alpha": 0.8,
                "ls": "--" if method.startswith("mapl") else "-",
            }
        axes.plot(line.index, line, marker="o", ms=3.5, label=method, **style)
    for method, own in found[found.epsilon.isna()].groupby("method", sort=False):
        axes.axhline(own.accuracy.iloc[0], color="#94a3b8", lw=0.8, ls=":")
        axes.annotate(
            method,
            (1, own.accuracy.iloc[0]),
            xycoords=("axes fraction", "data"),
            fontsize=7,
            color="#64748b",
            ha="right",
            va="bottom",
        )
    axes.set(xscale="log", xlabel="epsilon", ylabel="accuracy, %", title=name)
    epsilons = sorted(found.epsilon.dropna().unique())
    axes.set_xticks(epsilons, [f"{e:g}" for e in epsilons])
    axes.minorticks_off()
    top = found.accuracy.max()
    axes.set_ylim(max(found.accuracy.min() - 1, top - 14), top + 1)
    axes.legend(fontsize=7, frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
    axes.spines[["top", "right"]].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    plt.close(figure)


def write(results: list[dict[str, Any]], path: Path) -> str:
    """Write the tables and, beside them, a plot a set; return the tables."""
    rows = pd.DataFrame(results)
    for name in _FIGURES:
        if name not in rows:
            rows[name] = np.nan
    if "failed" in rows:
        for _, row in rows[rows.failed.notna()].iterrows():
            print(f"failed: {row.set}, {row.method}, {row.parameters}: {row.failed}")
    found = best(rows)
    epsilons = sorted(rows.epsilon.dropna().unique())
    parts = [f"## Summary\n\n{summary(found)}"]
    for name, own in found.groupby("set", sort=False):
        picture = path.parent / "img" / f"compare-{name}.svg"
        draw(own, str(name), picture)
        first = table(own, lambda r: f"{r.accuracy:.1f} ({r.auc:.3f})", epsilons)
        second = table(own, lambda r: f"{r.log_loss:.3f}", epsilons)
        parts.append(
            f"## {name}\n\n![Accuracy against epsilon](img/{picture.name})\n\n"
            f"Accuracy in % (area under the ROC curve):\n\n{first}\n\n"
            f"Log loss:\n\n{second}"
        )
    page = "\n\n".join(parts) + "\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    above = path.read_text().split(MARK)[0] if path.exists() else ""
    path.write_text(f"{above}{MARK}\n\n{page}")
    return page
