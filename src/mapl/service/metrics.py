"""Figures for Prometheus: public ones, of this process and of the ledgers."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client import generate_latest as as_text
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from mapl.ledger.ledger import Balance

TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)


class Metrics:
    """Counts requests and queries; each worker counts its own."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        worker = str(os.getpid())
        self._requests = Counter(
            "mapl_requests",
            "Requests by what they asked for and how they ended.",
            ["worker", "route", "code"],
            registry=self._registry,
        )
        self._queries = Counter(
            "mapl_queries",
            "Records that were given an answer, for the first time or again.",
            ["worker", "model"],
            registry=self._registry,
        )
        self._abstained = Counter(
            "mapl_abstentions",
            "Those of them that a panel gave no label.",
            ["worker", "model"],
            registry=self._registry,
        )
        self._seconds = Histogram(
            "mapl_request_seconds",
            "How long requests took.",
            ["worker", "route"],
            buckets=_SECONDS,
            registry=self._registry,
        )
        self._budget = Gauge(
            "mapl_epsilon",
            "Epsilon of a data set: its limit, and what is spent.",
            ["dataset", "what"],
            registry=self._registry,
        )
        self._worker = worker

    def request(self, route: str, code: int, seconds: float) -> None:
        """Count a request."""
        self._requests.labels(self._worker, route, str(code)).inc()
        self._seconds.labels(self._worker, route).observe(seconds)

    def count_labels(self, model: str, queries: int, abstained: int) -> None:
        """Count what a request was answered."""
        self._queries.labels(self._worker, model).inc(queries)
        if abstained:
            self._abstained.labels(self._worker, model).inc(abstained)

    def show(self, balances: Iterable[Balance], *, models: Collection[str]) -> bytes:
        """Return the figures as text; of models, only those of some."""
        self._budget.clear()
        for one in balances:
            self._budget.labels(one.name, "limit").set(one.epsilon_limit)
            self._budget.labels(one.name, "spent").set(one.epsilon_spent)
        chosen = CollectorRegistry()
        chosen.register(_Chosen(self._registry, models))
        return as_text(chosen)


class _Chosen(Collector):
    """The figures of a registry, without those of other models."""

    def __init__(self, registry: CollectorRegistry, models: Collection[str]) -> None:
        self._registry, self._models = registry, models

    def collect(self) -> Iterable[Metric]:
        """Return the figures."""
        for metric in self._registry.collect():
            metric.samples = [
                one
                for one in metric.samples
                if "model" not in one.labels or one.labels["model"] in self._models
            ]
            yield metric
