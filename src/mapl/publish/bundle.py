"""The folder that may be published: model, certificate, labels, and a report."""

import os
import shutil
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from mapl.errors import CertificateError, ParameterError
from mapl.features.model import PublicFeatures
from mapl.learners import fit_made_up_labels
from mapl.privacy.votes import ABSTAIN
from mapl.publish import certificate as certificates
from mapl.publish.model_checks import (
    check_parts,
    checked_classifier,
    checked_moments,
    rebuilt_encoder,
)
from mapl.publish.report import FILES as REPORTS
from mapl.publish.report import Report
from mapl.records.schema import Schema

MODEL = "model.skops"
_OLD = "mapl.features.cell_model.CellFeatures"
# Types of fitted models that hold numbers and nothing that runs.
TRUSTED_TYPES = {
    "mapl.features.model.PublicFeatures",
    "mapl.learners.LabelDecoder",
    "mapl.student.corrections.Corrections",
    "mapl.student.linear.LinearModel",
    "numpy.dtype",
    "sklearn._loss.link.Interval",
    "sklearn._loss.link.LogitLink",
    "sklearn._loss.link.MultinomialLogit",
    "sklearn._loss.loss.HalfBinomialLoss",
    "sklearn._loss.loss.HalfMultinomialLoss",
    "sklearn.compose._column_transformer._RemainderColsList",  # up to 1.7
    "sklearn.ensemble._hist_gradient_boosting.binning._BinMapper",
    "sklearn.ensemble._hist_gradient_boosting.predictor.TreePredictor",
    "sklearn.tree._tree.Tree",
}


def write_bundle(
    out: Path,
    model: Any,
    fitted: Any,
    public: Any,
    *,
    score: Mapping[str, Any] | None = None,
    key: bytes | None = None,
) -> dict[str, Any]:
    """Write the files to a folder, and return the certificate, which covers them.

    ``model`` is what is published: the student, and what prepares its columns.
    ``fitted`` is the `PrivateClassifier`, ``public`` a frame of the public points.
    ``score`` is that on a test file which was declared public, ``key`` signs.
    """
    import skops.io

    skops.io.dump(model, out / MODEL)
    codes = fitted.public_labels_
    shown = certificates.labels_as_json(fitted.classes_)
    names = np.array([*shown, None], dtype=object)  # None for ABSTAIN
    public.assign(label=names[codes]).to_parquet(out / "labels.parquet", index=False)
    counts = {str(c): int((codes == i).sum()) for i, c in enumerate(fitted.classes_)}
    counts["no answer"] = int((codes == ABSTAIN).sum())
    report = Report.of(
        fitted.certificate_,
        counts,
        learner=fitted.estimator,
        columns=public.columns,
        spending=fitted.spending_,
        score=score,
    )
    report.write(out)
    others = [out / name for name in FILES if name != "certificate.json"]
    made = certificates.with_files(fitted.certificate_, others, key)
    certificates.write(made, out / "certificate.json")
    return made


FILES = (MODEL, "certificate.json", "labels.parquet", *REPORTS)


@contextmanager
def new_folder(
    out: Path, names: tuple[str, ...] = FILES, *, overwrite: bool = False
) -> Iterator[Path]:
    """Yield an empty folder that takes the place of ``out`` when all is written.

    It is made before anything is charged. A folder that holds something is refused;
    with ``overwrite``, one that holds anything but these files.
    """
    _check_free(out, names, overwrite=overwrite)
    out.parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
    try:
        yield made
        made.chmod(0o777 & ~_umask())
        _check_free(out, names, overwrite=overwrite)
        for name in names if out.exists() else ():
            (out / name).unlink(missing_ok=True)
        if out.exists():
            out.rmdir()
        made.rename(out)
    except BaseException:
        shutil.rmtree(made, ignore_errors=True)
        raise


def _umask() -> int:
    """Return what new folders may not permit."""
    found = os.umask(0o077)
    os.umask(found)
    return found


def _check_free(out: Path, names: tuple[str, ...], *, overwrite: bool) -> None:
    """Refuse a folder that holds what must not be replaced."""
    if not out.exists():
        return
    if not out.is_dir():
        raise ParameterError(f"{out} is a file. Take another folder.")
    held = sorted(path.name for path in out.iterdir())
    foreign = [name for name in held if name not in names or (out / name).is_dir()]
    if foreign:
        raise ParameterError(
            f"{out} holds {foreign[0]!r}, which is not of an earlier run. Take another "
            "folder."
        )
    if held and not overwrite:
        raise ParameterError(
            f"{out} holds the files of an earlier run. Take another folder, or replace "
            "them: overwrite=True."
        )


def load_model(path: Path, data: bytes | None = None) -> Any:
    """Load a model file that `write_bundle` wrote, or a stranger.

    ``data`` is what the file held when it was verified; it is read if that is None.
    Types that are not known to be harmless are refused; the encoder of the columns is
    made again from its numbers and texts, and the classifier is checked part by part.
    """
    import skops.io
    from sklearn.pipeline import make_pipeline

    try:
        data = path.read_bytes() if data is None else data
        types = set(skops.io.get_untrusted_types(data=data))
        if _OLD in types:
            raise CertificateError(
                f"{path} is of a version earlier than mapl 0.2, which had other "
                "features. Learn the model again. Nothing was loaded."
            )
        if types - TRUSTED_TYPES:
            raise CertificateError(
                f"{path} holds types that are not trusted: "
                f"{', '.join(sorted(types - TRUSTED_TYPES))}. Nothing was loaded."
            )
        first, classifier = skops.io.loads(data, trusted=sorted(types))
        if isinstance(first, PublicFeatures):
            model = checked_moments(first, classifier)
        else:
            encoder = rebuilt_encoder(first)
            width = len(encoder.get_feature_names_out())
            model = make_pipeline(encoder, checked_classifier(classifier, width=width))
    except CertificateError:
        raise
    except Exception as error:  # a file from a stranger may hold anything
        raise CertificateError(
            f"{path} cannot be read as a model ({type(error).__name__}). Nothing was "
            "used."
        ) from None
    return model


def column_names_of(model: Any) -> list[str]:
    """Return the names of the columns that a model needs."""
    first = model[0]
    if isinstance(first, PublicFeatures):
        return first.column_names
    return [str(name) for name in first.feature_names_in_]


def schema_of(model: Any) -> Schema:
    """Return the types of the columns that a model reads."""
    first = model[0]
    if isinstance(first, PublicFeatures):
        return first.schema
    return Schema.of_encoder(first)


def as_read(model: Any, table: Any) -> Any:
    """Return records in the types that the first step of a model reads."""
    first = model[0]
    if isinstance(first, PublicFeatures):  # it reads records
        return table
    return schema_of(model).cast(table)


def check_writable(estimator: Any, points: Any) -> None:
    """Refuse a learner whose models could not be loaded again, before the charge.

    Tried on public points with made-up labels.
    """
    import skops.io

    try:
        fitted = fit_made_up_labels(estimator, points[:200], np.arange(2))
    except Exception:  # `fit` will say what fails, and why
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            types = set(skops.io.get_untrusted_types(data=skops.io.dumps(fitted)))
            check_parts(fitted)
        except CertificateError as error:
            raise ParameterError(
                f"Models of this estimator cannot be published as a file: {error} Use "
                "another estimator, or learn in Python. Nothing was released."
            ) from None
        except Exception as error:  # nothing here is private
            types = {type(error).__name__}
    if types - TRUSTED_TYPES:
        raise ParameterError(
            f"Models of this estimator hold types that are not trusted in a file: "
            f"{', '.join(sorted(types - TRUSTED_TYPES))}. Use another estimator, or "
            "learn in Python. Nothing was released."
        )
