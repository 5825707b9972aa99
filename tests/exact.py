"""Exact verification: enumerate every output of the real code, and every adversary.

1. `output_table` runs a mechanism with every value that its noise can take, each with
   its exact probability, and adds up the probability of each output. No sampling.
2. `worst_divergence` lets an adversary choose, query by query and with sight of what
   was published, the pair of neighbouring inputs that comes next, and returns the
   largest hockey-stick divergence that any such strategy reaches.

An input of one query is a `State`: (value, distance). The laws of the noise come from
their definition, P(x) proportional to exp(-|x|/scale), not from mapl.
"""

import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from typing import Any, Protocol
from unittest import mock

import numpy as np
import numpy.typing as npt

State = tuple[int, int]
Output = tuple[int, ...]
Table = dict[tuple[State, ...], dict[Output, float]]
Law = list[tuple[int, float]]
Release = Callable[[Any, Sequence[int], Sequence[int]], Output]

NOT_ASKED = -2


class Releases(Protocol):
    def release(self, values: npt.ArrayLike, distances: npt.ArrayLike) -> Any: ...


def laplace_pmf(x: int, scale: float) -> float:
    q = math.exp(-1 / scale)
    return (1 - q) / (1 + q) * q ** abs(x)


def laplace_above(x: int, scale: float) -> float:
    """P(X > x) by its series."""
    q = math.exp(-1 / scale)
    return q ** (x + 1) / (1 + q) if x >= 0 else 1 - laplace_above(-x - 1, scale)


def clipped_law(low: int, high: int, scale: Fraction) -> Law:
    """The law of the noise clipped to [low, high].

    Exact where the code cannot tell clipped values apart; else off by the tails.
    """
    s = float(scale)
    law = [(x, laplace_pmf(x, s)) for x in range(low + 1, high)]
    return [(low, laplace_above(-low - 1, s)), *law, (high, laplace_above(high - 1, s))]


def outputs(mechanism: Any, values: Sequence[int], distances: Sequence[int]) -> Output:
    answer = mechanism.release(np.array(values), np.array(distances))
    labels = [int(label) for label in answer.labels]
    asked = answer.n_asked
    return tuple(labels[:asked] + [NOT_ASKED] * (len(labels) - asked))


def output_table(
    make: Callable[[], Releases],
    sequences: Iterable[tuple[State, ...]],
    laws: dict[Fraction, Law],
    run: Release = outputs,
) -> Table:
    """Run the real code for every sequence of states and every noise there is."""
    return {states: _outputs_of(make, states, laws, run) for states in sequences}


def _outputs_of(
    make: Callable[[], Releases],
    states: tuple[State, ...],
    laws: dict[Fraction, Law],
    run: Release,
) -> dict[Output, float]:
    values, distances = zip(*states, strict=True)
    table: dict[Output, float] = defaultdict(float)
    odometer = Odometer(laws)
    with (
        mock.patch("mapl.privacy.sparse_vector.discrete_laplace", odometer.draw),
        mock.patch("mapl.privacy.stable_release.discrete_laplace", odometer.draw),
    ):
        while True:
            table[run(make(), values, distances)] += odometer.weight
            if not odometer.advance():
                return dict(table)


class Odometer:
    """Stands in for the sampler, and runs through all that it could draw."""

    def __init__(self, laws: dict[Fraction, Law]) -> None:
        self.laws = laws
        self.script: list[int] = []  # which entry of its law each draw takes
        self._rewind()

    def _rewind(self) -> None:
        self.sizes: list[int] = []  # how many entries each draw could have taken
        self.weight = 1.0

    def draw(self, scale: Any, size: int, *, source: object = None) -> Any:
        return np.array([self._one(self.laws[Fraction(scale)]) for _ in range(size)])

    def _one(self, law: Law) -> int:
        position = len(self.sizes)
        self.sizes.append(len(law))
        if position == len(self.script):
            self.script.append(0)
        value, probability = law[self.script[position]]
        self.weight *= probability
        return value

    def advance(self) -> bool:
        """Go on to the next draws; False after the last."""
        del self.script[len(self.sizes) :]
        while self.script and self.script[-1] == self.sizes[len(self.script) - 1] - 1:
            self.script.pop()
        if not self.script:
            return False
        self.script[-1] += 1
        self._rewind()
        return True


def neighbour_pairs(
    states: Iterable[State], move: int = 1
) -> list[tuple[State, State]]:
    """All pairs that one unit can make: the promise a caller gives."""
    return [
        (s, t)
        for s, t in itertools.product(states, repeat=2)
        if (s[0] == t[0] and abs(s[1] - t[1]) <= move) or s[1] == t[1] == 0
    ]


def worst_divergence(
    table: Table, pairs: list[tuple[State, State]], epsilon: float
) -> float:
    """The largest sup_S P(S) - e^epsilon Q(S) over all adaptive adversaries.

    A mechanism that answers online gives the first outputs the same probabilities
    whatever is asked later, so trees of adaptive questions are read off the table.
    """
    n_queries = len(next(iter(table)))
    factor = math.exp(epsilon)

    def value(
        first: tuple[State, ...], second: tuple[State, ...], published: Output
    ) -> float:
        if len(published) == n_queries:
            p = table[first].get(published, 0.0)
            q = table[second].get(published, 0.0)
            return max(0.0, p - factor * q)
        return max(
            sum(
                value((*first, s), (*second, t), (*published, output))
                for output in possible
            )
            for s, t in pairs
        )

    possible = sorted({o for row in table.values() for out in row for o in out})
    return value((), (), ())
