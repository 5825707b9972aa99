"""
How accuracy depends on epsilon
===============================

Noise has a fixed size, so more records and a larger epsilon help in the same way. This
is a benchmark: on private records, choose epsilon before you see any score.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import make_classification
from sklearn.linear_model import LogisticRegression

from mapl import PrivateClassifier

X, y = make_classification(26_000, 12, n_informative=6, class_sep=0.7, random_state=0)
X_test, y_test = X[20_000:], y[20_000:]
columns = {f"x{i}": {"kind": "number", "range": [-20, 20]} for i in range(12)}
epsilons = [0.1, 0.3, 1, 3, 10]

fig, ax = plt.subplots(layout="constrained")
for n in (2000, 20_000):
    scores = []
    for epsilon in epsilons:
        model = PrivateClassifier(
            schema={"columns": columns}, epsilon=epsilon, classes=[0, 1], random_state=0
        )
        scores.append(100 * model.fit(X[:n], y[:n]).score(X_test, y_test))
    ax.plot(epsilons, scores, marker="o", label=f"{n:,} records")
linear = LogisticRegression().fit(X[:20_000], y[:20_000]).score(X_test, y_test)
ax.axhline(100 * linear, ls=":", color="grey", label="logistic regression, no privacy")
ax.axhline(
    100 * np.mean(y_test), ls="--", color="grey", label="always the larger class"
)
ax.set(xscale="log", xlabel="epsilon", ylabel="accuracy, %")
ax.set_xticks(epsilons, [f"{epsilon:g}" for epsilon in epsilons])
ax.legend()
plt.show()
