"""Moments first; then teachers say where they know better, and labels decide.

The moments' model is the guess of charged dissent, so that teachers pay only where they
disagree with it. A forest learns what they say; one more sum over the records weighs
both against the true labels: teachers who know nothing new change nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from mapl.arrays import Array, Floats, Integers
from mapl.features.contributions import Source
from mapl.methods.moments import MomentsFit, PublicMap, Regression, published_model
from mapl.methods.published import Published
from mapl.methods.votes import Panel
from mapl.planning.choice import CALIBRATION, COUNT, VOTES
from mapl.planning.settings import Setting, dissents_for
from mapl.privacy.charged_dissent import ChargedDissent
from mapl.records.private import PrivateRecords
from mapl.records.table import Table
from mapl.release.account import Account
from mapl.release.labeler import Labeler
from mapl.student.corrections import AskedAgain, Corrections
from mapl.student.stacking import stacked_probabilities


def learn_by_both(
    panel: Panel,
    private: PrivateRecords,
    table: Table,
    public: PublicMap,
    account: Account,
    setting: Setting,
    *,
    classes: Array,
    n_records: int | None,
    class_weight: str | Mapping[Any, float] | None = None,
) -> Published:
    """Publish a model of moments, corrected by teachers where labels bear them out."""
    with account.checkpoints() as kept:
        votes = panel.votes(private, public.table, classes, account.seed, kept)
        fit = MomentsFit(private, public, account, setting, n_classes=len(classes))
        counts = fit.count(n_records, COUNT)
        found = fit.regress(counts, 1 - COUNT - CALIBRATION - VOTES)
        corrections = _ask(votes, fit, found, public, account, len(classes))
        own = corrections.logits(public.dense_cells, found.logits)
        sources = [found.source(), _source(found, corrections)]
        n = float(counts.sum())
        stack = fit.stack(sources, [found.logits, own], n, CALIBRATION)
    return published_model(
        *(public, table, found, stack, classes, class_weight, fit.spending),
        forest=corrections,
    )


def _ask(
    votes: Integers,
    fit: MomentsFit,
    found: Regression,
    public: PublicMap,
    account: Account,
    n_classes: int,
) -> Corrections:
    """Ask the teachers about the public points, and learn what they say."""
    dissents = dissents_for(votes.shape[1])
    mechanism = ChargedDissent(
        sigma=fit.mechanism.sigma(2 * dissents, VOTES),
        dissents=dissents,
        n_teachers=len(votes),
        n_classes=n_classes,
    )
    labeler = Labeler(
        votes, n_classes=n_classes, account=account, steps_before=fit.step
    )
    labeler.open_within(fit.mechanism, mechanism, part=VOTES)
    shares = stacked_probabilities([found.logits], np.ones(1), np.zeros(n_classes))
    asking = AskedAgain(shares, mechanism)
    while not asking.done:
        asking.take(labeler.shares(*asking.next()))
    fit.step = labeler.step
    fit.note(len(asking.spent) * votes.shape[1], VOTES)
    return asking.corrections(public.dense_cells, found.logits)


def _source(found: Regression, corrections: Corrections) -> Source:
    """Return what the forest adds, as a function of each record alone."""
    first = found.source()

    def logits(cells: Floats) -> Floats:
        return np.clip(corrections.exact(cells, first(cells)), -(2**24), 2**24)

    return logits
