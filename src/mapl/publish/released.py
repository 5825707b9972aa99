"""What a fitted classifier can do with what it released: save it, show its price."""

from __future__ import annotations

import sys
import warnings
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from mapl.arrays import Array
from mapl.errors import CertificateError, ParameterError
from mapl.privacy import accounting
from mapl.privacy.rounding import decimals_up
from mapl.publish.bundle import load_model, new_folder, write_bundle
from mapl.publish.report import budget_in_words
from mapl.publish.signing import read_key
from mapl.records.containers import unwrapped
from mapl.records.overlap import naming_columns

_spent: list[float] = []  # by fits of this process
_DELTAS = 10.0 ** np.arange(-12, -1.9, 0.5)


class Released:
    """A mixin for an estimator with ``student_``, ``events_`` and ``certificate_``."""

    student_: Any
    events_: list[Any]
    certificate_: dict[str, Any]
    spending_: list[tuple[int, float]]
    public_labels_: Array
    made_up_points_: Any
    paid_before_: bool
    delta: float
    verbose: int

    def save(
        self,
        folder: str | Path,
        *,
        X_public: Any = None,
        overwrite: bool = False,
        sign: str | Path | None = None,
    ) -> dict[str, Any]:
        """Write what `mapl learn` writes: model, certificate, labels and report.

        Parameters
        ----------
        folder : path
            A new folder; `mapl.load` reads it.
        X_public : like that of fit, or None
            The public points, to stand beside their labels in labels.parquet. Made-up
            points are known.
        overwrite : bool
            Whether the files of an earlier run may be replaced.
        sign : path or None
            An Ed25519 key in PEM that signs the certificate.

        Returns
        -------
        dict
            The certificate, with the digests of the files.
        """
        check_is_fitted(self, "student_")
        _check_storable(self.student_)
        key = None if sign is None else read_key(Path(sign))
        points = self._points_to_show(X_public)
        with new_folder(Path(folder), overwrite=overwrite) as made:
            return write_bundle(made, self.student_, self, points, key=key)

    def _points_to_show(self, X_public: Any) -> Any:
        """Return the public points as a frame; without them, one of no columns."""
        import pandas as pd

        made_up = hasattr(self, "made_up_points_")
        points = self.made_up_points_ if made_up else unwrapped(X_public)
        n = len(self.public_labels_)
        if points is None:
            return pd.DataFrame(index=range(n))
        if hasattr(points, "toarray"):
            points = points.toarray()
        frame = pd.DataFrame(points).reset_index(drop=True)
        frame.columns = [f"x{c}" if isinstance(c, int) else str(c) for c in frame]
        if len(frame) != n or "label" in frame:
            raise ParameterError(
                f"X_public must have the {n} points of the fit, and no column 'label'."
            )
        return frame if made_up else without_names(frame)

    def _say_cost(self) -> None:
        """With ``verbose``, say what the fit cost, and all fits of this process."""
        own = self.certificate_["epsilon"] or 0.0
        _spent.append(0.0 if self.paid_before_ else own)
        if self.verbose:
            free = "already charged, this run was free; " if self.paid_before_ else ""
            sys.stderr.write(
                f"mapl: {free}epsilon {own} at delta {float(self.delta):g}; all fits "
                f"of this process together: {decimals_up(sum(_spent), 3)} at most.\n"
            )

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, str]:
        """Show the guarantee above the diagram."""
        bundle: dict[str, str] = super()._repr_mimebundle_(**kwargs)  # type: ignore[misc]
        if hasattr(self, "certificate_") and "text/html" in bundle:
            said = escape(self.certificate_["guarantee"])
            budget = escape(budget_in_words(self.certificate_["ledger"]))
            note = f"<p><b>{said}</b><br>Budget: {budget}</p>"
            bundle["text/html"] = note + bundle["text/html"]
        return bundle

    def epsilon_spent(self, delta: float | None = None) -> float:
        """Return what the fit cost, at a delta; that of the fit if None."""
        check_is_fitted(self, "events_")
        return accounting.epsilon(self.events_, delta=delta or float(self.delta))

    def plot_privacy_curve(self, ax: Any = None) -> Any:
        """Draw epsilon against delta: the same release, stated in every way."""
        check_is_fitted(self, "events_")
        ax = _axes(ax)
        ax.plot(_DELTAS, [self.epsilon_spent(delta) for delta in _DELTAS])
        ax.axvline(float(self.delta), color="grey", linestyle=":")
        ax.set(xscale="log", xlabel="delta", ylabel="epsilon")
        return ax

    def plot_spending(self, ax: Any = None) -> Any:
        """Draw what part of the price was used by each step."""
        check_is_fitted(self, "spending_")
        ax = _axes(ax)
        parts = [100 * min(1.0, part) for _, part in self.spending_]
        ax.step(range(len(parts) + 1), [0, *parts], where="post")
        ax.set(xlabel="step", ylabel="% of the price, used", ylim=(0, 105))
        return ax


def without_names(points: Any) -> Any:
    """Return public points without columns that say who somebody is."""
    named = naming_columns(points)
    if named:
        warnings.warn(
            f"Not in labels.parquet, since nearly every value differs: "
            f"{', '.join(map(str, named))}.",
            stacklevel=4,
        )
    return points.drop(columns=named)


def _axes(ax: Any) -> Any:
    if ax is not None:
        return ax
    try:
        import matplotlib.pyplot as plt
    except ImportError:
        raise ParameterError(
            "Plots need matplotlib: pip install 'mapl[plot]'."
        ) from None
    return plt.subplots(layout="constrained")[1]


def _check_storable(student: Any) -> None:
    """Refuse a model that could not be loaded again without trusting its file."""
    import skops.io

    try:
        load_model(Path("It"), skops.io.dumps(student))
    except CertificateError as error:
        reason = str(error)
    except Exception as error:  # a model of any library
        reason = f"It cannot be written ({type(error).__name__})."
    else:
        return
    raise ParameterError(
        f"This model cannot be stored so that strangers may load it safely. {reason} "
        "Learn without an estimator (moments), or use mapl learn, which encodes "
        "columns in a way that can be stored; or store student_ in your own way."
    )
