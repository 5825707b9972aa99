import json
from fractions import Fraction
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mapl import PrivateClassifier, certificate
from mapl.errors import CertificateError, ParameterError, PrivacyWarning
from mapl.privacy.events import GaussianEvent
from mapl.publish import signing


def gaussian(sigma: str) -> dict[str, Any]:
    event = GaussianEvent(sigma=Fraction(40), steps=100)
    return event.to_json() | {"sigma": sigma}


def made(**kwargs: Any) -> dict[str, Any]:
    return certificate.make(
        [GaussianEvent(sigma=Fraction(40), steps=100, **kwargs)],
        delta=1e-5,
        **certificate.protection(grouped=False),
        mechanism="dissent",
        public={"n_teachers": 250},
        ledger="none",
    )


def test_a_certificate_survives_a_file_and_holds(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.write_bytes(b"a model")
    path = tmp_path / "certificate.json"
    certificate.write(certificate.with_files(made(), [model]), path)
    read = certificate.read(path)
    assert certificate.verify(read, folder=tmp_path) == read["epsilon"]
    assert certificate.verify(read, model=model) == read["epsilon"]
    assert "at most a factor 2.525" in read["guarantee"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"epsilon": 0.5}, "cost epsilon 0.926.*claims 0.5"),
        ({"epsilon": None}, "claims None"),
        ({"delta": 1e-9}, "cost epsilon"),
        ({"delta": "x"}, "cannot be read"),
        ({"epsilon": "1"}, "cannot be read"),
        ({"guarantee": "perfectly safe"}, "sentence is not what it certifies"),
        ({"neighbours": "households"}, "what mapl does not certify"),
        ({"unit": "all records of one group"}, "what mapl does not certify"),
        ({"epsilon": True}, "epsilon must be a finite number"),
        ({"epsilon": float("inf")}, "epsilon must be a finite number"),
        ({"epsilon": 10**400}, "epsilon must be a finite number"),
        ({"events": [{"kind": "gaussian/1"}] * 2000}, "more than 1000 events"),
        ({"public": [1]}, "cannot be read"),
        ({"events": [gaussian("1e999999999")]}, "must be a rational number"),
        ({"form": "mapl certificate/4"}, "unknown to this version"),
        ({"extra": 1}, "must have the fields"),
        ({"events": [{"kind": "magic/1"}]}, "cannot be read.*unknown to this version"),
        ({"events": [{"kind": "gaussian/1"}]}, "cannot be read.*must have the fields"),
        ({"events": [3]}, "cannot be read"),
    ],
)
def test_a_tampered_certificate_is_refused(
    change: dict[str, Any], message: str
) -> None:
    with pytest.raises(CertificateError, match=message):
        certificate.verify({**made(), **change})
    with pytest.raises(CertificateError, match="JSON object"):
        certificate.verify([1])  # type: ignore[arg-type]


def test_a_factor_beyond_floats_is_not_understated() -> None:
    assert certificate._factor(700).startswith("1.014e+304")
    assert certificate._factor(1000) == "over 1e304"


def test_less_noise_than_was_used_is_refused() -> None:
    tampered = json.loads(json.dumps(made()))
    tampered["events"][0]["sigma"] = "30"
    with pytest.raises(CertificateError, match="cost epsilon"):
        certificate.verify(tampered)


def test_another_model_is_refused(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    one.write_bytes(b"1")
    two.write_bytes(b"2")
    signed = certificate.with_files(made(), [one])
    with pytest.raises(CertificateError, match="its digest differs"):
        certificate.verify(signed, model=two)
    one.write_bytes(b"3")
    with pytest.raises(CertificateError, match="its digest differs"):
        certificate.verify(signed, folder=tmp_path)
    one.unlink()
    with pytest.raises(CertificateError, match="is not there"):
        certificate.verify(signed, folder=tmp_path)


@pytest.mark.parametrize("form", ["mapl certificate/1", "mapl certificate/2"])
def test_a_certificate_cannot_be_passed_off_as_an_older_one(form: str) -> None:
    """Forms without a seal would let anybody edit a certificate."""
    fields = ("files", "seal", "signature")
    common = {name: value for name, value in made().items() if name not in fields}
    with pytest.raises(CertificateError, match="unknown to this version"):
        certificate.verify(common | {"form": form, "model_sha256": None})


def every_edit() -> Any:
    """Each field of a certificate, changed so that all else still fits."""
    edited = {
        "mapl": "9.9",
        "epsilon": 5.0,
        "unit": "all records of one group",
        "mechanism": "noisy-max",
        "public": {"n_teachers": 251},
        "ledger": "a good one",
        "files": {"model.skops": "0" * 64},
    }
    return [{name: value} for name, value in edited.items()]


@pytest.mark.parametrize("edit", every_edit(), ids=str)
def test_an_edited_field_breaks_the_seal(edit: dict[str, Any]) -> None:
    changed = {**made(), **edit}
    if "unit" in edit:
        changed |= certificate.protection(grouped=True)
    changed["guarantee"] = certificate._guarantee(
        changed["epsilon"], 1e-5, changed["neighbours"]
    )
    with pytest.raises(CertificateError, match="edited"):
        certificate.verify(changed)


@pytest.mark.parametrize(
    "files", [{}, [], {"../x": "0"}, {1: "0"}, {"": "0"}, {"..": "0"}], ids=str
)
def test_names_of_files_must_be_names(tmp_path: Path, files: Any) -> None:
    changed = certificate.sealed({**made(), "files": files})
    changed = certificate.signed(changed, signing.own_key())
    with pytest.raises(CertificateError, match="names no files"):
        certificate.verify(changed, folder=tmp_path)


def test_a_signature_says_who_made_a_certificate(tmp_path: Path) -> None:
    mine, other = tmp_path / "mine", tmp_path / "other"
    shown = [signing.new_key(path).read_bytes() for path in (mine, other)]
    assert mine.stat().st_mode & 0o777 == 0o600
    signed = certificate.signed(made(), signing.read_key(mine))
    back = json.loads(json.dumps(signed))
    assert certificate.verify(back, public_key=shown[0]) < 1
    assert "signed by the key" in certificate.standing(back, checked_key=True)
    assert "Ask the holder" in certificate.standing(back, checked_key=False)
    assert "no signature" in certificate.standing(made(), checked_key=False)
    with pytest.raises(
        CertificateError, match=r"signed by the key \w+, not by the key"
    ):
        certificate.verify(back, public_key=shown[1])
    with pytest.raises(CertificateError, match="not signed"):
        certificate.verify(made(), public_key=shown[0])
    resealed = certificate.sealed(back | {"ledger": "another"})
    resealed["signature"] = back["signature"]
    with pytest.raises(CertificateError, match="not of this certificate"):
        certificate.verify(resealed, public_key=shown[0])
    with pytest.raises(ParameterError, match="is there already"):
        signing.new_key(mine)
    mine.with_name("mine.pub").unlink()
    with pytest.raises(ParameterError, match="is there already"):
        signing.new_key(mine)
    with pytest.raises(ParameterError, match="Ed25519 private key"):
        signing.read_key(tmp_path / "other.pub")
    with pytest.raises(ParameterError, match="Ed25519 key in PEM"):
        certificate.verify(back, public_key=b"nonsense")


@pytest.mark.parametrize(
    "edit",
    [
        {"value": "00" * 64},
        {"value": "x"},
        {"value": 7},
        {"public_key": "text before -----BEGIN"},
        {"public_key": "nonsense"},
        {"algorithm": "rot13"},
        {"more": 1},
    ],
    ids=str,
)
def test_an_edited_signature_is_refused(edit: dict[str, Any]) -> None:
    signed = certificate.signed(made(), signing.own_key())
    assert certificate.verify(signed) < 1
    changed = signed | {"signature": signed["signature"] | edit}
    with pytest.raises(CertificateError):
        certificate.verify(changed)


def test_a_signature_has_one_form() -> None:
    signed = certificate.signed(made(), signing.own_key())
    own = signed["signature"]
    for edit in (
        {"public_key": "note\n" + own["public_key"]},
        {"value": own["value"].upper()},
        {"value": own["value"] + " "},
    ):
        with pytest.raises(CertificateError, match="signature is odd"):
            certificate.verify(signed | {"signature": own | edit})


def test_a_key_that_signs_everything_is_no_key() -> None:
    """The neutral point: its equation holds for every message."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    point = bytes([1]) + bytes(31)
    pem = signing._as_pem(Ed25519PublicKey.from_public_bytes(point)).decode()
    forged = {"algorithm": "ed25519", "public_key": pem}
    forged["value"] = (point + bytes(32)).hex()
    with pytest.raises(CertificateError, match=r"signs everything|not of this"):
        certificate.verify(made() | {"signature": forged})


def test_a_folder_needs_a_signed_certificate(tmp_path: Path) -> None:
    with pytest.raises(CertificateError, match="not signed"):
        certificate.verify(made(), folder=tmp_path)


def test_a_machine_has_one_key_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MAPL_STATE", str(tmp_path / "state"))
    assert signing.own_key() == signing.own_key()
    assert (tmp_path / "state" / "signing-key.pem").stat().st_mode & 0o777 == 0o600
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("MAPL_STATE", str(tmp_path / "file"))
    with pytest.warns(PrivacyWarning, match="a key that is thrown away"):
        first = signing.own_key()
    with pytest.warns(PrivacyWarning, match="a key that is thrown away"):
        assert signing.own_key() != first


def test_seeded_noise_makes_a_worthless_certificate() -> None:
    worthless = made(seeded=True)
    assert worthless["guarantee"].startswith("WORTHLESS")
    assert worthless["epsilon"] is None
    with pytest.raises(CertificateError, match="claims None"):
        certificate.verify(worthless)


@pytest.mark.parametrize(
    "content", ["", "[1]", "null", "{", "[" * 200_000, '{"a": 1, "a": 2}']
)
def test_a_file_without_a_certificate_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "certificate.json"
    path.write_text(content)
    with pytest.raises(CertificateError):
        certificate.verify(certificate.read(path))
    with pytest.raises(CertificateError, match="holds no certificate"):
        certificate.read(tmp_path / "nothing")


def test_only_what_was_certified_is_used(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"a")
    found = {"files": {"a": sha256(b"a").hexdigest(), "b": sha256(b"b").hexdigest()}}
    assert certificate.content(found, tmp_path, "a") == b"a"
    with pytest.raises(CertificateError, match="b is not there"):
        certificate.content(found, tmp_path, "b")
    with pytest.raises(CertificateError, match="says nothing about c"):
        certificate.content(found, tmp_path, "c")
    (tmp_path / "a").write_bytes(b"b")
    with pytest.raises(CertificateError, match="digest differs"):
        certificate.content(found, tmp_path, "a")


@pytest.mark.parametrize("privacy", ["records", "labels"])
def test_the_certificate_of_a_fit_verifies_and_shows_nothing_private(
    privacy: str,
) -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(1237, 3))
    y = np.where(X[:, 0] > 0, "yes", "no")
    model = PrivateClassifier(privacy=privacy, classes=["no", "yes"], n_teachers=20)
    model.fit(X, y, X_public=X[:100], allow_overlap=True)
    assert certificate.verify(json.loads(json.dumps(model.certificate_))) <= 1
    assert "1237" not in json.dumps(model.certificate_)
    assert model.certificate_["public"]["classes"] == ["no", "yes"]
