"""The folder that may be published: model, certificate, labels, and a report."""

import tempfile
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from mapl.errors import CertificateError, ParameterError
from mapl.learners import fit_made_up_labels
from mapl.privacy.votes import ABSTAIN
from mapl.publish import certificate as certificates
from mapl.publish.model_checks import check_parts
from mapl.publish.report import render

# Types of fitted models that hold numbers and nothing that runs.
TRUSTED_TYPES = {
    "mapl.learners.LabelDecoder",
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
    out: str | Path,
    model: Any,
    fitted: Any,
    public: Any,
    score: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Write the four files to a folder, and return the certificate.

    ``model`` is what is published: the student, and what prepares its columns.
    ``fitted`` is the `PrivateClassifier`, ``public`` a frame of the public points,
    ``score`` that on a test file which was declared public.
    """
    import skops.io

    out = Path(out)
    out.mkdir(parents=True, exist_ok=True)
    skops.io.dump(model, out / "model.skops")
    signed = certificates.with_model(fitted.certificate_, out / "model.skops")
    certificates.write(signed, out / "certificate.json")
    codes = fitted.public_labels_
    shown = certificates.labels_as_json(fitted.classes_)
    names = np.array([*shown, None], dtype=object)  # None for ABSTAIN
    public.assign(label=names[codes]).to_parquet(out / "labels.parquet", index=False)
    counts = {str(c): int((codes == i).sum()) for i, c in enumerate(fitted.classes_)}
    counts["no answer"] = int((codes == ABSTAIN).sum())
    page = render(signed, counts, spending=fitted.spending_, score=score)
    (out / "report.html").write_text(page, encoding="utf-8")
    return signed


@contextmanager
def new_folder(out: Path) -> Iterator[None]:
    """Make the folder before anything is charged; if all fails, remove it again."""
    fresh = not out.exists()
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=out):
        pass  # it can be written to
    try:
        yield
    except BaseException:
        if fresh:
            with suppress(OSError):  # not empty
                out.rmdir()
        raise


def load_model(path: Path) -> Any:
    """Load a model file; types that are not known to be harmless are refused."""
    import skops.io

    try:
        types = set(skops.io.get_untrusted_types(file=path))
        if types - TRUSTED_TYPES:
            raise CertificateError(
                f"{path} holds types that are not trusted: "
                f"{', '.join(sorted(types - TRUSTED_TYPES))}. Nothing was loaded."
            )
        model = skops.io.load(path, trusted=sorted(types))
        check_parts(model)
    except CertificateError:
        raise
    except Exception as error:  # a file from a stranger may hold anything
        raise CertificateError(
            f"{path} cannot be read as a model ({type(error).__name__}). Nothing was "
            "used."
        ) from None
    return model


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
