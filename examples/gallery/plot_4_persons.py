"""
Whole persons
=============

If a person may have several records, protect the person: ``groups`` says whose record
each one is. What does that cost?
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import make_classification

from mapl import PrivateClassifier

X, y = make_classification(24_000, 10, n_informative=5, random_state=0)
X_public, X_test, y_test = X[18_000:20_000], X[20_000:], y[20_000:]
X, y = X[:18_000], y[:18_000]

records_each = [1, 3, 10, 30]
scores = []
for each in records_each:
    person = np.arange(len(X)) // each
    model = PrivateClassifier(epsilon=0.5, classes=[0, 1], random_state=0)
    model.fit(X, y, X_public=X_public, groups=person)
    scores.append(100 * model.score(X_test, y_test))
print(model.certificate_["unit"])

# %%
# The number of records is the same for each bar; only the number of persons falls.
# What one person adds to a sum is bounded as a whole.

fig, ax = plt.subplots(layout="constrained")
ax.bar([f"{each}" for each in records_each], scores, color="#2b6cb0")
ax.set(xlabel="records a person", ylabel="accuracy, % (epsilon 0.5 a person)")
ax.set_ylim(min(scores) - 5, max(scores) + 2)
plt.show()
