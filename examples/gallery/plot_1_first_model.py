"""
A first private model
=====================

Who earns more than 50,000 dollars? We learn it from census records, publish the model,
and compare it with one that protects nobody.
"""

from importlib.resources import files

import matplotlib.pyplot as plt
import pandas as pd
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.metrics import RocCurveDisplay

from mapl import PrivateClassifier

# %%
# The records come with mapl. Those for the test are not sensitive here.

with (files("mapl") / "data" / "adult.parquet").open("rb") as file:
    adult = pd.read_parquet(file).drop(columns="fnlwgt")
adult = adult.sample(frac=1, random_state=0, ignore_index=True)
y = adult.pop("income")
X_private, y_private = adult[:30_000], y[:30_000]
X_test, y_test = adult[30_000:], y[30_000:]

# %%
# Nothing but a description of the columns is public: kinds, ranges, categories.

schema = str(files("mapl") / "data" / "adult.schema.json")
model = PrivateClassifier(
    schema=schema, epsilon=1, classes=["<=50K", ">50K"], random_state=0
)
model.fit(X_private, y_private)
print(f"accuracy {model.score(X_test, y_test):.1%}")
print(model.certificate_["guarantee"])

# %%
# What did privacy cost? Gradient boosting without privacy is a strong opponent.

numbers = X_private.select_dtypes("number").columns
boosting = HistGradientBoostingClassifier(random_state=0).fit(
    X_private[numbers], y_private
)
fig, ax = plt.subplots(layout="constrained")
RocCurveDisplay.from_predictions(
    y_test,
    model.predict_proba(X_test)[:, 1],
    pos_label=">50K",
    name="mapl, epsilon 1",
    ax=ax,
)
RocCurveDisplay.from_predictions(
    y_test,
    boosting.predict_proba(X_test[numbers])[:, 1],
    pos_label=">50K",
    name="no privacy, numeric columns only",
    ax=ax,
    curve_kwargs={"linestyle": "--"},
)
plt.show()

# %%
# The same release can be stated for every delta.

model.plot_privacy_curve()
plt.show()
