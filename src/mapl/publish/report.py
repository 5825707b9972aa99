"""What was released, for readers: one object, four forms. Public values only."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from copy import deepcopy as copy
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from mapl import __version__
from mapl.errors import CertificateError
from mapl.privacy import accounting
from mapl.privacy.events import from_json
from mapl.privacy.rounding import decimals_up
from mapl.publish.meaning import in_plain_words

FORM = "mapl report/1"
FILES = ("report.html", "report-print.html", "report.json", "README.md")
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
_TAKEN = (
    *("guarantee", "epsilon", "delta", "unit", "neighbours", "mechanism"),
    *("public", "ledger", "events"),
)
_DELTAS = [10.0**power for power in range(-10, -2)]


@dataclass(frozen=True)
class Report:
    """A release in public values; ``docs/report.md`` describes each field.

    Examples
    --------
    >>> from mapl.publish.report import Report
    >>> Report.read("folder").epsilon  # doctest: +SKIP
    1.0
    """

    form: str
    date: str
    guarantee: str
    in_plain_words: str
    epsilon: float | None
    delta: float
    unit: str
    neighbours: str
    mechanism: str
    how: str
    learner: str | None
    columns: list[str]
    public: dict[str, Any]
    ledger: str | dict[str, Any]
    events: list[dict[str, Any]]
    epsilon_by_delta: list[dict[str, float]]
    labels: dict[str, int]
    spending: list[dict[str, float]]
    score: dict[str, Any] | None
    versions: dict[str, str]

    @classmethod
    def of(
        cls,
        certificate: Mapping[str, Any],
        counts: Mapping[str, int],
        *,
        learner: Any = None,
        columns: Sequence[str] = (),
        spending: Sequence[tuple[int, float]] = (),
        score: Mapping[str, Any] | None = None,
    ) -> Report:
        """Return the report of a release.

        ``counts`` says how many public points got which label, ``columns`` what these
        have, ``spending`` how many points each batch had and what part of the price was
        used by then, ``score`` the figures of a test file that was declared public.
        """
        return cls(
            form=FORM,
            date=datetime.now(UTC).strftime("%Y-%m-%d"),
            **{name: copy(certificate[name]) for name in _TAKEN},
            in_plain_words=_plain_words(certificate),
            how=_HOW[certificate["mechanism"]],
            learner=None if learner is None else " ".join(str(learner).split()),
            columns=[str(name) for name in columns],
            epsilon_by_delta=_curve(certificate["events"]),
            labels=dict(counts),
            spending=[
                {"asked": n, "used": round(min(part, 1.0), 6)} for n, part in spending
            ],
            score=None if score is None else json.loads(json.dumps(score)),
            versions={"mapl": __version__}
            | {name: version(name) for name in ("scikit-learn", "numpy")},
        )

    @classmethod
    def read(cls, folder: str | Path) -> Report:
        """Verify a published folder, and return its report."""
        from mapl.publish.loading import verified

        return cls.certified_by(verified(folder), folder)

    @classmethod
    def certified_by(cls, certificate: Mapping[str, Any], folder: str | Path) -> Report:
        """Return the report in a folder; it must say what its certificate says."""
        from mapl.publish.certificate import content

        data = content(certificate, Path(folder), "report.json")
        found = cls.of_json(data, Path(folder) / "report.json")
        same = all(getattr(found, name) == certificate[name] for name in _TAKEN)
        if not same or found.in_plain_words != _plain_words(certificate):
            raise CertificateError(
                f"{folder}: report.json says something else than the certificate."
            )
        return found

    @classmethod
    def of_json(cls, data: bytes, path: Path) -> Report:
        """Return the report that a file held, which anybody may have written."""
        try:
            found = json.loads(data)
            if found["form"] != FORM or found.keys() != _NAMES:
                raise ValueError
            return cls(**found)
        except (ValueError, TypeError, KeyError, RecursionError):
            raise CertificateError(
                f"{path} is not a report that this version reads."
            ) from None

    def to_json(self) -> str:
        """Return the report as JSON."""
        return json.dumps(asdict(self), indent=2) + "\n"

    def html(self, *, printed: bool = False) -> str:
        """Return the report as a page for the screen, or to be printed."""
        from mapl.publish.report_page import page

        return page(self, printed=printed)

    def card(self) -> str:
        """Return the report as a model card in Markdown."""
        from mapl.publish.model_card import card

        return card(self)

    def write(self, folder: Path) -> None:
        """Write all four forms."""
        forms = (self.html(), self.html(printed=True), self.to_json(), self.card())
        for name, text in zip(FILES, forms, strict=True):
            (folder / name).write_text(text, encoding="utf-8")


_NAMES = {field.name for field in fields(Report)}


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


def _curve(events: Sequence[Mapping[str, Any]]) -> list[dict[str, float]]:
    """Return epsilon, rounded up, for some deltas; nothing where it is not finite."""
    read = [from_json(event) for event in events]
    found = [accounting.epsilon(read, delta=delta) for delta in _DELTAS]
    if not 0 < max(found, default=0.0) < 1e9:
        return []
    return [
        {"delta": delta, "epsilon": decimals_up(epsilon, 6)}
        for delta, epsilon in zip(_DELTAS, found, strict=True)
    ]


def budget_in_words(ledger: str | Mapping[str, Any]) -> str:
    """Say where a budget is kept."""
    if isinstance(ledger, str):
        return ledger
    rows = ", ".join(map(str, ledger["rows"]))
    return f"of {ledger['dataset']!r} in ledger {ledger['id']}, row {rows}"


def facts_of(report: Report) -> dict[str, str]:
    """Return what was released as pairs of a name and a text."""
    public = report.public
    declared = public.get("classes_declared", True)
    return {
        "date": report.date,
        "epsilon": str(report.epsilon),
        "delta": str(report.delta),
        "protected unit": report.unit,
        "learner": report.learner or "none: sums over the records",
        "columns": ", ".join(report.columns) or "not named",
        "teachers": str(public["n_teachers"] or "none"),
        "public points": str(public["n_public"] or "none: a data dictionary alone"),
        "how it was released": report.how,
        "budget": budget_in_words(report.ledger),
        "assumed": public["assumed"],
        "classes": "declared by the caller"
        if declared
        else "read from the private labels, hence not protected",
        "versions": ", ".join(f"{n} {v}" for n, v in report.versions.items()),
    }
