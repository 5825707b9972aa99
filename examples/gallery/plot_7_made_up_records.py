"""
What is published beside the model
==================================

Without public records, a fit first publishes a noisy sketch of each column. Made-up
records drawn from it show what an outsider sees of the data.
"""

from importlib.resources import files

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from mapl import PrivateClassifier

with (files("mapl") / "data" / "adult.parquet").open("rb") as file:
    adult = pd.read_parquet(file).drop(columns="fnlwgt")
adult = adult.sample(20_000, random_state=0, ignore_index=True)
y = adult.pop("income")
schema = str(files("mapl") / "data" / "adult.schema.json")

fits = {
    epsilon: PrivateClassifier(
        schema=schema, epsilon=epsilon, classes=["<=50K", ">50K"], random_state=0
    ).fit(adult, y)
    for epsilon in (0.1, 1)
}

# %%
# Single columns look alike; how columns go together is not in the sketch.

fig, axes = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
bins = np.arange(15, 95, 5)
for ax, column in zip(axes, ("age", "hours-per-week"), strict=True):
    ax.hist(adult[column], bins, density=True, color="#cbd5e0", label="private records")
    for epsilon, model in fits.items():
        drawn = model.made_up_points_[column].astype(float)
        ax.hist(
            drawn, bins, density=True, histtype="step", lw=2, label=f"epsilon {epsilon}"
        )
    ax.set(xlabel=column, yticks=[])
axes[0].legend()
plt.show()
