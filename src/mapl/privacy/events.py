"""What was released: frozen records that accounting turns into epsilon.

An event holds public numbers only. Its JSON form names its kind and version; the
meaning of a kind never changes once published, so an old certificate can be
recomputed at any time.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from fractions import Fraction
from typing import Any, ClassVar, Self

from mapl.errors import (
    ParameterError,
    UnsupportedEventError,
    boolean,
    integer,
    rational,
    scale,
)


@dataclass(frozen=True, kw_only=True)
class Event:
    """A release, made ``count`` times with fresh noise each time.

    ``seeded`` marks noise from a source that can be repeated: such a release
    protects nobody, and its epsilon is infinite.
    """

    kind: ClassVar[str]
    _from_zero: ClassVar[tuple[str, ...]] = ()  # fields that may be 0

    count: int = 1
    seeded: bool = False

    def __post_init__(self) -> None:
        """Check every field by its type, and store a plain int or Fraction."""
        for field in fields(self):
            value = {field.name: getattr(self, field.name)}
            at_least = 0 if field.name in self._from_zero else 1
            if field.type == "int":
                value[field.name] = integer(at_least=at_least, **value)
            elif field.type == "bool":
                boolean(**value)
            else:
                value[field.name] = self._checked_rational(**value)
            object.__setattr__(self, field.name, value[field.name])

    def _checked_rational(self, **value: Any) -> Fraction:
        """Return a rational field: a scale of noise, or 0 where that is allowed."""
        ((name, _),) = value.items()
        number = rational(**value)
        return scale(**value) if name not in self._from_zero or number else number

    def parts(self) -> tuple[Event, ...]:
        """Return the events that this one is made of; most have one part."""
        return (self,)

    def to_json(self) -> dict[str, Any]:
        """Return a form that ``json.dumps`` takes; rationals become strings."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        plain = {
            name: str(value) if isinstance(value, Fraction) else value
            for name, value in values.items()
        }
        return {"kind": self.kind, **plain}

    @classmethod
    def _from_fields(cls, values: Mapping[str, Any]) -> Self:
        """Return the event with exactly these fields: none missing, none unknown."""
        known = {field.name: field.type for field in fields(cls)}
        if set(values) != set(known):
            raise ParameterError(
                f"Event {cls.kind!r} must have the fields {sorted(known)}, "
                f"got {sorted(values)}."
            )
        converted: dict[str, Any] = {
            name: _fraction(name, value) if known[name] == "Fraction" else value
            for name, value in values.items()
        }
        return cls(**converted)


@dataclass(frozen=True, kw_only=True)
class StableReleaseEvent(Event):
    """One value released iff distance + discrete Laplace(noise_scale) > threshold.

    Between neighbours the distance moves by at most 1, and it is 0 for both where
    the values differ.
    """

    kind: ClassVar[str] = "stable_release/1"
    _from_zero: ClassVar[tuple[str, ...]] = ("threshold",)

    noise_scale: Fraction
    threshold: int


@dataclass(frozen=True, kw_only=True)
class SparseVectorEvent(Event):
    """A stream of values, answered until ``cutoff`` of them were withheld.

    A value is released iff distance + discrete Laplace(noise_scale) > threshold + a,
    where a is discrete Laplace(threshold_noise_scale), drawn again after each
    abstention if ``redrawn``, else once for the whole stream; a scale of 0 means no
    threshold noise. Between neighbours the distance moves by at most
    ``sensitivity``, and it is at most ``instability`` for both where the values
    differ.
    """

    kind: ClassVar[str] = "sparse_vector/1"
    _from_zero: ClassVar[tuple[str, ...]] = (
        "threshold",
        "threshold_noise_scale",
        "instability",
    )

    noise_scale: Fraction
    threshold: int
    threshold_noise_scale: Fraction
    redrawn: bool
    cutoff: int
    sensitivity: int = 1
    instability: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.redrawn and self.threshold_noise_scale == 0:
            raise ParameterError(
                "redrawn must be False where threshold_noise_scale is 0, got True."
            )


@dataclass(frozen=True, kw_only=True)
class GaussianEvent(Event):
    """``steps`` integers, each published with fresh discrete Gaussian noise of scale
    sigma, each of which neighbours may move by 1 (adaptively chosen).
    """

    kind: ClassVar[str] = "gaussian/1"

    sigma: Fraction
    steps: int


@dataclass(frozen=True, kw_only=True)
class MomentsEvent(Event):
    """At most ``coordinates`` integers, each published with fresh discrete Gaussian
    noise, adaptively chosen: if neighbours move integer i by d_i and its noise has
    scale s_i, with s_i^2 - 4 at least 0.16 where d_i is not 0, the sum of
    d_i^2 / (s_i^2 - 4) is at most ``squared_shift`` on every history.
    """

    kind: ClassVar[str] = "moments/1"

    squared_shift: Fraction
    coordinates: int

    def _checked_rational(self, **value: Any) -> Fraction:
        """Return the squared shift: no scale of noise, so it may be smaller."""
        if not Fraction(1, 10**18) <= (number := rational(**value)) <= 10**12:
            raise ParameterError(
                f"squared_shift must be >= 1/10**18 and <= 10**12, got {number}."
            )
        return number


@dataclass(frozen=True, kw_only=True)
class ConfidentMaxEvent(Event):
    """``checks`` integers with discrete Gaussian noise of scale check_sigma, each of
    which neighbours may move by 1, and `GaussianEvent` of sigma and steps besides.
    """

    kind: ClassVar[str] = "confident_max/1"

    check_sigma: Fraction
    checks: int
    sigma: Fraction
    steps: int

    def parts(self) -> tuple[Event, ...]:
        """Return the checks and the answers."""
        both: dict[str, Any] = {"count": self.count, "seeded": self.seeded}
        checks = GaussianEvent(sigma=self.check_sigma, steps=self.checks, **both)
        return checks, GaussianEvent(sigma=self.sigma, steps=self.steps, **both)


# Without an exponent, which may be huge.
_RATIONAL = re.compile(r"-?[0-9]{1,80}([./][0-9]{1,80})?")
_KINDS: dict[str, type[Event]] = {
    event.kind: event
    for event in (
        StableReleaseEvent,
        SparseVectorEvent,
        GaussianEvent,
        MomentsEvent,
        ConfidentMaxEvent,
    )
}


def from_json(form: Mapping[str, Any]) -> Event:
    """Return the event whose `Event.to_json` is ``form``.

    Examples
    --------
    >>> from fractions import Fraction
    >>> from mapl.privacy.events import GaussianEvent, from_json
    >>> event = GaussianEvent(sigma=Fraction(81, 2), steps=300)
    >>> event.to_json()["sigma"]
    '81/2'
    >>> from_json(event.to_json()) == event
    True
    """
    values = dict(form)
    kind = values.pop("kind", None)
    if not isinstance(kind, str) or kind not in _KINDS:
        raise UnsupportedEventError(
            f"Event {kind!r} is unknown to this version. Upgrade mapl."
        )
    return _KINDS[kind]._from_fields(values)


def _fraction(name: str, value: object) -> Fraction:
    """Return a rational out of JSON."""
    try:
        if isinstance(value, str) and not _RATIONAL.fullmatch(value):
            raise ValueError
        return Fraction(value) if isinstance(value, str) else rational(**{name: value})
    except (ValueError, ZeroDivisionError):
        raise ParameterError(
            f"{name} must be a rational number such as '81/2', got {value!r}."
        ) from None
