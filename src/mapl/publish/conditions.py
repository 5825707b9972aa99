"""Conditions on a report, for use in scripts: ``epsilon <= 1``."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mapl.errors import CertificateError, ParameterError
from mapl.privacy import accounting
from mapl.privacy.events import from_json
from mapl.privacy.rounding import decimals_up
from mapl.publish.certificate import privacy_of
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
_NUMBER = re.compile(r"[+-]?([0-9]+[.]?[0-9]*|[.][0-9]+)(e[+-]?[0-9]+)?", re.I | re.A)
_WORDS = {
    "unit": ("a record", "all records of one group"),
    "privacy": ("records", "labels"),
    "mechanism": ("moments", "both", "dissent", "noisy-max", "sparse-vector"),
    "classes_declared": ("true", "false"),
    "ledger": ("true", "false"),
    "key": (),  # any
}
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
                f"--that {text!r}: a delta in parentheses goes with epsilon, and lies "
                f"between 0 and 1. {_HELP}"
            ) from None
        return cls(text, own["name"], delta, own["sign"], own["value"])

    def found(self, fields: Mapping[str, Any], events: list[Any]) -> Any:
        """Return what the report has; None if it has none."""
        if self.name not in fields:
            raise ParameterError(
                f"--that {self.text!r}: a report has no {self.name!r}. Choose among "
                f"{', '.join(fields)}."
            )
        if self.delta is not None and events:
            return decimals_up(accounting.epsilon(events, delta=self.delta), 6)
        return fields[self.name]

    def holds(self, fields: Mapping[str, Any], events: list[Any]) -> bool:
        """Whether the condition holds. A figure that is missing satisfies nothing."""
        found = self.found(fields, events)
        words = isinstance(found, bool | str) or self.name in _WORDS
        compare = self._comparison(words=words)
        return False if found is None else compare(found)

    def _comparison(self, *, words: bool) -> Callable[[Any], bool]:
        """Return what decides, of a word or a number."""
        sign = _OPERATORS[self.sign]
        if words:
            wanted = self._word()
            return lambda found: sign(str(found).lower(), wanted)
        number = float(self.value) if _NUMBER.fullmatch(self.value) else math.nan
        if not math.isfinite(number):
            raise ParameterError(
                f"--that {self.text!r}: {self.name} is compared with a number; give "
                "each condition a --that of its own."
            )
        return lambda found: sign(found, number)

    def _word(self) -> str:
        """Return the word that is asked for."""
        wanted = self.value.strip("'\"").lower()
        allowed = _WORDS.get(self.name, ())
        if self.sign not in ("==", "!="):
            raise ParameterError(
                f"--that {self.text!r}: {self.name} is a word, which takes == or !=."
            )
        if allowed and wanted not in allowed:
            raise ParameterError(
                f"--that {self.text!r}: {self.name} is one of: {'; '.join(allowed)}."
            )
        return wanted


def fields_of(
    certificate: Mapping[str, Any], score: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Return what conditions may ask for, from a certificate that was verified.

    Whoever signed it may have written anything; what is no such value is refused.
    """
    public, signature = certificate["public"], certificate["signature"]
    if score is not None and not isinstance(score, Mapping):
        raise CertificateError("The score of the report is not one.")
    accuracy = None if score is None else score.get("accuracy")
    budget = {
        "epsilon": _number(certificate["epsilon"]),
        "delta": _number(certificate["delta"], most=1),
    }
    if not certificate["events"]:  # then any epsilon would do
        budget = dict.fromkeys(budget)
    return budget | {
        "unit": certificate["unit"],
        "privacy": privacy_of(certificate),
        "mechanism": _checked(certificate["mechanism"], str),
        "classes_declared": _checked(public.get("classes_declared"), bool),
        "teachers": _number(public.get("n_teachers")),
        "public_points": _number(public.get("n_public")),
        "ledger": _is_ledger(certificate["ledger"]),
        "key": fingerprint(signature) if signature else None,
        "accuracy": _number(accuracy, most=1),
    }


def cautions(
    certificate: Mapping[str, Any], *, checked_key: bool, asked_for: Sequence[str]
) -> list[str]:
    """Return what conditions that hold do not say, in a sentence each.

    ``asked_for`` are the fields of the conditions.
    """
    found = []
    if not certificate["events"]:
        found.append(
            "The certificate lists no release, so it has no epsilon: it says nothing "
            "about how anything in this folder came about."
        )
    if not checked_key and "key" not in asked_for:
        key = fingerprint(certificate["signature"])
        found.append(
            f"Signed by the key {key}, which nothing here vouches for: anybody can "
            "make one. Give --public-key, or --that 'key == ...'."
        )
    return found


def _is_ledger(value: Any) -> bool:
    """Whether a budget is kept in a ledger, not in memory."""
    if value is None:
        raise CertificateError("The certificate does not say where its budget is.")
    return not isinstance(_checked(value, str | dict), str)


def _checked(value: Any, kind: Any) -> Any:
    """Refuse a value of another type; None is none."""
    if value is not None and not isinstance(value, kind):
        raise CertificateError(
            "A field of the certificate has a value of another type."
        )
    return value


def _number(value: Any, most: float = 1e15) -> Any:
    """Refuse what is no number from 0 on; None is none."""
    if isinstance(_checked(value, int | float), bool):
        raise CertificateError(
            "A field of the certificate has a value of another type."
        )
    if value is not None and not 0 <= value <= most:
        raise CertificateError("A figure of the certificate is out of range.")
    return value


def events_of(certificate: Mapping[str, Any]) -> list[Any]:
    """Return the events of a certificate."""
    return [from_json(event) for event in certificate["events"]]
