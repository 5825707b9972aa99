"""What one value is in a column of a given type, or that it is missing.

Each function looks at one value and at nothing else. They accept any object, never
raise, and never run code that belongs to the object, so no value of a private record
can change another record, stop a fit, or make it slow.

Proof: docs/proofs/partition.md
"""

import math
import re
from datetime import UTC, date, datetime, timedelta
from datetime import time as clock_time
from decimal import Decimal
from fractions import Fraction
from typing import Any, cast
from uuid import UUID

import numpy as np

NAT = -(2**63)  # numpy's "not a time", as an integer
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_FLOAT = re.compile(r"-?[0-9]+(\.[0-9]+)?(e[+-]?[0-9]+)?")
_ISO_TIME = re.compile(
    r"([0-9]{4,}-[0-9]{2}-[0-9]{2})[T ]([0-9]{2})(:[0-9]{2})?(:[0-9]{2})?(\.[0-9]+)?"
)
_TRUTH = {"true": 1.0, "false": 0.0}
_TRUTH_TEXTS = {"true": "1", "false": "0", "nan": None}
_DEEPEST_GROUP = 3
_LONGEST_NUMBER, _LONGEST_TIME = 400, 40  # characters
_LARGEST_EXPONENT, _MOST_BITS = 400, 1100
_EPOCH_DAY = date(1970, 1, 1).toordinal()
DAY = 86_400 * 10**9  # nanoseconds


def is_missing(value: Any) -> bool:
    """Whether a value stands for no value: None, NaN, NA or NaT."""
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return True
    if isinstance(value, float | np.floating):
        return bool(value != value)
    return isinstance(value, np.datetime64 | np.timedelta64) and bool(np.isnat(value))


def number(value: Any) -> float:
    """Return a finite float, NaN for anything else; True is 1, and -0.0 is 0.0."""
    try:
        found = _as_float(value)
    except (ValueError, ArithmeticError):
        return math.nan
    return found + 0.0 if math.isfinite(found) else math.nan


def _as_float(value: Any) -> float:
    if isinstance(value, np.timedelta64):  # which passes for an integer
        return math.nan
    if isinstance(value, complex | np.complexfloating):
        return float(value.real) if value.imag == 0 else math.nan
    if isinstance(value, float | int | np.number | np.bool_):
        return float(value)
    if isinstance(value, bytes) and len(value) <= _LONGEST_NUMBER:
        value = value.decode("ascii", "replace")
    if isinstance(value, str):
        stripped = value.strip() if len(value) <= _LONGEST_NUMBER else ""
        if _NUMBER.fullmatch(stripped):
            return float(stripped)
        return _TRUTH.get(stripped.lower(), math.nan)
    if isinstance(value, Decimal):
        return float(value) if _is_moderate(value) else math.nan
    return float(value) if isinstance(value, Fraction) else math.nan


def _is_moderate(value: Decimal) -> bool:
    """Whether a decimal is a number that takes no time to handle."""
    return value.is_finite() and abs(value.adjusted()) < _LARGEST_EXPONENT


def text(value: Any) -> str | None:
    """Return a value as text, None if it is missing or has no canonical form.

    Values have one text each, whatever a container makes of them because of others: it
    turns integers into floats as soon as one of them is missing, booleans into integers
    beside an integer, and anything into texts beside a text. So 7, 7.0 and "7.0" are
    "7", True, 1 and "true" are "1", but "07" is not "7". The text "nan" is missing.
    """
    if type(value) is str:
        return _plain_text(value)
    if isinstance(value, complex | np.complexfloating) and value.imag == 0:
        value = float(value.real)  # one complex number makes all of an array complex
    if is_missing(value):
        return None
    if isinstance(value, str):
        return _plain_text(str.__str__(value))
    if isinstance(value, bytes):
        return _plain_text(value.decode("utf-8", "surrogateescape"))
    if isinstance(value, bool | np.bool_):
        return "1" if value else "0"
    if isinstance(value, np.timedelta64 | timedelta):
        return _count_text(duration(value))
    if isinstance(value, int | np.integer):
        return _integer_text(int(value))
    if isinstance(value, date | np.datetime64):
        return time_text(value)
    if isinstance(value, float | np.floating):
        return _float_text(float(value))
    if isinstance(value, Decimal | Fraction):
        return _rational_text(value)
    if type(value).__module__.split(".")[0] == "pandas":
        return _pandas_text(value)
    return str(value) if isinstance(value, UUID | clock_time) else None


def _pandas_text(value: Any) -> str | None:
    """Return a period as text, and an interval by its ends."""
    if type(value).__name__ == "Period":
        return str(value)
    if type(value).__name__ != "Interval":
        return None
    return f"{value.closed} {text(value.left)} {text(value.right)}"


def _plain_text(value: str) -> str | None:
    """Return a text that is valid Unicode; one that is a number, in one form."""
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            return None
        return value
    if len(value) >= _LONGEST_TIME:
        return value
    if value[-1:].isdigit():
        return _digits_text(value)
    return _TRUTH_TEXTS.get(value.lower(), value) if len(value) <= 5 else value


def _digits_text(value: str) -> str:
    """Return a text that ends in a digit: a number or a time in one form."""
    if value[4:5] == "-" and (time_ := _ISO_TIME.fullmatch(value)):
        return _trimmed_time(*time_.groups())
    if ("." in value or "e" in value) and _FLOAT.fullmatch(value):
        found = float(value)
        if math.isfinite(found) and ("e" in value or repr(found) == value):
            return _float_text(found)
    return value


def _trimmed_time(day: str, *parts: str | None) -> str:
    """Return a time without zeros at the end: the day alone at midnight."""
    hour, minute, second, fraction = parts
    clock = f"T{hour}{minute or ':00'}{second or ':00'}"
    if fraction and (digits := fraction.rstrip("0")) != ".":
        return f"{day}{clock}{digits}"
    return day if clock == "T00:00:00" else f"{day}{clock}"


def _integer_text(value: int) -> str | None:
    return str(value) if value.bit_length() <= _MOST_BITS else None


def _float_text(value: float) -> str:
    """Return the shortest digits; those of single precision if that holds the value."""
    if value.is_integer():
        return str(int(value))
    with np.errstate(over="ignore"):
        single = np.float32(value)
    return str(single) if float(single) == value else repr(value)


def _rational_text(value: Decimal | Fraction) -> str | None:
    if isinstance(value, Decimal) and not _is_moderate(value):
        return None
    if isinstance(value, Fraction) and value.denominator != 1:
        whole = False
    else:
        whole = value == int(value)
    if whole:
        return _integer_text(int(value))
    found = number(value)
    return None if math.isnan(found) else _float_text(found)


def _count_text(nanoseconds: int) -> str | None:
    return None if nanoseconds == NAT else f"{nanoseconds}ns"


def time(value: Any) -> int:
    """Return nanoseconds since 1970 in UTC, `NAT` for what is no time.

    A time without a zone is in UTC. Texts must be in ISO 8601.
    """
    try:
        if isinstance(value, bytes):  # as a container of texts may hold them
            value = value.decode("ascii", "replace")
        if isinstance(value, str):
            short = len(value) <= _LONGEST_TIME and value.isascii()
            value = datetime.fromisoformat(value.strip()) if short else None
        if isinstance(value, datetime):
            found = _nanoseconds(value)
        elif isinstance(value, date):
            found = (value.toordinal() - _EPOCH_DAY) * DAY
        elif isinstance(value, np.datetime64):
            found = int(times_in_ns(np.array([value]))[0])
        else:
            return NAT
    except Exception:  # a zone is somebody else's code
        return NAT
    return found if -(2**63) < found < 2**63 else NAT


def _nanoseconds(value: datetime) -> int:
    """Return the time of a datetime, or of a pandas Timestamp, which is finer."""
    if type(value).__name__ == "NaTType":
        return NAT
    if value.tzinfo is not None:
        value = value.astimezone(UTC)
    days = value.toordinal() - _EPOCH_DAY
    seconds = value.hour * 3600 + value.minute * 60 + value.second
    fraction = value.microsecond * 1000 + getattr(value, "nanosecond", 0)
    return days * DAY + seconds * 10**9 + fraction


def time_text(value: Any) -> str | None:
    """Return a time as text: the day alone at midnight, no zeros at the end."""
    try:
        if isinstance(value, np.datetime64):
            unit = np.datetime_data(value.dtype)[0]
            fine = unit if unit in ("ms", "us", "ns", *_FINER) else "s"
            whole = str(np.datetime_as_string(value, unit=cast(Any, fine)))
        elif isinstance(value, datetime):
            utc = value if value.tzinfo is None else value.astimezone(UTC)
            whole = utc.replace(tzinfo=None).isoformat()
        else:
            return str(value.isoformat())
    except Exception:  # a zone is somebody else's code
        return None
    found = _ISO_TIME.fullmatch(whole)
    return whole if found is None else _trimmed_time(*found.groups())


def duration(value: Any) -> int:
    """Return nanoseconds, `NAT` for what is no duration."""
    if isinstance(value, np.timedelta64):
        return int(times_in_ns(np.array([value]))[0])
    if not isinstance(value, timedelta) or is_missing(value):
        return NAT
    # pandas has nanoseconds, too
    found = value.days * DAY + value.seconds * 10**9 + value.microseconds * 1000
    found += getattr(value, "nanoseconds", 0)
    return found if -(2**63) < found < 2**63 else NAT


_UNITS = {"W": 7 * DAY, "D": DAY, "h": 3600 * 10**9, "m": 60 * 10**9, "s": 10**9}
_UNITS |= {"ms": 10**6, "us": 1000, "ns": 1}
_FINER = {"ps": 1000, "fs": 10**6, "as": 10**9}


def times_in_ns(values: Any) -> Any:
    """Return numpy times or durations of any unit as nanoseconds, each by itself."""
    unit, step = np.datetime_data(values.dtype)
    if unit in ("Y", "M") and values.dtype.kind == "M":
        values, unit, step = values.astype("M8[D]"), "D", 1
    counts = values.view(np.int64)
    if unit in _FINER:
        found = counts * step // _FINER[unit]
        return np.where(counts == NAT, NAT, found)
    if unit not in _UNITS:  # years of a duration, or no unit at all
        return np.full(values.shape, NAT)
    factor = _UNITS[unit] * step
    most = (2**63 - 1) // factor
    fits = (counts >= -most) & (counts <= most)
    return np.where(fits, np.where(fits, counts, 0) * factor, NAT)


def group(value: Any, depth: int = 0) -> str | None:
    """Return the text that identifies a unit; a tuple has one for each of its parts."""
    if isinstance(value, tuple | list):
        if depth >= _DEEPEST_GROUP:
            return None
        parts = [group(part, depth + 1) for part in value]
        shown = ("-" if part is None else f"{len(part)}:{part}" for part in parts)
        return f"({','.join(shown)})"
    return text(value)
