"""
Try to refute the claim
=======================

An audit adds a canary to the records, draws the noise of a fit many times with it and
without it, and asks how well the two can be distinguished. The claim allows what lies
below its curve.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import make_classification

from mapl import PrivateClassifier
from mapl.audit.run import audit_fit

X, y = make_classification(900, 4, random_state=0)
model = PrivateClassifier(epsilon=4, classes=[0, 1], random_state=0)

fig, axes = plt.subplots(1, 2, figsize=(9, 4.2), layout="constrained", sharey=True)
rates = np.linspace(0, 1, 201)
for ax, canary in zip(axes, ("mislabelled", "duplicate"), strict=True):
    claim, verdict = audit_fit(
        model, X[:500], y[:500], X_public=X[500:], canary=canary, draws=1000
    )
    print(f"{canary}: {verdict.sentence()}")
    allowed = claim.most_power(rates)
    ax.fill_between(rates, allowed, 1, color="#fde2dd", label="would refute the claim")
    ax.plot(rates, allowed, color="#c0392b", label="claimed")
    ax.plot(rates, rates, ls="--", color="grey", label="guessing")
    ax.plot(
        *zip(*(p.rates for p in verdict.points), strict=True), "o", label="measured"
    )
    ax.set(title=f"a {canary} record", xlabel="false positive rate", aspect="equal")
axes[0].set_ylabel("true positive rate")
axes[0].legend(loc="lower right", fontsize=8)
plt.show()
