"""Conditions on a report, for use in scripts: ``epsilon <= 1``."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from mapl.errors import ParameterError
from mapl.privacy import accounting
from mapl.privacy.events import from_json
from mapl.publish.signing import fingerprint

_OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    ">": operator.gt,
}
_FORM = re.compile(
    r"\s*(?P<name>[a-z_]+)\s*(?:\(\s*(?P<delta>[0-9.eE+-]+)\s*\))?"
    r"\s*(?P<sign><=|>=|==|!=|<|>)\s*(?P<value>.+?)\s*"
)
_HELP = (
    "Write it like 'epsilon <= 1', 'epsilon(1e-6) <= 2', 'unit == all records of one "
    "group' or 'accuracy >= 0.8'."
)


@dataclass(frozen=True)
class Condition:
    """A field, a comparison and a value."""

    text: str
    name: str
    delta: float | None
    sign: str
    value: str

    @classmethod
    def parse(cls, text: str) -> Condition:
        """Read a condition."""
        found = _FORM.fullmatch(text)
        if found is None:
            raise ParameterError(f"--that {text!r} is no condition. {_HELP}")
        own = found.groupdict()
        try:
            delta = None if own["delta"] is None else float(own["delta"])
            if delta is not None and not (own["name"] == "epsilon" and 0 < delta < 1):
                raise ValueError
        except ValueError:
            raise ParameterError(
                f"--that {text!r}: only epsilon takes a delta between 0 and 1. {_HELP}"
            ) from None
        return cls(text, own["name"], delta, own["sign"], own["value"])

    def holds(self, fields: Mapping[str, Any], events: list[Any]) -> bool:
        """Whether the condition holds. A figure that is missing satisfies nothing."""
        if self.name not in fields:
            raise ParameterError(
                f"--that {self.text!r}: a report has no {self.name!r}. Choose among "
                f"{', '.join(fields)}."
            )
        found = fields[self.name]
        if self.delta is not None:
            found = accounting.epsilon(events, delta=self.delta)
        if found is None:
            return False
        if isinstance(found, bool | str):
            return self._same(str(found).lower())
        try:
            return _OPERATORS[self.sign](found, float(self.value))
        except ValueError:
            raise ParameterError(
                f"--that {self.text!r}: {self.name} is compared with a number."
            ) from None

    def _same(self, found: str) -> bool:
        wanted = self.value.strip("'\"").lower()
        if self.sign not in ("==", "!="):
            raise ParameterError(
                f"--that {self.text!r}: {self.name} is a word, which takes == or !=."
            )
        return _OPERATORS[self.sign](found, wanted)


def fields_of(
    certificate: Mapping[str, Any], score: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Return what conditions may ask for, from a certificate that was verified."""
    public, signature = certificate["public"], certificate["signature"]
    return {
        "epsilon": certificate["epsilon"],
        "delta": certificate["delta"],
        "unit": certificate["unit"],
        "privacy": public.get("privacy"),
        "mechanism": certificate["mechanism"],
        "classes_declared": public.get("classes_declared"),
        "teachers": public.get("n_teachers"),
        "public_points": public.get("n_public"),
        "ledger": not isinstance(certificate["ledger"], str),
        "key": fingerprint(signature) if signature else None,
        "accuracy": None if score is None else score["accuracy"],
    }


def events_of(certificate: Mapping[str, Any]) -> list[Any]:
    """Return the events of a certificate."""
    return [from_json(event) for event in certificate["events"]]
