"""What a ledger and its jobs keep from everybody without the key: encrypted.

The state of a running mechanism tells which teachers disagreed, and a checkpoint holds
a teacher's votes. Both are encrypted with AES-GCM, under keys derived from the ledger's
own, which lies in the state folder or comes from ``MAPL_KEY``.
"""

import base64
import os
import secrets
import shutil
from contextlib import suppress
from functools import cached_property
from hashlib import blake2b, sha256
from pathlib import Path
from typing import Any

from mapl.errors import LedgerCorruptedError
from mapl.ledger.files import state_folder

_PREFIX = "aesgcm1:"
_NONCE = 12


class Cipher:
    """Encrypts for whoever has the key; what it returns is bound to its place."""

    def __init__(self, key: bytes) -> None:
        self._key = blake2b(key, digest_size=32, person=b"seal").digest()

    @cached_property
    def _aes(self) -> Any:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        return AESGCM(self._key)

    def encrypt(self, data: bytes, place: bytes) -> bytes:
        """Return a nonce and the encrypted data."""
        nonce = secrets.token_bytes(_NONCE)
        return nonce + bytes(self._aes.encrypt(nonce, data, place))

    def decrypt(self, data: bytes, place: bytes) -> bytes | None:
        """Return the data, or None if it is of another key or place, or damaged."""
        from cryptography.exceptions import InvalidTag

        try:
            return bytes(self._aes.decrypt(data[:_NONCE], data[_NONCE:], place))
        except (InvalidTag, ValueError):
            return None

    def seal(self, text: str, place: str) -> str:
        """Return a text encrypted, as text."""
        sealed = self.encrypt(text.encode(), place.encode())
        return _PREFIX + base64.b64encode(sealed).decode("ascii")

    def open(self, sealed: str, place: str) -> str:
        """Return what `seal` encrypted; rows of earlier versions are in clear."""
        if not sealed.startswith(_PREFIX):
            return sealed
        found = self.decrypt(
            base64.b64decode(sealed.removeprefix(_PREFIX)), place.encode()
        )
        if found is None:
            raise LedgerCorruptedError(
                "The state of a mechanism cannot be decrypted with this key. Nothing "
                "was released."
            )
        return found.decode()


def checkpoint_folder() -> Path:
    """Return where checkpoints of all jobs are."""
    return state_folder() / "teachers"


def remove_checkpoints() -> int:
    """Remove the checkpoints of all jobs; return how many jobs had some."""
    found = [path for path in checkpoint_folder().glob("*") if path.is_dir()]
    for path in found:
        shutil.rmtree(path, ignore_errors=True)
    return len(found)


class FolderOfCheckpoints:
    """Keeps votes in a folder, encrypted; the `Checkpoints` of a ledger's job."""

    def __init__(self, folder: Path, cipher: Cipher) -> None:
        self._folder, self._cipher = folder, cipher

    def load(self, name: str, content: bytes) -> bytes | None:
        """Return what was saved under a name for this content, if it is intact."""
        try:
            data = (self._folder / name).read_bytes()
        except OSError:
            return None
        return self._cipher.decrypt(data, _place(name, content))

    def save(self, name: str, content: bytes, data: bytes) -> None:
        """Keep data: a finished file or none. A full disk is no reason to stop."""
        part = self._folder / f"{name}.part"
        try:
            for folder in (self._folder.parent, self._folder):
                folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            descriptor = os.open(part, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(self._cipher.encrypt(data, _place(name, content)))
            part.replace(self._folder / name)
        except OSError:
            with suppress(OSError):
                part.unlink(missing_ok=True)


def _place(name: str, content: bytes) -> bytes:
    return name.encode() + b"/" + sha256(content).digest()
