"""The report as a model card: Markdown, with the headings that model hubs use."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from mapl.publish.report import facts_of

if TYPE_CHECKING:
    from mapl.publish.report import Report

_FRONT = """---
library_name: mapl
pipeline_tag: tabular-classification
tags:
- differential-privacy
- tabular-classification
---

"""
_USES = """This model was learned from private records with differential privacy. It \
may be published: no further use of it weakens the guarantee above.

It predicts one of the classes below from the columns below. What is true of people in \
general is learned, and is meant to be; so a prediction about a person may be right, \
whether that person was in the data or not."""
_LIMITS = """- Other releases from the same data are not covered. Their costs add up.
- Public points, the list of classes and the parameters are not protected: they were \
declared public.
- Nobody has checked this model for fairness. Noise hits rare classes and small groups \
hardest."""
_START = """```python
import mapl

model = mapl.load("FOLDER")  # verifies the certificate
model.predict(records)  # a data frame with the columns above
```

Without mapl, nothing here proves itself: `mapl certificate verify FOLDER` recomputes \
epsilon from what was released, and compares the digests of all files."""


def card(report: Report) -> str:
    """Return the card, built with skops."""
    from skops.card import Card

    made = Card(None, model_diagram=False, template=None)
    made.add(
        **{
            "Model description": _quoted(report.guarantee) + _plain(report),
            "Model description/Intended uses": _USES,
            "Model description/Limitations": _LIMITS,
        }
    )
    facts = {name: _escaped(text) for name, text in facts_of(report).items()}
    made.add_table(
        **{"How it was learned": {"": list(facts), "value": list(facts.values())}}
    )
    made.add_table(**{"Labels published": _columns(report.labels, "label", "points")})
    if report.score is not None:
        made.add_table(**{"Evaluation on public records": _figures(report.score)})
    made.add(**{"How to get started": _START})
    return _FRONT + "# A private classifier\n\n" + str(made.render()).strip() + "\n"


def _quoted(text: str) -> str:
    return f"> {_escaped(text)}\n\n"


def _plain(report: Report) -> str:
    return _escaped(report.in_plain_words) or "There is no guarantee."


def _columns(pairs: dict[str, int], name: str, value: str) -> dict[str, list[Any]]:
    return {name: [_escaped(k) for k in pairs], value: list(pairs.values())}


def _figures(score: dict[str, Any]) -> dict[str, list[Any]]:
    """Return the figures of a test file, class by class."""
    whole = {"accuracy": score["accuracy"]}
    whole["always the most frequent class"] = score["always_most_frequent"]
    for name, own in score["per_class"].items():
        whole |= {f"recall of {name}": own["recall"]}
        whole |= {f"precision of {name}": own["precision"]}
    return {
        "figure": [_escaped(name) for name in whole],
        "value": [f"{100 * value:.1f} %" for value in whole.values()],
    }


def _escaped(text: str) -> str:
    """Return a text that stays a text in Markdown, on one line: no markup, no links."""
    line = " ".join(str(text).split())
    shown = "".join(c if c.isprintable() else "?" for c in line)
    marked = re.sub(r"([\\`*_{}\[\]<>#|!~$=&@])", r"\\\1", shown)
    # Hosts turn these into links by themselves.
    return re.sub(r"(?i)(://|www\.)", lambda m: "\u200b".join(m[0]), marked)
