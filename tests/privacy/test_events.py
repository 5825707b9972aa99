import json
from dataclasses import FrozenInstanceError, replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from mapl.errors import ParameterError, UnsupportedEventError
from mapl.privacy.events import (
    ConfidentMaxEvent,
    Event,
    GaussianEvent,
    MomentsEvent,
    SparseVectorEvent,
    StableReleaseEvent,
    from_json,
)

STABLE = StableReleaseEvent(noise_scale=Fraction(5, 2), threshold=30)
SPARSE = SparseVectorEvent(
    noise_scale=Fraction(125),
    threshold=2101,
    threshold_noise_scale=Fraction(63),
    redrawn=True,
    cutoff=10,
    sensitivity=2,
    instability=1,
    count=3,
)
GAUSSIAN = GaussianEvent(sigma=Fraction(81, 2), steps=300, seeded=True)
CONFIDENT = ConfidentMaxEvent(
    check_sigma=Fraction(150), checks=640, sigma=Fraction(40), steps=600
)

# The JSON of a kind never changes: a change here breaks certificates.
PUBLISHED_FORMS = {
    STABLE: '{"kind": "stable_release/1", "count": 1, "seeded": false, '
    '"noise_scale": "5/2", "threshold": 30}',
    SPARSE: '{"kind": "sparse_vector/1", "count": 3, "seeded": false, '
    '"noise_scale": "125", "threshold": 2101, "threshold_noise_scale": "63", '
    '"redrawn": true, "cutoff": 10, "sensitivity": 2, "instability": 1}',
    GAUSSIAN: '{"kind": "gaussian/1", "count": 1, "seeded": true, '
    '"sigma": "81/2", "steps": 300}',
    CONFIDENT: '{"kind": "confident_max/1", "count": 1, "seeded": false, '
    '"check_sigma": "150", "checks": 640, "sigma": "40", "steps": 600}',
}


@pytest.mark.parametrize(("event", "form"), PUBLISHED_FORMS.items())
def test_json_form_never_changes(event: Event, form: str) -> None:
    assert json.dumps(event.to_json()) == form
    assert from_json(json.loads(form)) == event


def test_narrow_integers_are_stored_as_plain_ones() -> None:
    """np.int8(120) + noise would wrap, and so would a sum of counts."""
    event = StableReleaseEvent(
        noise_scale=np.int8(2), threshold=np.int8(120), count=np.int8(100)
    )
    assert type(event.threshold) is type(event.count) is int
    assert event.noise_scale == Fraction(2)
    assert type(event.noise_scale) is Fraction
    sparse = replace(SPARSE, cutoff=np.int8(60), sensitivity=np.uint8(2))
    assert type(sparse.cutoff) is type(sparse.sensitivity) is int
    json.dumps(sparse.to_json())


def test_events_are_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        STABLE.threshold = 1  # type: ignore[misc]


@pytest.mark.parametrize("kind", ["stable_release/2", "noise", None, 3])
def test_unknown_kinds_are_refused(kind: object) -> None:
    with pytest.raises(UnsupportedEventError, match="unknown to this version"):
        from_json({**STABLE.to_json(), "kind": kind})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"extra": 1}, "must have the fields"),
        ({"noise_scale": "x"}, "noise_scale must be a rational number"),
        ({"noise_scale": "1/0"}, "noise_scale must be a rational number"),
        ({"noise_scale": 2.5}, "noise_scale must be a rational number"),
        ({"noise_scale": "0"}, r"noise_scale must be >= 1/10\*\*6 and <= 10\*\*15"),
        ({"noise_scale": "1e400"}, "noise_scale must be a rational number"),
        ({"noise_scale": "1" + 30 * "0"}, r"noise_scale must be >= 1/10\*\*6"),
        ({"threshold": -1}, "threshold must be an integer >= 0, got -1"),
        ({"threshold": 1.5}, "threshold must be an integer >= 0, got 1.5"),
        ({"count": 0}, "count must be an integer >= 1, got 0"),
        ({"seeded": "no"}, "seeded must be a bool, got 'no'"),
    ],
)
def test_tampered_forms_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        from_json({**STABLE.to_json(), **change})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"cutoff": 0}, "cutoff must be an integer >= 1, got 0"),
        ({"cutoff": 2.5}, "cutoff must be an integer >= 1, got 2.5"),
        ({"redrawn": 1}, "redrawn must be a bool, got 1"),
        ({"threshold_noise_scale": Fraction(-1)}, r"<= 10\*\*15, got -1"),
        ({"threshold_noise_scale": Fraction(0)}, "redrawn must be False where"),
        ({"sensitivity": 0}, "sensitivity must be an integer >= 1"),
        ({"instability": -1}, "instability must be an integer >= 0"),
    ],
)
def test_impossible_sparse_vectors_are_refused(
    change: dict[str, Any], message: str
) -> None:
    with pytest.raises(ParameterError, match=message):
        replace(SPARSE, **change)


def test_impossible_gaussians_are_refused() -> None:
    with pytest.raises(ParameterError, match="steps must be an integer >= 1"):
        replace(GAUSSIAN, steps=0)
    with pytest.raises(ParameterError, match="sigma must be >= 1/10"):
        replace(GAUSSIAN, sigma=Fraction(0))


@pytest.mark.parametrize("shift", [Fraction(1, 10**19), 10**13])
def test_impossible_shifts_are_refused(shift: Any) -> None:
    with pytest.raises(ParameterError, match="squared_shift must be"):
        MomentsEvent(squared_shift=shift, coordinates=1)
