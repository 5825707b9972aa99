"""A picture of answers over time, drawn as SVG by the server."""

from __future__ import annotations

from datetime import datetime
from typing import Any

_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP = 420, 160, 48, 26, 14


def answers_over_time(answers: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Return lines of labels and abstentions, added up, for a template to draw; None
    where there is nothing to draw.

    ``answers`` are notes of the ledger in the order of time.
    """
    times = [datetime.fromisoformat(one["asked_at"]).timestamp() for one in answers]
    if len(set(times)) < 2:
        return None
    labels, withheld, counts = 0, 0, []
    for one in answers:
        withheld += one["abstained"]
        labels += one["queries"] - one["abstained"]
        counts.append((labels, withheld))
    most = max(1, labels, withheld)
    span = times[-1] - times[0]

    def points(which: int) -> str:
        base = _HEIGHT - _BOTTOM
        places = [f"{_LEFT},{base}"]
        for at, count in zip(times, counts, strict=True):
            x = _LEFT + (at - times[0]) / span * (_WIDTH - _LEFT - 8)
            y = base - count[which] / most * (base - _TOP)
            places.append(f"{x:.1f},{y:.1f}")
        return " ".join(places)

    return {
        "width": _WIDTH,
        "height": _HEIGHT,
        "left": _LEFT,
        "base": _HEIGHT - _BOTTOM,
        "top": _TOP,
        "labels": points(0),
        "withheld": points(1),
        "most": most,
        "n_labels": labels,
        "n_withheld": withheld,
        "n_requests": len(answers),
        "first": _shown(answers[0]["asked_at"], span),
        "last": _shown(answers[-1]["asked_at"], span),
    }


def _shown(at: str, span: float) -> str:
    """Return a time as precisely as a picture of some seconds needs it."""
    day, clock = at[:10], at[11:19]
    return clock if span < 12 * 3600 else f"{day} {clock[:5]}"
