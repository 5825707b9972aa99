"""Labels to class indices, label by label."""

from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mapl.errors import ParameterError
from mapl.privacy.votes import NO_VOTE
from mapl.records.cells import text
from mapl.records.labels import (
    UNKNOWN,
    checked_labels,
    declared_classes,
    encode,
    encode_predictions,
)
from mapl.records.private import private_records, split_public_features
from mapl.records.schema import Schema
from mapl.records.table import canonical_table

FORMS = [
    [0, 1, 1],
    [0.0, 1.0, 1.0],
    ["0", "1", "1"],
    [False, True, True],
    ["False", "True", "True"],
    ["0.0", "1.0", "1.0"],
    np.array([0, 1, 1], dtype=np.uint8),
    np.array([0, 1, 1], dtype=np.longdouble),
    np.array([False, True, True]),
    np.array([0, 1, 1], dtype=object),
    pd.Series([0, 1, 1], dtype="Int64"),
    pa.chunked_array([[0, 1], [1]]),
]


@pytest.mark.parametrize("y", FORMS, ids=lambda y: f"{type(y).__name__} {y[0]!r}")
@pytest.mark.parametrize(
    "classes",
    [[0, 1], [0.0, 1.0], ["0", "1"], [False, True], ["False", "True"], ["0.0", "1.0"]],
)
def test_one_label_has_one_code_in_every_form(y: Any, classes: Any) -> None:
    assert encode(y, declared_classes(classes)).tolist() == [0, 1, 1]


def test_classes_that_are_one_label_are_refused() -> None:
    for classes in (["1", "True"], ["1", "1.0"], ["0", "-0.0"], ["0", "x", "False"]):
        with pytest.raises(ParameterError, match="classes must differ as texts"):
            encode(["1"], declared_classes(classes))
    near = ["01", "1.00", "0x1", "nan"]
    assert encode(near, declared_classes(["0", "1"])).tolist() == [UNKNOWN] * 4


LABELS = [0, 1, -0.0, 1.0, True, "x", "True", 10**17, 1e16, "3"]


@pytest.mark.parametrize("label", LABELS, ids=repr)
@pytest.mark.parametrize("odd", LABELS, ids=repr)
@pytest.mark.parametrize("holder", [list, np.asarray, pd.Series])
def test_no_label_changes_the_code_of_another(
    label: Any, odd: Any, holder: Any
) -> None:
    """As `fit` reads labels: one label may change the type of a whole container.

    What scikit-learn refuses is refused as a whole, and nothing is released.
    """
    classes = declared_classes([text(one) for one in (0, 1, "x", 1e16, "3")])
    labels = [label, 0, 1, 0, 1]
    alone = encode(holder(labels), classes)
    try:
        read = [checked_labels(holder(some)) for some in (labels, [*labels, odd])]
    except (TypeError, ValueError):
        return
    assert encode(read[0], classes).tolist() == alone.tolist()
    assert encode(read[1], classes)[:-1].tolist() == alone.tolist()


def test_times_have_one_code_whatever_their_unit() -> None:
    days = np.array(["2020-01-02", "2020-01-01"], dtype="M8[D]")
    for unit in ("D", "s", "ns"):
        assert encode(days.astype(f"M8[{unit}]"), np.unique(days)).tolist() == [1, 0]
    years = np.array(["2020", "9999", "10000"], dtype="M8[Y]").astype("M8[D]")
    assert encode(years, np.unique(years)).tolist() == [0, 1, 2]


def test_one_odd_label_changes_no_other_code() -> None:
    """One text among booleans: pandas, and a file, make other things of the others."""
    flags = [True, False] * 4
    for classes in ([True, False], ["True", "False"], [0, 1]):
        declared = declared_classes(classes)
        usual = encode(np.array(flags), declared).tolist()
        for odd in ([*flags, "maybe"], [*map(str, flags), "maybe"]):
            found = encode(pd.Series(odd), declared).tolist()
            assert found == [*usual, UNKNOWN], (classes, odd)


@given(st.lists(st.sampled_from([0, 1, 2.5, "a", None, True, "1"]), max_size=9))
def test_a_code_depends_on_its_own_label_alone(labels: list[Any]) -> None:
    classes = declared_classes(["0", "1", "a"])
    together = encode(labels, classes).tolist()
    alone = [encode([label], classes).tolist()[0] for label in labels]
    assert together == alone


def test_a_label_outside_the_classes_is_unknown_or_refused() -> None:
    classes = declared_classes(["no", "yes"])
    assert encode(["yes", "maybe", None], classes).tolist() == [1, UNKNOWN, UNKNOWN]
    for wrong in ([], 2, [[1], [2]], {0, 1}, [None, 1]):
        with pytest.raises(ParameterError, match="every label that may occur"):
            declared_classes(wrong)
    assert declared_classes([1, "a"]).tolist() == ["1", "a"]
    with pytest.raises(ParameterError, match="none may be missing"):
        encode(["yes"], declared_classes([1.0, np.nan]))


def test_predictions_outside_the_labels_are_no_vote() -> None:
    codes = encode_predictions(
        np.array(["b", "?", "a"]), np.array(["a", "b"]), np.array([3, 5])
    )
    assert codes.tolist() == [5, NO_VOTE, 3]


def test_public_features_are_split_with_their_groups() -> None:
    X = np.arange(9)[:, None]
    kept, codes, groups, given_ = split_public_features(
        X, np.arange(9), [f"g{i}" for i in range(9)], seed=0
    )
    assert kept[:, 0].tolist() == codes.tolist()
    assert groups == [f"g{i}" for i in codes]
    assert sorted([*kept[:, 0], *given_[:, 0]]) == list(range(9))
    one = split_public_features(X[:1], np.zeros(1, dtype=np.int64), None, seed=0)
    assert one[0].tolist() == one[3].tolist() == [[0]]


def private(X: Any, codes: Any, **kwargs: Any) -> Any:
    table = canonical_table(X, Schema.of(np.zeros((1, 1))))
    defaults = {"takes_missing": False, "on_invalid": "error"}
    return private_records(table, np.asarray(codes), None, **defaults | kwargs)


def test_labels_are_in_the_digests_where_only_they_are_private() -> None:
    X, codes = np.arange(12.0)[:, None], np.arange(12) % 3
    records = [private(X, c, privacy="labels") for c in (codes, codes[::-1].copy())]
    assert (records[0].keys == records[1].keys).all()
    first, second = (np.sort(one.digests(), axis=0) for one in records)
    assert (first != second).any()
    assert "11." not in repr(records[0])


def test_records_that_do_not_fit_are_refused_or_dropped_in_one_place() -> None:
    X = [[1.0], [None], [3.0], [1.0, 2.0], [5.0]]
    codes = [0, 1, UNKNOWN, 0, 1]
    with pytest.raises(ParameterError, match="not among classes"):
        private(X, codes)
    with pytest.raises(ParameterError, match="another number of cells"):
        private(X, [0, 1, 0, 0, 1])
    with pytest.raises(ParameterError, match="contains NaN or a cell that does not"):
        private(X[:3], [0, 1, 0])
    dropped = private(X, codes, on_invalid="drop")
    assert dropped.usable.tolist() == [True, False, False, False, True]
    kept = private(X, codes, on_invalid="drop", takes_missing=True)
    assert kept.usable.tolist() == [True, True, False, False, True]
    rows = np.concatenate(kept.chunks(3, salt=0))
    assert sorted(rows.tolist()) == [0, 1, 4]


def test_the_assignment_tells_groups_order_and_labels_apart() -> None:
    X, codes = np.arange(40.0)[:, None] % 7, np.arange(40) % 2
    table = canonical_table(X, Schema.of(X))

    def digest(codes: Any, groups: Any, salt: int = 0, **kwargs: Any) -> bytes:
        records = private_records(
            table, codes, groups, takes_missing=False, on_invalid="error", **kwargs
        )
        return bytes(records.assignment(5, salt=salt))

    owners = [f"p{i % 9}" for i in range(40)]
    same = digest(codes, owners)
    assert digest(codes, np.array(owners)) == same
    assert digest(codes, owners[::-1]) != same
    assert digest(codes, owners, salt=1) != same
    assert digest(1 - codes, owners) != same
    labels = digest(codes, None, privacy="labels")
    assert digest(codes[::-1].copy(), None, privacy="labels") != labels
