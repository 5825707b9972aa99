from fractions import Fraction

import numpy as np
import pytest

from mapl.errors import (
    MaplError,
    ParameterError,
    hide_passwords,
    integer,
    positive,
    rational,
)


def test_every_error_is_a_mapl_error_and_bad_values_are_value_errors() -> None:
    assert issubclass(ParameterError, MaplError)
    assert issubclass(ParameterError, ValueError)


def test_passwords_of_every_form_are_hidden() -> None:
    for password in ("s3cret", "s3'cret", 's3"cret', "s3 cret", "s3@cret", "s3/cret"):
        for user in ("me", "me@corp"):
            url = f"postgresql://{user}:{password}@host/db"
            assert "cret" not in hide_passwords(url)
            assert hide_passwords(url).endswith("@host/db")
    assert "cret" not in hide_passwords("postgresql://h/db?password=s3'cret")
    for plain in ("postgresql://me@host/db", "sqlite:///a.db", "postgres://me:@/x"):
        assert hide_passwords(plain) == plain


def test_numbers_of_numpy_are_numbers() -> None:
    assert positive(epsilon=np.float64(2)) == 2.0
    assert integer(cutoff=np.int8(2), at_least=1) == 2
    assert rational(scale=np.int64(3)) == Fraction(3)


def test_refused_float_says_what_to_pass() -> None:
    with pytest.raises(ParameterError) as caught:
        rational(scale=np.float64(0.1))
    assert str(caught.value).endswith('Pass Fraction("0.1").')
