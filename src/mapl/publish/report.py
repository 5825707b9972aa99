"""The report: a page about what was released, for a reader. Public values only."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from importlib.metadata import version
from importlib.resources import files
from string import Template
from typing import Any

from mapl.privacy import accounting
from mapl.privacy.events import from_json
from mapl.privacy.rounding import decimals_up
from mapl.publish.meaning import in_plain_words

_BAR = "<span class='bar' style='width: {:.2f}rem'></span>"
_HOW = {
    "moments": "sums over all records, each record's part bounded, with noise "
    "(moments)",
    "both": "sums over all records, each record's part bounded, with noise; and noisy "
    "shares of the votes of teachers that disagree with the model of the sums (both)",
    "dissent": "noisy shares of the vote; a teacher pays where it disagrees with a "
    "public guess (dissent)",
    "noisy-max": "the class with most votes after noise; every answer is paid for "
    "(noisy-max)",
    "sparse-vector": "the class with most votes where the lead is clear after noise; "
    "only answers that are withheld are paid for (sparse-vector)",
}
_ASKED = {"moments": "numbers published", "both": "numbers, or points asked for"}


def render(
    certificate: Mapping[str, Any],
    counts: Mapping[str, int],
    *,
    learner: Any = None,
    columns: Sequence[str] = (),
    spending: Sequence[tuple[int, float]] = (),
    score: Mapping[str, Any] | None = None,
) -> str:
    """Return the page.

    ``counts`` says how many public points got which label, ``columns`` what these have,
    ``spending`` how many points each batch had and what part of the price was used by
    then, ``score`` the figures of a test file that was declared public.
    """
    public = certificate["public"]
    named = "none: sums over the records"
    if learner is not None:
        named = " ".join(str(learner).split())
    facts = {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "epsilon": certificate["epsilon"],
        "delta": certificate["delta"],
        "protected unit": certificate["unit"],
        "learner": named,
        "columns": ", ".join(map(str, columns)) or "not named",
        "teachers": public["n_teachers"] or "none",
        "public points": public["n_public"] or "none: a data dictionary alone",
        "how it was released": _HOW[certificate["mechanism"]],
        "budget": budget_in_words(certificate["ledger"]),
        "assumed": public["assumed"],
        "classes": "declared by the caller"
        if public["classes_declared"]
        else "read from the private labels, hence not protected",
        "versions": ", ".join(
            f"{name} {version(name)}" for name in ("mapl", "scikit-learn", "numpy")
        ),
    }
    template = (files("mapl.publish") / "report.html").read_text(encoding="utf-8")
    return Template(template).substitute(
        guarantee=escape(certificate["guarantee"]),
        plain=_plain_words(certificate),
        facts=_rows([(name, str(value)) for name, value in facts.items()]),
        labels=_bars(counts),
        spending=_spending(spending),
        curve=_curve([from_json(event) for event in certificate["events"]]),
        asked=_ASKED.get(certificate["mechanism"], "points asked for"),
        score=_score(score) if score else "",
    )


def _plain_words(certificate: Mapping[str, Any]) -> str:
    """Say what epsilon means for one person; nothing where there is no guarantee."""
    if certificate["epsilon"] is None:  # there is no guarantee
        return ""
    return in_plain_words(
        certificate["epsilon"],
        certificate["delta"],
        unit=certificate["unit"],
        privacy=certificate["public"]["privacy"],
    )


def _rows(pairs: Sequence[tuple[str, str]]) -> str:
    return "".join(
        f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>"
        for name, value in pairs
    )


def budget_in_words(ledger: str | Mapping[str, Any]) -> str:
    """Say where a budget is kept."""
    if isinstance(ledger, str):
        return ledger
    rows = ", ".join(map(str, ledger["rows"]))
    return f"of {ledger['dataset']!r} in ledger {ledger['id']}, row {rows}"


def _spending(spending: Sequence[tuple[int, float]]) -> str:
    return "".join(
        f"<tr><td>{number}</td><td class='number'>{asked:,}</td>"
        f"<td>{_BAR.format(12 * min(part, 1))} {min(part, 1):.0%}</td></tr>"
        for number, (asked, part) in enumerate(spending, start=1)
    )


def _curve(events: Sequence[Any]) -> str:
    """Draw epsilon against delta: the same release, stated in every way."""
    deltas = [10.0**power for power in range(-10, -2)]
    found = [accounting.epsilon(events, delta=delta) for delta in deltas]
    most = max(found, default=0.0)
    if not 0 < most < 1e9:
        return ""
    x = [60 + 45 * i for i in range(len(deltas))]
    y = [150 - 130 * epsilon / most for epsilon in found]
    line = " ".join(f"{a},{b:.1f}" for a, b in zip(x, y, strict=True))
    dots = "".join(
        f"<circle cx='{a}' cy='{b:.1f}' r='3'/>"
        f"<text x='{a}' y='{b - 8:.1f}'>{decimals_up(epsilon, 2):g}</text>"
        f"<text x='{a}' y='168'>1e{power}</text>"
        for a, b, epsilon, power in zip(x, y, found, range(-10, -2), strict=True)
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
    classes = [escape(name) for name in score["classes"]]
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
