"""The certificate: what was released, what it cost, and what that assumes.

JSON that anybody can check: `verify` recomputes epsilon from the events and the digest
of the model file. It holds public values only.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from mapl import __version__, accounting
from mapl.errors import CertificateError, MaplError
from mapl.events import Event, from_json

_FORM = "mapl certificate/1"
_FIELDS = (
    "form",
    "mapl",
    "guarantee",
    "epsilon",
    "delta",
    "unit",
    "neighbours",
    "mechanism",
    "public",
    "ledger",
    "events",
    "model_sha256",
)


def make(
    events: Sequence[Event],
    *,
    delta: float,
    unit: str,
    neighbours: str,
    mechanism: str,
    public: Mapping[str, Any],
    ledger: str | Mapping[str, Any],
) -> dict[str, Any]:
    """Return the certificate of some events; epsilon is rounded up to 6 digits.

    Parameters
    ----------
    events : sequence of Event
        Everything that was released.
    delta : float
        For which epsilon is stated.
    unit, neighbours : str
        Whose presence is protected, and how neighbours differ: "if one record is ...".
    mechanism : str
        How votes were released.
    public : mapping
        What was assumed to be public, as JSON values.
    ledger : str or mapping
        Where the budget was kept: in words, or the receipt of a ledger.
    """
    exact = accounting.epsilon(events, delta=delta)
    epsilon = math.ceil(exact * 1e6) / 1e6 if math.isfinite(exact) else None
    return {
        "form": _FORM,
        "mapl": __version__,
        "guarantee": _sentence(epsilon, delta, neighbours),
        "epsilon": epsilon,
        "delta": delta,
        "unit": unit,
        "neighbours": neighbours,
        "mechanism": mechanism,
        "public": dict(public),
        "ledger": ledger,
        "events": [event.to_json() for event in events],
        "model_sha256": None,
    }


def _sentence(epsilon: float | None, delta: float, neighbours: str) -> str:
    if epsilon is None:
        return "WORTHLESS: seeded or insufficient noise; nobody is protected."
    return (
        f"Whatever is computed from what was published, its probability changes by at "
        f"most a factor {math.exp(min(epsilon, 700)):.4g} (e^{epsilon:g}), up to "
        f"{delta:g}, {neighbours}."
    )


def with_model(certificate: Mapping[str, Any], model: Path) -> dict[str, Any]:
    """Return the certificate with the digest of a model file."""
    return {**certificate, "model_sha256": digest(model)}


def digest(path: Path) -> str:
    """Return the SHA-256 of a file."""
    return sha256(path.read_bytes()).hexdigest()


def verify(certificate: Mapping[str, Any], *, model: Path | None = None) -> float:
    """Recompute what a certificate claims, and return its epsilon.

    Raises
    ------
    CertificateError
        If a field is missing or too many, an event is unknown, the events cost more
        than is claimed, the sentence says something else, or the model is another one.

    Examples
    --------
    >>> from fractions import Fraction
    >>> from mapl import certificate
    >>> from mapl.events import GaussianEvent
    >>> made = certificate.make(
    ...     [GaussianEvent(sigma=Fraction(40), steps=100)],
    ...     delta=1e-5, unit="record", neighbours="if one record is added",
    ...     mechanism="dissent", public={"n_teachers": 250}, ledger="none",
    ... )
    >>> round(certificate.verify(made), 2)
    0.93
    """
    if not isinstance(certificate, Mapping) or set(certificate) != set(_FIELDS):
        raise CertificateError(
            f"A certificate must have the fields {', '.join(_FIELDS)}; this has others."
        )
    if certificate["form"] != _FORM:
        raise CertificateError(
            f"Certificate form {certificate['form']!r} is unknown to this version. "
            "Upgrade mapl."
        )
    claimed, delta = certificate["epsilon"], certificate["delta"]
    try:
        events = [from_json(event) for event in certificate["events"]]
        found = accounting.epsilon(events, delta=delta)
        sentence = _sentence(claimed, delta, certificate["neighbours"])
    except (MaplError, TypeError, ValueError, KeyError) as error:
        raise CertificateError(f"The certificate cannot be read: {error}") from error
    if claimed is None or not found <= claimed:
        raise CertificateError(
            f"The events cost epsilon {found:.6g} at delta {delta:g}, "
            f"the certificate claims {claimed}."
        )
    if certificate["guarantee"] != sentence:
        raise CertificateError("The certificate's sentence is not what it certifies.")
    if model is not None and digest(model) != certificate["model_sha256"]:
        raise CertificateError(
            f"{model} is not the model that was certified: its digest differs."
        )
    return float(claimed)


def read(path: Path) -> dict[str, Any]:
    """Return the certificate in a file."""
    try:
        return dict(json.loads(path.read_text()))
    except (OSError, ValueError, TypeError) as error:
        raise CertificateError(f"{path} holds no certificate: {error}") from error


def write(certificate: Mapping[str, Any], path: Path) -> None:
    """Write a certificate as JSON."""
    path.write_text(json.dumps(certificate, indent=2) + "\n")
