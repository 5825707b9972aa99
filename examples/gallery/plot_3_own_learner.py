"""
Your own learner
================

Any scikit-learn classifier can teach. Each clone sees one chunk of the records, so what
happens inside costs no privacy, not even a grid search.
"""

import matplotlib.pyplot as plt
from sklearn.datasets import make_moons
from sklearn.inspection import DecisionBoundaryDisplay
from sklearn.model_selection import GridSearchCV
from sklearn.tree import DecisionTreeClassifier

from mapl import PrivateClassifier

X, y = make_moons(12_000, noise=0.25, random_state=0)
X_public, X_test, y_test = X[9000:10_000], X[10_000:], y[10_000:]

# %%
# The teachers search for their own depth, and vote on public points. A student learns
# from the noisy votes.

search = GridSearchCV(DecisionTreeClassifier(), {"max_depth": [2, 4, 6]}, cv=3)
votes = PrivateClassifier(
    search,
    method="votes",
    student=DecisionTreeClassifier(max_depth=6, min_samples_leaf=20),
    n_teachers=60,
    epsilon=2,
    classes=[0, 1],
    random_state=0,
).fit(X[:9000], y[:9000], X_public=X_public)

# %%
# Without an estimator, every record speaks for itself.

sums = PrivateClassifier(epsilon=2, classes=[0, 1], random_state=0)
sums.fit(X[:9000], y[:9000], X_public=X_public)

fig, axes = plt.subplots(1, 2, figsize=(9, 4), layout="constrained", sharey=True)
for ax, model, title in zip(
    axes, (votes, sums), ("votes of trees", "sums"), strict=True
):
    DecisionBoundaryDisplay.from_estimator(
        model, X_test, response_method="predict_proba", cmap="RdBu_r", alpha=0.7, ax=ax
    )
    ax.scatter(
        *X_test[:300].T, c=y_test[:300], cmap="RdBu_r", s=8, edgecolor="k", lw=0.3
    )
    ax.set_title(f"{title}: {model.score(X_test, y_test):.1%} at epsilon 2")
plt.show()
