"""Collector for Prometheus: reads every source on each scrape.

While a Redis is unreachable, the scrape stays fast: `assay_redis_up` is 0, and metrics of that Redis are omitted.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from redis.exceptions import RedisError

from web.metrics.catalogue import BY_NAME

log = logging.getLogger(__name__)

Family = GaugeMetricFamily | CounterMetricFamily | HistogramMetricFamily
_FAMILIES: dict[str, type[Family]] = {
    "gauge": GaugeMetricFamily,
    "counter": CounterMetricFamily,
    "histogram": HistogramMetricFamily,
}


class Scrape:
    """Metrics of a scrape. Raises an error for a name or label that is not in the catalogue."""

    def __init__(self) -> None:
        self._families: dict[str, Family] = {}

    def add(self, name: str, value: float, *labels: str) -> None:
        family = self._family(name, labels)
        assert not isinstance(family, HistogramMetricFamily), name
        family.add_metric(labels, value)

    def add_histogram(self, name: str, buckets: Sequence[tuple[str, float]], total: float, *labels: str) -> None:
        family = self._family(name, labels)
        assert isinstance(family, HistogramMetricFamily), name
        family.add_metric(labels, buckets, total)

    def merge(self, other: "Scrape") -> None:
        for name, family in other._families.items():
            if name in self._families:
                self._families[name].samples.extend(family.samples)
            else:
                self._families[name] = family

    def families(self) -> Iterable[Metric]:
        return self._families.values()

    def _family(self, name: str, labels: Sequence[str]) -> Family:
        metric = BY_NAME[name]
        assert len(labels) == len(metric.labels), f"{name} has the labels {metric.labels}"
        if name not in self._families:
            self._families[name] = _FAMILIES[metric.type](name, metric.meaning, labels=metric.labels)
        return self._families[name]


#: Function that adds its metrics to a scrape. If it raises RedisError, its metrics are omitted.
Source = Callable[[Scrape], None]


class Collector:
    def __init__(self, sources: Sequence[Source], roles: Mapping[str, Sequence[Source]]) -> None:
        """`sources` need no Redis; `roles` maps each Redis to the sources that read it."""
        self._sources = sources
        self._roles = roles

    def collect(self) -> Iterable[Metric]:
        samples = Scrape()
        for source in self._sources:
            source(samples)
        for role, read in self._roles.items():
            samples.add("assay_redis_up", _is_read(role, read, samples), role)
        return samples.families()


def _is_read(role: str, sources: Sequence[Source], samples: Scrape) -> bool:
    """Add either every metric of this Redis or, when a source fails, no metric. Return whether it was read."""
    read = Scrape()
    try:
        for source in sources:
            source(read)
    except RedisError as error:
        log.debug("metrics of the %s Redis cannot be read: %s", role, error)
        return False
    samples.merge(read)
    return True


def exposition(collector: Collector) -> bytes:
    """Return the scrape in the text format of Prometheus."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(collector)
    return generate_latest(registry)
