"""What was released, what it cost, and what that assumes, as JSON.

Anybody can check it: `verify` recomputes epsilon from the events, the digests of all
files beside it, and the seal over its own fields. Whose key signed it, it says too; who
has that key, only its owner can tell. Public values only.
"""

import json
import math
from collections.abc import Mapping, Sequence
from hashlib import file_digest, sha256
from pathlib import Path
from typing import Any

from mapl import __version__
from mapl.errors import CertificateError, MaplError
from mapl.privacy import accounting
from mapl.privacy.events import Event, from_json
from mapl.privacy.rounding import decimals_up
from mapl.publish import signing
from mapl.records.overlap import clause

_FORM = "mapl certificate/3"
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
    "files",
    "seal",
    "signature",
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
    return sealed(
        {
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
            "files": {},
        }
    )


def sealed(certificate: Mapping[str, Any]) -> dict[str, Any]:
    """Return the certificate with a digest of its fields, and no signature."""
    fields = {name: certificate[name] for name in _FIELDS[:-2]}
    return {**fields, "seal": _seal(fields), "signature": None}


def _seal(certificate: Mapping[str, Any]) -> str:
    return sha256(_canonical(certificate)).hexdigest()


def _canonical(certificate: Mapping[str, Any]) -> bytes:
    """Return the fields as bytes that do not depend on how a file is laid out."""
    fields = {name: certificate[name] for name in _FIELDS[:-2]}
    return json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()


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
    elif fitted.n_public_:
        assumed += clause(
            allow_overlap=fitted._allow_overlap, on_invalid=fitted.on_invalid
        )
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


def with_files(
    certificate: Mapping[str, Any], files: Sequence[Path], key: bytes | None = None
) -> dict[str, Any]:
    """Return the certificate with the digests of the files beside it, signed by a key
    (Ed25519 in PEM): this machine's own if there is none.
    """
    digests = {path.name: digest(path) for path in files}
    made = sealed({**certificate, "files": digests})
    return signed(made, signing.own_key() if key is None else key)


def digest(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()


def verify(
    certificate: Mapping[str, Any],
    *,
    model: Path | None = None,
    folder: Path | None = None,
    public_key: bytes | None = None,
) -> float:
    """Recompute what a certificate claims, and return its epsilon.

    With ``folder``, the files that it names must be there as they were; with ``model``,
    that file must be one of them; with ``public_key`` (Ed25519, PEM), the certificate
    must be signed by that key.

    Raises
    ------
    CertificateError
        If a field is missing, added or edited, an event is unknown, the events cost
        more than is claimed, the sentence says something else, a file is another one,
        or the signature is not of that key.

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
    _check_fields(certificate)
    _check_words(certificate)
    claimed, delta = certificate["epsilon"], certificate["delta"]
    found, sentence = _recomputed(certificate)
    if claimed is None or not found <= claimed:
        raise CertificateError(
            f"The events cost epsilon {found:.6g} at delta {delta:g}, "
            f"the certificate claims {claimed}."
        )
    if certificate["guarantee"] != sentence:
        raise CertificateError("The certificate's sentence is not what it certifies.")
    if certificate["seal"] != _seal(certificate):
        raise CertificateError("The certificate was edited: its seal does not fit.")
    if certificate["signature"] is not None:
        signing.check_own(certificate["signature"], _canonical(certificate))
    if folder is not None:
        if certificate["signature"] is None:
            raise CertificateError(
                "The certificate is not signed, as every published one is: it was "
                "edited, or made by hand."
            )
        _check_files(certificate, folder)
    if model is not None and digest(model) not in _digests(certificate).values():
        raise CertificateError(
            f"{model} is not the model that was certified: its digest differs."
        )
    if public_key is not None:
        signing.check(certificate.get("signature"), _canonical(certificate), public_key)
    return float(claimed)


def signed(certificate: Mapping[str, Any], private_key: bytes) -> dict[str, Any]:
    """Return the certificate with a signature (Ed25519, a key in PEM)."""
    return {
        **certificate,
        "signature": signing.sign(_canonical(certificate), private_key),
    }


def _check_fields(certificate: Mapping[str, Any]) -> None:
    if not isinstance(certificate, Mapping):
        raise CertificateError("A certificate must be a JSON object.")
    form = certificate.get("form")
    if form != _FORM:
        raise CertificateError(
            f"Certificate form {form!r} is unknown to this version. Upgrade mapl, or "
            "learn again if an early version made it."
        )
    if set(certificate) != set(_FIELDS):
        raise CertificateError(
            f"A certificate must have the fields {', '.join(_FIELDS)}; this has others."
        )


def _check_words(certificate: Mapping[str, Any]) -> None:
    said = {"unit": certificate["unit"], "neighbours": certificate["neighbours"]}
    if said not in _PROTECTIONS:
        raise CertificateError(
            "The certificate says of unit and neighbours what mapl does not certify."
        )
    public = certificate["public"]
    named = public.get("privacy") if isinstance(public, Mapping) else None
    if named is not None and named != privacy_of(certificate):
        raise CertificateError(
            "The certificate says two different things about what is private."
        )


def privacy_of(certificate: Mapping[str, Any]) -> str:
    """Return whether records are protected, or labels: by how neighbours differ."""
    said = {"unit": certificate["unit"], "neighbours": certificate["neighbours"]}
    return "records" if _PROTECTIONS.index(said) % 2 == 0 else "labels"


def _recomputed(certificate: Mapping[str, Any]) -> tuple[float, str]:
    """Return what the events cost, and the sentence that the fields make."""
    claimed, delta = certificate["epsilon"], certificate["delta"]
    try:
        if len(certificate["events"]) > _MOST_EVENTS:
            raise CertificateError(f"more than {_MOST_EVENTS} events.")
        if claimed is not None and not _is_finite(claimed):
            raise CertificateError("epsilon must be a finite number.")
        events = [from_json(event) for event in certificate["events"]]
        found = accounting.epsilon(events, delta=delta)
        sentence = _guarantee(claimed, delta, certificate["neighbours"])
        declared = certificate["public"].get("classes_declared", True)
    except (MaplError, *_UNREADABLE) as error:
        raise CertificateError(f"The certificate cannot be read: {error}") from error
    return found, sentence + _classes_clause(declared)


def _check_files(certificate: Mapping[str, Any], folder: Path) -> None:
    """Refuse a folder whose files are not those that were certified."""
    for name, wanted in _digests(certificate).items():
        path = folder / name
        if not path.is_file():
            raise CertificateError(f"{path} was certified, and is not there.")
        if digest(path) != wanted:
            raise CertificateError(
                f"{path} is not the file that was certified: its digest differs."
            )


def content(certificate: Mapping[str, Any], folder: Path, name: str) -> bytes:
    """Return what a file beside a certificate holds, if just that was certified."""
    wanted = _digests(certificate).get(name)
    if wanted is None:
        raise CertificateError(
            f"The certificate in {folder} says nothing about {name}: whoever signed it "
            "does not vouch for that file. Nothing was used."
        )
    try:
        data = (folder / name).read_bytes()
    except OSError:
        raise CertificateError(f"{folder / name} is not there.") from None
    if sha256(data).hexdigest() != wanted:
        raise CertificateError(
            f"{folder / name} is not the file that was certified: its digest differs."
        )
    return data


def _digests(certificate: Mapping[str, Any]) -> dict[str, str]:
    """Return the digest of each file by its name."""
    digests = certificate["files"]
    named = isinstance(digests, Mapping) and all(
        isinstance(name, str) and name == Path(name).name and name not in ("", "..")
        for name in digests
    )
    if not named or not digests:
        raise CertificateError("The certificate names no files.")
    return dict(digests)


def beside(certificate: Mapping[str, Any], path: Path) -> bool:
    """Whether any of the certified files stands beside the certificate's own."""
    _check_fields(certificate)
    return any(path.with_name(name).exists() for name in _digests(certificate))


def not_covered(certificate: Mapping[str, Any], folder: Path) -> list[str]:
    """Return the names of files beside a certificate that it says nothing about."""
    known = {"certificate.json", *_digests(certificate)}
    return sorted(path.name for path in folder.iterdir() if path.name not in known)


def standing(certificate: Mapping[str, Any], *, checked_key: bool) -> str:
    """Say in plain words what a verification proves, and what it does not."""
    proved = (
        "The figures follow from the releases that are listed, and the files are those "
        "that were certified."
    )
    if checked_key:
        return f"{proved} The certificate is signed by the key that you gave."
    if certificate["signature"]:
        key = signing.fingerprint(certificate["signature"])
        return (
            f"{proved} It is signed by the key {key}. Ask the holder whether that is "
            "theirs, or give --public-key: anybody could have written a certificate "
            "and signed it with another key."
        )
    return (
        f"{proved} There is no signature: this does not prove who made the "
        "certificate, nor that these releases are all there were. Anybody could have "
        "written it."
    )


def read(path: Path) -> dict[str, Any]:
    """Return the certificate in a file."""
    try:
        found = json.loads(path.read_text(), object_pairs_hook=_each_once)
        if not isinstance(found, dict):
            raise CertificateError("it is no JSON object.")
        return found
    except OSError as error:
        raise CertificateError(
            f"{path} holds no certificate: {error.strerror}."
        ) from error
    except CertificateError as error:
        raise CertificateError(f"{path} holds no certificate: {error}") from error
    except _UNREADABLE:
        raise CertificateError(f"{path} holds no certificate: it is no JSON.") from None


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object; of two fields of one name, readers see different ones."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise CertificateError("a field stands twice.")
    return found


def write(certificate: Mapping[str, Any], path: Path) -> None:
    """Write a certificate as JSON."""
    path.write_text(json.dumps(certificate, indent=2) + "\n")
