"""Reads all sources when Prometheus asks. Without Redis it says so, quickly, and nothing else of what is in there."""

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


class Samples:
    """What one scrape tells. Names and labels are those of the catalogue, or it fails."""

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

    def merge(self, other: "Samples") -> None:
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


#: Adds what it knows. One that raises RedisError has nothing to say now.
Source = Callable[[Samples], None]


class Collector:
    def __init__(self, sources: Sequence[Source], roles: Mapping[str, Sequence[Source]]) -> None:
        """`sources` need no Redis; those of a role read that Redis."""
        self._sources = sources
        self._roles = roles

    def collect(self) -> Iterable[Metric]:
        samples = Samples()
        for source in self._sources:
            source(samples)
        for role, read in self._roles.items():
            samples.add("assay_redis_up", _is_read(role, read, samples), role)
        return samples.families()


def _is_read(role: str, sources: Sequence[Source], samples: Samples) -> bool:
    """All of its figures, or none."""
    read = Samples()
    try:
        for source in sources:
            source(read)
    except RedisError as error:
        log.debug("the %s Redis tells no metrics: %s", role, error)
        return False
    samples.merge(read)
    return True


def exposition(collector: Collector) -> bytes:
    """All of it as Prometheus reads it."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(collector)
    return generate_latest(registry)
