"""
A rare class
============

Three records in a hundred are positive. Probabilities rank them well; which of them are
called positive is a choice that costs nothing.
"""

import matplotlib.pyplot as plt
from sklearn.datasets import make_classification
from sklearn.metrics import PrecisionRecallDisplay, precision_score, recall_score

from mapl import PrivateClassifier

X, y = make_classification(34_000, 8, weights=[0.97], class_sep=0.9, random_state=1)
X_public, X_test, y_test = X[20_000:24_000], X[24_000:], y[24_000:]

fig, ax = plt.subplots(layout="constrained")
for weight, marker in ((None, "o"), ("balanced", "s")):
    model = PrivateClassifier(
        epsilon=2, classes=[0, 1], class_weight=weight, random_state=0
    )
    model.fit(X[:20_000], y[:20_000], X_public=X_public)
    if weight is None:
        PrecisionRecallDisplay.from_estimator(
            model, X_test, y_test, ax=ax, name="ranking"
        )
    found = model.predict(X_test)
    ax.plot(
        recall_score(y_test, found),
        precision_score(y_test, found, zero_division=0),
        marker,
        ms=10,
        label=f"class_weight={weight!r}",
    )
ax.legend()
plt.show()
