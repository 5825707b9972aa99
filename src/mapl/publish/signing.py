"""Signatures of certificates: Ed25519, keys as PEM files."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Mapping
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

from mapl.errors import CertificateError, ParameterError, PrivacyWarning
from mapl.ledger.files import state_folder

_ALGORITHM = "ed25519"
_HEX = re.compile("[0-9a-f]{128}")
_SIGNATURE_FIELDS = {"algorithm", "public_key", "value"}


def new_key(path: Path) -> Path:
    """Write a new private key, for its owner alone, and the public one beside it.

    Returns the path of the public key. A file that is there is not overwritten.
    """
    key = _new()
    shown = path.with_name(f"{path.name}.pub")
    if shown.exists():
        raise ParameterError(f"{shown} is there already. Take another name.")
    try:
        place = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise ParameterError(f"{path} is there already. Take another name.") from None
    with os.fdopen(place, "wb") as file:
        file.write(_pem_of(key))
    shown.write_bytes(_as_pem(key.public_key()))
    return shown


def _new() -> Any:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    return Ed25519PrivateKey.generate()


def _pem_of(key: Any) -> bytes:
    from cryptography.hazmat.primitives import serialization as form

    found = key.private_bytes(
        form.Encoding.PEM, form.PrivateFormat.PKCS8, form.NoEncryption()
    )
    return bytes(found)


def read_key(path: Path) -> bytes:
    """Return a private key, if it can sign."""
    data = path.read_bytes()
    _private_key(data)
    return data


def sign(message: bytes, private_key: bytes) -> dict[str, str]:
    """Return the signature of a message, with the key that it can be checked by."""
    key = _private_key(private_key)
    return {
        "algorithm": _ALGORITHM,
        "public_key": _as_pem(key.public_key()).decode(),
        "value": key.sign(message).hex(),
    }


def own_key() -> bytes:
    """Return the key of this user on this machine, which is made when it is needed."""
    path = state_folder() / "signing-key.pem"
    with suppress(OSError, ParameterError):
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            new_key(path)
    try:
        return read_key(path)
    except OSError:  # a state folder that cannot be written
        warnings.warn(
            f"{path.parent} cannot be written, so the certificate is signed by a key "
            "that is thrown away: nobody can tell that it is yours. Use --sign, or "
            "name another state folder: MAPL_STATE.",
            PrivacyWarning,
            stacklevel=3,
        )
        return _pem_of(_new())


def fingerprint(signature: Mapping[str, Any]) -> str:
    """Return what people compare keys by."""
    key = _public_key(str(signature["public_key"]).encode())
    return sha256(key.public_bytes_raw()).hexdigest()[:16]


def check_own(signature: Any, message: bytes) -> None:
    """Refuse a signature that is not of this message by the key that it names."""
    if not isinstance(signature, Mapping) or set(signature) != _SIGNATURE_FIELDS:
        raise CertificateError("The certificate was edited: its signature is odd.")
    if signature["algorithm"] != _ALGORITHM:
        raise CertificateError("The signature's algorithm must be ed25519.")
    try:
        pem = str(signature["public_key"]).encode()
        key = _public_key(pem)
    except ParameterError:
        raise CertificateError("The signature names no Ed25519 key.") from None
    value = str(signature["value"])
    if _as_pem(key) != pem or not _HEX.fullmatch(value):
        raise CertificateError("The certificate was edited: its signature is odd.")
    check(signature, message, pem)
    if any(_holds(key, value, b"%d" % i + message) for i in range(16)):
        raise CertificateError("The signature's key signs everything: it is no key.")


def check(signature: Any, message: bytes, public_key: bytes) -> None:
    """Refuse a signature that is not of this message by this key."""
    key = _public_key(public_key)
    if not isinstance(signature, Mapping):
        raise CertificateError("The certificate is not signed.")
    if not _holds(key, signature["value"], message):
        other = fingerprint({"public_key": public_key.decode("ascii", "replace")})
        named = signature.get("public_key")
        if named and fingerprint({"public_key": named}) != other:
            raise CertificateError(
                f"The certificate is signed by the key {fingerprint(signature)}, not "
                f"by the key {other}."
            )
        raise CertificateError("The signature is not of this certificate.")


def _holds(key: Any, value: Any, message: bytes) -> bool:
    from cryptography.exceptions import InvalidSignature

    try:
        key.verify(bytes.fromhex(value), message)
    except (InvalidSignature, TypeError, ValueError):
        return False
    return True


def _public_key(pem: bytes) -> Any:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    try:
        key = load_pem_public_key(pem)
    except ValueError:
        key = None
    if not isinstance(key, Ed25519PublicKey):
        raise ParameterError("The public key must be an Ed25519 key in PEM.")
    return key


def _private_key(data: bytes) -> Any:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        key = load_pem_private_key(data, password=None)
    except (TypeError, ValueError):
        key = None
    if not isinstance(key, Ed25519PrivateKey):
        raise ParameterError(
            "The key must be an Ed25519 private key in PEM, without a password. Make "
            "one: mapl certificate key FILE"
        )
    return key


def _as_pem(key: Any) -> bytes:
    from cryptography.hazmat.primitives import serialization as form

    found = key.public_bytes(form.Encoding.PEM, form.PublicFormat.SubjectPublicKeyInfo)
    return bytes(found)
