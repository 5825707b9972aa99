"""A published sketch as files: made-up records, certificate, a page of pictures."""

from __future__ import annotations

import math
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

import numpy as np

from mapl.arrays import Floats
from mapl.features.grids import NumberGrid
from mapl.publish import certificate as certificates
from mapl.publish.meaning import in_plain_words

FILES = ("points.parquet", "certificate.json", "report.html")
_BARS = 40  # of a column of numbers
_MOST_CATEGORIES = 12
_WIDTH, _HEIGHT = 320, 80  # of a picture


def write_sketch(out: Path, found: Any) -> dict[str, Any]:
    """Write made-up records, certificate and report; return the certificate."""
    points = out / "points.parquet"
    found.points.data.to_parquet(points, index=False)
    made, report = certificate_of(found), out / "report.html"
    report.write_text(page_of(found, made), encoding="utf-8")
    made = certificates.with_files(made, [points, report])
    certificates.write(made, out / "certificate.json")
    return made


def certificate_of(found: Any) -> dict[str, Any]:
    """Return the certificate of a sketch."""
    assumed = "schema, classes and all parameters do not come from private data"
    if found.on_invalid == "error":
        assumed += "; runs refused because of a private record were seen by the holder "
        assumed += "alone"
    return certificates.make(
        found.events,
        delta=found.delta,
        **certificates.protection(grouped=found.grouped),
        mechanism="sketch",
        public={
            "n_teachers": 0,
            "classes": certificates.labels_as_json(found.classes),
            "classes_declared": True,
            "n_public": 0,
            "privacy": "records",
            "assumed": assumed,
        },
        ledger=found.receipt,
    )


def page_of(found: Any, signed: dict[str, Any]) -> str:
    """Return a page with a picture of each column."""
    names = [
        name
        for name, grid in zip(
            found.points.schema.columns, found.outline.grids, strict=True
        )
        if grid is not None
    ]
    used = zip(names, found.outline.used, found.sketch.shares, strict=True)
    noise = found.sketch.sigma / found.sketch.n_units
    kinds = found.points.schema.columns
    pictures = "".join(
        f"<figure><figcaption>{escape(str(name))}</figcaption>"
        f"{_picture(grid, share, kinds[name])}</figure>"
        for name, grid, share in used
    )
    plain = ""
    if signed["epsilon"] is not None:
        unit = signed["unit"]
        plain = in_plain_words(
            signed["epsilon"], signed["delta"], unit=unit, privacy="records"
        )
    template = (files("mapl.publish") / "sketch.html").read_text(encoding="utf-8")
    return Template(template).substitute(
        guarantee=escape(signed["guarantee"]),
        plain=plain,
        n_units=f"{found.sketch.n_units:,.0f}",
        noise=f"{noise:.2%}",
        classes=_classes(found),
        pictures=pictures,
    )


def _classes(found: Any) -> str:
    counts = np.maximum(found.sketch.class_counts, 0)
    listed = zip(found.classes.tolist(), counts, strict=True)
    return ", ".join(f"{escape(str(label))}: {count:,.0f}" for label, count in listed)


def _picture(grid: Any, share: Floats, column: Any) -> str:
    if isinstance(grid, NumberGrid):
        return _histogram(grid, share, is_time=column.kind == "time")
    return _bars(share, [*column.categories, "missing or other"])


def _histogram(grid: NumberGrid, share: Floats, *, is_time: bool) -> str:
    """Draw a column of numbers between its outer percentiles."""
    p = share[:-1] / max(float(share[:-1].sum()), 1e-12)
    below = np.concatenate(([0.0], np.cumsum(p)))
    first = int(np.searchsorted(below, 0.005, side="right")) - 1
    last = min(int(np.searchsorted(below, 0.995)), grid.n_ordered)
    low, high = grid.edges[max(first, 0)], grid.edges[last]
    ends = np.linspace(low, high if high > low else low + 1, _BARS + 1)
    mass = np.diff(np.interp(ends, grid.edges, below))
    bars = "".join(
        f"<rect x='{i * _WIDTH / _BARS:.1f}' y='{_HEIGHT * (1 - m / mass.max()):.1f}' "
        f"width='{_WIDTH / _BARS - 1:.1f}' height='{_HEIGHT * m / mass.max():.1f}'/>"
        for i, m in enumerate(mass)
    )
    outer = (math.ceil(ends[0]), math.floor(ends[-1])) if grid.whole else ends[[0, -1]]
    shown = [_label(value, is_time=is_time) for value in outer]
    gaps = f", {share[-1]:.1%} missing" if share[-1] > 0 else ""
    text = f"99 % from {shown[0]} to {shown[1]}{gaps}"
    return (
        f"<svg viewBox='0 0 {_WIDTH} {_HEIGHT}' role='img' aria-label='{text}'>{bars}"
        f"</svg><p>{text}</p>"
    )


def _label(value: float, *, is_time: bool) -> str:
    return str(np.datetime64(int(value), "D")) if is_time else f"{value:.4g}"


def _bars(share: Floats, names: list[str]) -> str:
    """Draw the most frequent categories."""
    order = np.argsort(-share, kind="stable")[:_MOST_CATEGORIES]
    rows = "".join(
        f"<tr><th>{escape(str(names[i]))}</th><td><span class='bar' style='width: "
        f"{10 * share[i] / max(share.max(), 1e-12):.2f}rem'></span> {share[i]:.1%}</td>"
        "</tr>"
        for i in order
        if share[i] > 0
    )
    return f"<table>{rows}</table>"
