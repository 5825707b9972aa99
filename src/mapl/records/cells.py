"""What one value is in a column of a given type, or that it is missing.

Each function looks at one value and at nothing else. They accept any object, never
raise, and never run code that belongs to the object, so no value of a private record
can change another record, stop a fit, or make it slow.

Proof: docs/proofs/partition.md
"""

import math
import re
import sys
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta, timezone
from datetime import time as clock_time
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from typing import Any, cast
from uuid import UUID
from zoneinfo import ZoneInfo

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
# Texts that mean "missing" in a label or group column, unless a class has that name.
MISSING_TEXTS = {"", "NA", "N/A", "<NA>", "NaN", "nan", "null", "NULL", "None"}
_MARK = "\0"  # before what is no plain text; such a text has one more
UNREADABLE_OWNER = f"{_MARK}unreadable"
_LARGEST_WHOLE = 10**16
_WHOLE_ID = re.compile(r"(-?[0-9]+)\.0")
_PANDAS = ("Timestamp", "Timedelta", "Period", "Interval")
_OWN_TYPES = {type(None), str, bytes, bool, int, float, complex, Decimal, Fraction}
_OWN_TYPES |= {date, datetime, clock_time, timedelta, UUID, tuple, list}
_OWN_TYPES |= set(np.sctypeDict.values()) - {np.object_, np.void}


def plain(value: Any) -> Any:
    """Return a value of a type that mapl knows, None for what is none.

    An instance of a subclass becomes the text, number or time that it holds: Python's
    own code reads it, so nothing that the subclass defines is run.
    """
    kind = type(value)
    # By identity: to compare or hash a class may run code of its own.
    if id(kind) in _OWN_IDS or id(kind) in _pandas_types("pandas" in sys.modules):
        return value
    for base, read in _READERS.items():
        if issubclass(kind, base):
            return read(value)
    return None


_OWN_IDS = frozenset(map(id, _OWN_TYPES))


def is_series(value: Any) -> bool:
    """Whether a value is a Series of pandas."""
    pandas = sys.modules.get("pandas")
    return pandas is not None and type(value) is pandas.Series


@lru_cache(maxsize=2)
def _pandas_types(is_loaded: bool) -> frozenset[int]:
    """Return pandas' types of cells; where it is not loaded, no cell is of one."""
    if not is_loaded:
        return frozenset()
    pandas = sys.modules["pandas"]
    found = [type(pandas.NA), type(pandas.NaT), *(getattr(pandas, n) for n in _PANDAS)]
    return frozenset(map(id, found))


def _fields(value: Any, kind: type, names: str) -> list[Any]:
    """Return attributes of a value as Python's own class reads them."""
    return [kind.__dict__[name].__get__(value) for name in names.split()]


def _plain_date(value: date) -> date:
    return date(*_fields(value, date, "year month day"))


def _plain_datetime(value: datetime) -> datetime:
    clock = _fields(value, datetime, "hour minute second microsecond tzinfo")
    (fold,) = _fields(value, datetime, "fold")
    return datetime(*_fields(value, date, "year month day"), *clock, fold=fold)


def _plain_duration(value: timedelta) -> timedelta:
    return timedelta(*_fields(value, timedelta, "days seconds microseconds"))


_READERS: dict[type, Callable[[Any], Any]] = {  # of subclasses; the first that fits
    str: str.__str__,
    bytes: lambda value: bytes.__getitem__(value, slice(None)),
    int: int.__int__,
    float: float.__float__,
    complex: complex.__complex__,
    Decimal: Decimal,
    datetime: _plain_datetime,
    date: _plain_date,
    timedelta: _plain_duration,
    tuple: lambda value: tuple.__getitem__(value, slice(None)),
    list: lambda value: list.__getitem__(value, slice(None)),
}


def is_known_zone(zone: Any) -> bool:
    """Whether a time zone is one of Python's, pytz' or dateutil's: others are code."""
    kind = type(zone)
    pytz, tz = sys.modules.get("pytz"), sys.modules.get("dateutil.tz.tz")
    names = ("tzutc", "tzoffset", "tzfile", "tzlocal")
    known = [timezone, ZoneInfo, *(getattr(tz, name, None) for name in names)]
    if pytz is not None:
        known += [type(pytz.utc), type(pytz.FixedOffset(60))]
        named = (pytz.tzinfo.DstTzInfo, pytz.tzinfo.StaticTzInfo)
        if any(kind.__mro__[1] is base for base in named):  # a class a zone
            return not any(map(callable, vars(kind).values()))
    return any(kind is own for own in known)


def is_missing(value: Any) -> bool:
    """Whether a value stands for no value: None, NaN, NA or NaT."""
    value = plain(value)
    if value is None or _is_blank(value):
        return True
    if isinstance(value, float | np.floating):
        return bool(value != value)
    return isinstance(value, np.datetime64 | np.timedelta64) and bool(np.isnat(value))


def _is_blank(value: Any) -> bool:
    """Whether a plain value is pandas' NA or NaT."""
    return type(value).__name__ in ("NAType", "NaTType")


def number(value: Any) -> float:
    """Return a finite float, NaN for anything else; True is 1, and -0.0 is 0.0."""
    try:
        found = _as_float(plain(value))
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
    value = plain(value)
    if isinstance(value, complex | np.complexfloating) and value.imag == 0:
        value = float(value.real)  # one complex number makes all of an array complex
    if is_missing(value):
        return None
    if isinstance(value, str):
        return _plain_text(str(value))
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
    if isinstance(value, clock_time):
        return str(value.replace(tzinfo=None))
    return str(value) if isinstance(value, UUID) else None


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
        return value if _is_unicode(value) else None
    if len(value) >= _LONGEST_TIME:
        return value
    if value[-1:].isdigit():
        return _digits_text(value)
    return _TRUTH_TEXTS.get(value.lower(), value) if len(value) <= 5 else value


def _is_unicode(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:  # half of a pair of surrogates
        return False
    return True


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
    value = plain(value)
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
    except (ValueError, ArithmeticError):
        return NAT
    return found if -(2**63) < found < 2**63 else NAT


def _nanoseconds(value: datetime) -> int:
    """Return the time of a datetime, or of a pandas Timestamp, which is finer."""
    if type(value).__name__ == "NaTType":
        return NAT
    value = _in_utc(value)
    days = value.toordinal() - _EPOCH_DAY
    seconds = value.hour * 3600 + value.minute * 60 + value.second
    fraction = value.microsecond * 1000 + getattr(value, "nanosecond", 0)
    return days * DAY + seconds * 10**9 + fraction


def _in_utc(value: datetime) -> datetime:
    """Return a time in UTC; a ValueError for one in a zone that nobody knows."""
    if value.tzinfo is None:
        return value
    if not is_known_zone(value.tzinfo):
        raise ValueError
    return value.astimezone(UTC)


def time_text(value: Any) -> str | None:
    """Return a time as text: the day alone at midnight, no zeros at the end."""
    try:
        if isinstance(value, np.datetime64):
            unit = np.datetime_data(value.dtype)[0]
            fine = unit if unit in ("ms", "us", "ns", *_FINER) else "s"
            whole = str(np.datetime_as_string(value, unit=cast(Any, fine)))
        elif isinstance(value, datetime):
            whole = _in_utc(value).replace(tzinfo=None).isoformat()
        else:
            return str(value.isoformat())
    except (ValueError, ArithmeticError):
        return None
    found = _ISO_TIME.fullmatch(whole)
    return whole if found is None else _trimmed_time(*found.groups())


def duration(value: Any) -> int:
    """Return nanoseconds, `NAT` for what is no duration."""
    value = plain(value)
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
    """Return the text that identifies a unit, None where nobody is named.

    An identifier is a text, and is taken as it stands: "0e1" is not "0", nor "true"
    "1". Only what containers do to numbers is undone: 7, 7.0 and "7.0" are "7". Bytes
    are the text that they encode, else their digits; a tuple has one text for each of
    its parts. A value of another kind is `UNREADABLE_OWNER`.
    """
    found = plain(value)
    if isinstance(found, tuple | list):
        return _group_of_parts(found, depth)
    if is_missing(value) and _is_nothing(value):
        return None
    if isinstance(found, bytes):
        try:
            found = found.decode()
        except UnicodeDecodeError:
            return f"{_MARK}bytes:{found.hex()}"
    if isinstance(found, str):
        return _owner_text(str(found))
    if isinstance(found, float | np.floating):
        number = float(found) + 0.0
        whole = number.is_integer() and abs(number) < _LARGEST_WHOLE
        return str(int(number)) if whole else repr(number)
    shown = None if found is None else text(found)
    return UNREADABLE_OWNER if shown is None else shown


def _group_of_parts(parts: Any, depth: int) -> str | None:
    if depth >= _DEEPEST_GROUP:
        return UNREADABLE_OWNER
    found = [group(part, depth + 1) for part in parts]
    if all(part is None for part in found):
        return None
    if UNREADABLE_OWNER in found:
        return UNREADABLE_OWNER
    shown = ("-" if part is None else f"{len(part)}:{part}" for part in found)
    return f"{_MARK}({','.join(shown)})"


def _owner_text(value: str) -> str | None:
    """Return a text that no number, bytes or tuple has but those that are the same."""
    if value in MISSING_TEXTS:
        return None
    if not value.isascii() and not _is_unicode(value):
        return f"{_MARK}text:{value.encode('utf-8', 'surrogatepass').hex()}"
    if value.startswith(_MARK):
        return f"{_MARK}{value}"
    whole = _WHOLE_ID.fullmatch(value)
    if whole is not None:
        value = whole[1]
    return "0" if value == "-0" else value


def _is_nothing(value: Any) -> bool:
    """Whether a missing value is one that stands for nothing, not one of a kind that
    is not known.
    """
    return value is None or plain(value) is not None
