"""Plot of a scenario: the key figure of each case, with the spread of its repetitions and the band of earlier runs."""

from collections.abc import Sequence
from io import BytesIO
from typing import Any

from tasks.deployment_benchmarks.summary import CaseOfRun

_INK, _ACCENT, _BAND = "#333333", "#3366aa", "#dddddd"


def plot(scenario: str, cases: Sequence[CaseOfRun]) -> bytes | None:
    """Return the plot as PNG, or None if no case was measured."""
    shown = [case for case in cases if case.figures]
    if not shown:
        return None
    from matplotlib.figure import Figure  # the import takes half a second, which only reports need

    figure: Any = Figure(figsize=(7, 0.9 + 0.45 * len(shown)), dpi=120, layout="constrained")
    axes = figure.add_subplot()
    for place, case in enumerate(shown):
        key = case.figures[0]
        if key.low is not None and key.high is not None:
            axes.barh(place, key.high - key.low, left=key.low, height=0.9, color=_BAND)
        axes.barh(place, key.value, height=0.5, color=_ACCENT)
        axes.plot([key.least, key.most], [place, place], color=_INK, marker="|")
    axes.set_yticks(range(len(shown)), [case.case for case in shown])
    axes.invert_yaxis()
    key = shown[0].figures[0]
    axes.set_xlabel(
        f"{key.figure.rpartition('/')[2]} ({key.unit}): median, minimum and maximum; grey: band of earlier runs"
    )
    axes.set_title(scenario)
    axes.set_xlim(left=0)
    axes.spines[["top", "right"]].set_visible(False)
    image = BytesIO()
    figure.savefig(image, format="png")
    return image.getvalue()
