"""What sums are asked for: public, and kept in a ledger until they are answered."""

from __future__ import annotations

import io
import zlib
from dataclasses import dataclass, fields
from fractions import Fraction
from typing import Any

import numpy as np

from mapl.arrays import Floats, Ints


@dataclass(frozen=True)
class Question:
    """A sum of gradients to be asked for. Public.

    ``weights`` are integers, one column of them a class; a single one for two classes.
    ``squared_length`` is the bound of a contribution, ``part`` of the budget is what it
    costs.
    """

    weights: Floats
    squared_length: int
    part: Fraction


@dataclass(frozen=True)
class StackQuestion:
    """How to weigh several models' logits against the labels. Public.

    ``scales`` are integers: those of the models' logits, in units of `WEIGHT_GRID`;
    ``biases`` are the classes', in the same grid. ``units`` is what a logit is divided
    by where it is a feature.
    """

    scales: Floats
    biases: Floats
    units: Floats
    squared_length: int
    part: Fraction


@dataclass(frozen=True)
class SoftQuestion:
    """How far teachers' probabilities lie from a guess for each point. Public.

    ``guess`` is in steps of 1/GRID, ``stock`` is what each teacher may pay in all.
    """

    guess: Ints
    stock: int
    part: Fraction


@dataclass(frozen=True)
class GramQuestion:
    """How the pieces of a step go together. Public.

    ``weights`` are those of the current model, as in `Question`, ``step`` what would be
    added to them. A piece's logits are divided by its entry in ``units``.
    """

    weights: Floats
    step: Floats
    units: Floats
    squared_length: int
    part: Fraction


@dataclass(frozen=True)
class CopulaQuestion:
    """How columns go together. Public.

    Each entry of a record's vector is a whole number that belongs to its cell in a
    column: ``columns`` says which column, ``starts`` where its cells begin in
    ``scores``.
    """

    scores: Floats
    columns: Ints
    starts: Ints
    squared_length: int
    part: Fraction


AnyQuestion = Question | StackQuestion | SoftQuestion | GramQuestion | CopulaQuestion
_WHOLE = ("squared_length", "stock")  # fields that hold one integer


def pack(question: AnyQuestion) -> bytes:
    """Return a question as bytes, for a ledger."""
    file = io.BytesIO()
    values = {f.name: getattr(question, f.name) for f in fields(question)}
    ratio = values["part"].as_integer_ratio()
    values["part"] = np.array([str(number) for number in ratio])
    np.savez(file, **values)
    return zlib.compress(file.getvalue(), 1)


def unpack(data: bytes) -> Any:
    """Return the question that was packed; its fields say of which kind it is."""
    loaded = np.load(io.BytesIO(zlib.decompress(data)), allow_pickle=False)
    values: dict[str, Any] = dict(loaded)
    values["part"] = Fraction(*(int(part) for part in values["part"]))
    values |= {name: int(values[name]) for name in _WHOLE if name in values}
    kinds = {frozenset(f.name for f in fields(c)): c for c in AnyQuestion.__args__}
    return kinds[frozenset(values)](**values)
