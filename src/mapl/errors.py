"""Exceptions, and validators that build their message from the check.

MaplError
├── ParameterError (ValueError)     an argument breaks a stated constraint
├── BudgetExceededError             more was asked for than is left
├── CertificateError                a certificate does not hold
├── LedgerError                     a ledger cannot be used as asked
│   └── LedgerCorruptedError        a ledger is damaged, or an old copy of itself
├── MechanismStateError             a running mechanism was copied, forked or pickled
├── NotOpenError                    a panel that is asked is not open
├── RequestConflictError            a request's name was used before for another one
└── UnsupportedEventError           an event this version cannot account for

PrivacyWarning (UserWarning)        what was done is not covered by the guarantee

A message reads: name, constraint, value; then the way out. Values of private
arrays never appear in one.
"""

import math
import re
from fractions import Fraction
from numbers import Integral, Rational, Real
from typing import TypeGuard

_LOGIN = re.compile(r"://([^\n]*)@")
_PASSWORD = re.compile(r"(?i)(password=)[^&\n]*")
_SMALLEST_SCALE, _LARGEST_SCALE = Fraction(1, 10**6), 10**15


class MaplError(Exception):
    """Base of every error that mapl raises on purpose."""


class ParameterError(MaplError, ValueError):
    """An argument breaks a constraint; nothing was released."""


class BudgetExceededError(MaplError):
    """More was asked for than is left; nothing was released."""


class CertificateError(MaplError):
    """A certificate cannot be read, or claims what does not hold."""


class LedgerError(MaplError):
    """A ledger is missing, full, locked, or was asked for what it cannot do."""


class LedgerCorruptedError(LedgerError):
    """A ledger is not what was written to it; nothing is released until it is."""


class MechanismStateError(MaplError):
    """A running mechanism was about to exist twice; nothing was released."""


class NotOpenError(MaplError):
    """A panel was asked before it was opened, or after it was closed."""


class RequestConflictError(MaplError):
    """The name of a request was used before with other content."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"Request {name!r:.60} was made before with other records. Use another id. "
            "Nothing was released."
        )


class UnsupportedEventError(MaplError):
    """An event that no analysis in this version covers."""


class PrivacyWarning(UserWarning):
    """Something that the guarantee does not cover was done on request."""


def positive(**param: object) -> float:
    """Return the argument as a finite float > 0."""
    ((name, value),) = param.items()
    if not _is_real(value) or not 0 < _float(value) < math.inf:
        raise ParameterError(f"{name} must be a finite number > 0, got {value!r:.40}.")
    return float(value)


def probability(**param: object) -> float:
    """Return the argument as a float strictly between 0 and 1."""
    ((name, value),) = param.items()
    if not _is_real(value) or not 0 < float(value) < 1:
        raise ParameterError(f"{name} must be > 0 and < 1, got {value!r}.")
    return float(value)


def integer(*, at_least: int, **param: object) -> int:
    """Return the argument as an int that is at least ``at_least``."""
    ((name, value),) = param.items()
    if (
        isinstance(value, bool)
        or not isinstance(value, Integral)
        or int(value) < at_least
    ):
        raise ParameterError(f"{name} must be an integer >= {at_least}, got {value!r}.")
    return int(value)


def boolean(**param: object) -> bool:
    """Return the argument if it is True or False."""
    ((name, value),) = param.items()
    if not isinstance(value, bool):
        raise ParameterError(f"{name} must be a bool, got {value!r}.")
    return value


def one_of(*allowed: str, **param: object) -> None:
    """Refuse an argument that is not among the allowed values."""
    ((name, value),) = param.items()
    if value not in allowed:
        raise ParameterError(
            f"{name} must be one of {', '.join(map(repr, allowed))}, got {value!r}."
        )


def rational(**param: object) -> Fraction:
    """Return the argument as a Fraction; a float is refused.

    Noise is exact for the rational it is given, and a float is rarely the number that
    was meant.
    """
    ((name, value),) = param.items()
    if not isinstance(value, bool) and isinstance(value, Rational):
        return Fraction(int(value.numerator), int(value.denominator))
    way_out = ""
    if _is_real(value) and math.isfinite(value):
        way_out = f' Pass Fraction("{float(value)!r}").'
    raise ParameterError(
        f"{name} must be an int or a Fraction, got {value!r}.{way_out}"
    )


def scale(**param: object) -> Fraction:
    """Return the argument as a scale of noise that can be drawn exactly."""
    ((name, _),) = param.items()
    if not _SMALLEST_SCALE <= (value := rational(**param)) <= _LARGEST_SCALE:
        raise ParameterError(f"{name} must be >= 1/10**6 and <= 10**15, got {value}.")
    return value


def _float(value: float) -> float:
    """Return a float; infinity for an integer that is too large."""
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _is_real(value: object) -> TypeGuard[float]:
    return not isinstance(value, bool) and isinstance(value, Real)


def hide_passwords(text: str) -> str:
    """Return a text with the passwords of its URLs hidden.

    Examples
    --------
    >>> from mapl.errors import hide_passwords
    >>> hide_passwords("postgresql://me:secret@host/db?password=other")
    'postgresql://me:***@host/db?password=***'
    """
    return _PASSWORD.sub(r"\1***", _LOGIN.sub(_hidden_login, text))


def _hidden_login(found: re.Match[str]) -> str:
    """Return a user without the password; a password may hold any character."""
    user, _, password = found[1].partition(":")
    return f"://{user}:***@" if password else found[0]
