import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mapl import PrivateClassifier, certificate
from mapl.errors import CertificateError
from mapl.privacy.events import GaussianEvent


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
    certificate.write(certificate.with_model(made(), model), path)
    read = certificate.read(path)
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
        ({"public": [1], "form": "mapl certificate/1"}, "cannot be read"),
        ({"events": [gaussian("1e999999999")]}, "must be a rational number"),
        ({"form": "mapl certificate/3"}, "unknown to this version"),
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
    signed = certificate.with_model(made(), one)
    with pytest.raises(CertificateError, match="its digest differs"):
        certificate.verify(signed, model=two)


def test_seeded_noise_makes_a_worthless_certificate() -> None:
    worthless = made(seeded=True)
    assert worthless["guarantee"].startswith("WORTHLESS")
    assert worthless["epsilon"] is None
    with pytest.raises(CertificateError, match="claims None"):
        certificate.verify(worthless)


@pytest.mark.parametrize("content", ["", "[1]", "{", "[" * 200_000])
def test_a_file_without_a_certificate_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "certificate.json"
    path.write_text(content)
    with pytest.raises(CertificateError):
        certificate.verify(certificate.read(path))
    with pytest.raises(CertificateError, match="holds no certificate"):
        certificate.read(tmp_path / "nothing")


@pytest.mark.parametrize("privacy", ["records", "labels"])
def test_the_certificate_of_a_fit_verifies_and_shows_nothing_private(
    privacy: str,
) -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(1237, 3))
    y = np.where(X[:, 0] > 0, "yes", "no")
    model = PrivateClassifier(privacy=privacy, classes=["no", "yes"], n_teachers=20)
    model.fit(X, y, X_public=X[:100])
    assert certificate.verify(json.loads(json.dumps(model.certificate_))) <= 1
    assert "1237" not in json.dumps(model.certificate_)
    assert model.certificate_["public"]["classes"] == ["no", "yes"]
