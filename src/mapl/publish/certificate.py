"""What was released, what it cost, and what that assumes, as JSON.

Anybody can check it: `verify` recomputes epsilon from the events, and the digest of the
model file. Public values only.
"""

import json
import math
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from mapl import __version__
from mapl.errors import CertificateError, MaplError
from mapl.privacy import accounting
from mapl.privacy.events import Event, from_json
from mapl.privacy.rounding import decimals_up

_FORM = "mapl certificate/2"
_OLD_FORM = "mapl certificate/1"  # whose sentence says nothing about classes
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
        How it was released.
    public : mapping
        What was assumed to be public, as JSON values.
    ledger : str or mapping
        Where the budget was kept: in words, or the receipt of a ledger.
    """
    exact = accounting.epsilon(events, delta=delta)
    epsilon = decimals_up(exact, 6) if math.isfinite(exact) else None
    return {
        "form": _FORM,
        "mapl": __version__,
        "guarantee": _guarantee(epsilon, delta, neighbours)
        + _classes_clause(public.get("classes_declared", True)),
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


def protection(*, grouped: bool, privacy: str = "records") -> dict[str, str]:
    """Return unit and neighbours, in words, of a release."""
    unit = "all records of one group" if grouped else "a record"
    neighbours = {
        "records": f"if one unit ({unit}) is added to the private data or removed",
        "labels": f"if the labels of one unit ({unit}) are changed",
    }
    return {"unit": unit, "neighbours": neighbours[privacy]}


def of_classifier(
    fitted: Any,
    events: Sequence[Event],
    *,
    grouped: bool,
    receipt: str | Mapping[str, Any],
) -> dict[str, Any]:
    """Return the certificate of a `PrivateClassifier` that releases these events."""
    declared = fitted._declared
    assumed = "X_public, classes and all parameters do not come from private data"
    if fitted._outline is not None:
        assumed = assumed.replace("X_public", "schema, X_public")
        if not fitted.n_public_:
            assumed = assumed.replace(", X_public", "")
    if fitted.privacy == "labels":
        assumed = "all features are public; classes and parameters are not private"
    if not declared:
        assumed = assumed.replace(", classes and", " and").replace("; classes and", ";")
        assumed += "; the list of classes comes from them, and is not protected"
    if fitted.on_invalid == "error":
        assumed += "; fits refused because of a private record were seen by the holder "
        assumed += "alone"
    mechanism = fitted.mechanism if fitted.plan_ is None else fitted.plan_.name
    if fitted.method_ != "votes":
        mechanism = fitted.method_
    return make(
        events,
        delta=float(fitted.delta),
        **protection(grouped=grouped, privacy=fitted.privacy),
        mechanism="dissent" if mechanism == "auto" else mechanism,
        public={
            "n_teachers": int(fitted.n_teachers_),
            "classes": labels_as_json(fitted.classes_),
            "classes_declared": declared,
            "n_public": fitted.n_public_,
            "privacy": fitted.privacy,
            "assumed": assumed,
        },
        ledger=receipt,
    )


_PROTECTIONS = [
    protection(grouped=grouped, privacy=privacy)
    for grouped in (False, True)
    for privacy in ("records", "labels")
]
_MOST_EVENTS = 1000
_UNREADABLE = (
    *(TypeError, ValueError, KeyError, AttributeError, ArithmeticError),
    *(MemoryError, RecursionError),
)


def _is_finite(value: Any) -> bool:
    plain = isinstance(value, int | float) and not isinstance(value, bool)
    return plain and 0 <= value < 1e9


def labels_as_json(classes: Any) -> list[Any]:
    """Return labels as JSON has them: times and the like become texts."""
    plain = (str, int, float)
    return [c if isinstance(c, plain) else str(c) for c in classes.tolist()]


def _classes_clause(declared: bool) -> str:
    """Return what the sentence adds where classes were read from private labels."""
    return "" if declared else " The list of classes is not protected."


def _guarantee(epsilon: float | None, delta: float, neighbours: str) -> str:
    """Return the guarantee; `verify` compares it word by word, so it never changes."""
    if epsilon is None:
        return "WORTHLESS: seeded or insufficient noise; nobody is protected."
    return (
        f"Whatever is computed from what was published, its probability changes by at "
        f"most a factor {_factor(epsilon)} (e^{epsilon:g}), up to "
        f"{delta:g}, {neighbours}."
    )


def _factor(epsilon: float) -> str:
    """Return e^epsilon as text; beyond 700 it is no float."""
    return f"{math.exp(epsilon):.4g}" if epsilon <= 700 else "over 1e304"


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
    >>> from mapl.privacy.events import GaussianEvent
    >>> made = certificate.make(
    ...     [GaussianEvent(sigma=Fraction(40), steps=100)],
    ...     delta=1e-5, **certificate.protection(grouped=False),
    ...     mechanism="dissent", public={"n_teachers": 250}, ledger="none",
    ... )
    >>> round(certificate.verify(made), 2)
    0.93
    """
    if not isinstance(certificate, Mapping) or set(certificate) != set(_FIELDS):
        raise CertificateError(
            f"A certificate must have the fields {', '.join(_FIELDS)}; this has others."
        )
    if certificate["form"] not in (_FORM, _OLD_FORM):
        raise CertificateError(
            f"Certificate form {certificate['form']!r} is unknown to this version. "
            "Upgrade mapl."
        )
    claimed, delta = certificate["epsilon"], certificate["delta"]
    said = {"unit": certificate["unit"], "neighbours": certificate["neighbours"]}
    if said not in _PROTECTIONS:
        raise CertificateError(
            "The certificate says of unit and neighbours what mapl does not certify."
        )
    try:
        if len(certificate["events"]) > _MOST_EVENTS:
            raise CertificateError(f"more than {_MOST_EVENTS} events.")
        if claimed is not None and not _is_finite(claimed):
            raise CertificateError("epsilon must be a finite number.")
        events = [from_json(event) for event in certificate["events"]]
        found = accounting.epsilon(events, delta=delta)
        sentence = _guarantee(claimed, delta, certificate["neighbours"])
        declared = certificate["public"].get("classes_declared", True)
        if certificate["form"] == _OLD_FORM and not declared:
            raise CertificateError(
                "an earlier version did not say that its classes are not protected. "
                "Make it again."
            )
        sentence += _classes_clause(declared)
    except (MaplError, *_UNREADABLE) as error:
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
    except (OSError, *_UNREADABLE) as error:
        raise CertificateError(f"{path} holds no certificate: {error}") from error


def write(certificate: Mapping[str, Any], path: Path) -> None:
    """Write a certificate as JSON."""
    path.write_text(json.dumps(certificate, indent=2) + "\n")
