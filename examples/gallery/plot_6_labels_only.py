"""
Only the labels are private
===========================

Sometimes everybody knows the features, and the answer is the secret: who clicked, who
defaulted, who tested positive. Then far more can be learned for the same epsilon.
"""

import matplotlib.pyplot as plt
from sklearn.datasets import make_classification

from mapl import PrivateClassifier

X, y = make_classification(12_000, 12, n_informative=6, random_state=0)
X_test, y_test = X[8000:], y[8000:]
columns = {f"x{i}": {"kind": "number", "range": [-20, 20]} for i in range(12)}
epsilons = [0.05, 0.1, 0.3, 1]

scores: dict[str, list[float]] = {"records are private": [], "labels are private": []}
for epsilon in epsilons:
    own = {"epsilon": epsilon, "classes": [0, 1], "random_state": 0}
    records = PrivateClassifier(schema={"columns": columns}, **own)
    labels = PrivateClassifier(privacy="labels", **own)
    for model, found in zip((records, labels), scores.values(), strict=True):
        found.append(100 * model.fit(X[:8000], y[:8000]).score(X_test, y_test))

fig, ax = plt.subplots(layout="constrained")
for name, found in scores.items():
    ax.plot(epsilons, found, marker="o", label=name)
ax.set(xscale="log", xlabel="epsilon", ylabel="accuracy, %")
ax.set_xticks(epsilons, [f"{epsilon:g}" for epsilon in epsilons])
ax.minorticks_off()
ax.legend()
plt.show()
