"""The samples in an answer of `/metrics`, by name and labels."""

from collections.abc import Iterator

from prometheus_client.parser import text_string_to_metric_families


class Told:
    def __init__(self, text: str) -> None:
        self._samples: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
        self.types: dict[str, str] = {}
        for family in text_string_to_metric_families(text):
            self.types[family.name] = family.type
            for sample in family.samples:
                key = (sample.name, frozenset(sample.labels.items()))
                assert key not in self._samples, f"{key} is told twice"
                self._samples[key] = sample.value

    def get(self, name: str, **labels: str) -> float | None:
        return self._samples.get((name, frozenset(labels.items())))

    def labels(self, family: str) -> Iterator[set[str]]:
        """Yield the label names of each sample of a family, without `le`."""
        for name, labels in self._samples:
            if (
                name.removesuffix("_total").removesuffix("_bucket").removesuffix("_sum").removesuffix("_count")
                == family
            ):
                yield {label for label, _ in labels} - {"le"}
