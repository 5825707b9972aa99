"""The report as a page, for the screen or for paper."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files
from string import Template
from typing import TYPE_CHECKING, Any

from mapl.privacy.rounding import decimals_up
from mapl.publish.report import facts_of

if TYPE_CHECKING:
    from mapl.publish.report import Report

_BAR = "<span class='bar' style='width: {:.2f}rem'></span>"
_ASKED = {"moments": "numbers published", "both": "numbers, or points asked for"}


def page(report: Report, *, printed: bool) -> str:
    """Return the page."""
    template = (files("mapl.publish") / "report.html").read_text(encoding="utf-8")
    return Template(template).substitute(
        form="printed" if printed else "screen",
        guarantee=escape(report.guarantee),
        plain=escape(report.in_plain_words),
        facts=_rows(facts_of(report)),
        labels=_bars(report.labels),
        spending=_spending(report.spending),
        curve=_curve(report.epsilon_by_delta),
        asked=_ASKED.get(report.mechanism, "points asked for"),
        score=_score(report.score) if report.score else "",
    )


def _rows(pairs: Mapping[str, str]) -> str:
    return "".join(
        f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>"
        for name, value in pairs.items()
    )


def _spending(spending: Sequence[Mapping[str, float]]) -> str:
    return "".join(
        f"<tr><td>{number}</td><td class='number'>{step['asked']:,}</td>"
        f"<td>{_BAR.format(12 * step['used'])} {step['used']:.0%}</td></tr>"
        for number, step in enumerate(spending, start=1)
    )


def _curve(points: Sequence[Mapping[str, float]]) -> str:
    """Draw epsilon against delta: the same release, stated in every way."""
    if not points:
        return ""
    most = max(point["epsilon"] for point in points)
    x = [60 + 45 * i for i in range(len(points))]
    y = [150 - 130 * point["epsilon"] / most for point in points]
    line = " ".join(f"{a},{b:.1f}" for a, b in zip(x, y, strict=True))
    dots = "".join(
        f"<circle cx='{a}' cy='{b:.1f}' r='3'/>"
        f"<text x='{a}' y='{b - 8:.1f}'>{decimals_up(point['epsilon'], 2):g}</text>"
        f"<text x='{a}' y='168'>1e{math.log10(point['delta']):.0f}</text>"
        for a, b, point in zip(x, y, points, strict=True)
    )
    return (
        "<svg viewBox='0 0 430 190' role='img' aria-label='epsilon against delta'>"
        f"<polyline points='{line}'/>{dots}"
        "<text x='218' y='186'>delta</text><text x='22' y='80'>epsilon</text></svg>"
    )


def _bars(counts: Mapping[str, int]) -> str:
    most = max(counts.values(), default=1) or 1
    return "".join(
        f"<tr><th>{escape(name)}</th><td class='number'>{count:,}</td>"
        f"<td>{_BAR.format(18 * count / most)}</td></tr>"
        for name, count in counts.items()
    )


def _score(score: Mapping[str, Any]) -> str:
    classes = [escape(str(name)) for name in score["classes"]]
    head = "".join(f"<th>{name}</th>" for name in classes)
    body = "".join(
        f"<tr><th>{name}</th>"
        + "".join(f"<td class='number'>{count:,}</td>" for count in row)
        + "</tr>"
        for name, row in zip(classes, score["confusion"], strict=True)
    )
    figures = "".join(
        f"<tr><th>{escape(name)}</th><td class='number'>{own['recall']:.1%}</td>"
        f"<td class='number'>{own['precision']:.1%}</td></tr>"
        for name, own in score["per_class"].items()
    )
    return (
        f"<h2>Score on the public test file</h2><p>Accuracy {score['accuracy']:.1%}; "
        "always the most frequent class would have "
        f"{score['always_most_frequent']:.1%}.</p>"
        "<table><tr><th>class</th><th>found (recall)</th>"
        f"<th>right when predicted (precision)</th></tr>{figures}</table>"
        "<p>True classes down, predicted across:</p>"
        f"<table><tr><td></td>{head}</tr>{body}</table>"
    )
