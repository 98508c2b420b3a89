"""Request and response models of `/v1/jobs/{id}/calibration`."""

from pydantic import Field

from tasks.jobs.states import JobState
from web.http.schemas import StrictModel


class PositionBias(StrictModel):
    first_wins: float | None = Field(
        description="Share of decided verdicts for the response shown first; 0.5 is no bias."
    )
    verdicts: int = Field(description="Number of decided verdicts of pairs.")
    orders_disagree: float | None = Field(description="Share of pairs whose two orders name different winners.")


class LengthBias(StrictModel):
    with_score: float | None = Field(description="Rank correlation of a response's length with its score.")
    with_error: float | None = Field(
        description="Rank correlation of the length with score minus label: the bias of the judge itself."
    )


class CalibrationView(StrictModel):
    """Agreement of a judge's scores with people's labels. Null: not defined, such as the correlation of a constant."""

    job: str
    state: JobState = Field(
        description="State of the job. Before it ends, the figures cover the items with an outcome."
    )
    total: int
    pending: int = Field(description="Items without an outcome, which are omitted.")
    n: int = Field(description="Items with a score and a label, which are compared.")
    without_score: int = Field(description="Items that failed.")
    without_label: int
    off_scale: int = Field(description="Items with a label outside the scale.")
    agreement: float | None = Field(description="Share of scores equal to their label, in the steps of the scale.")
    kappa: float | None = Field(description="Cohen's kappa.")
    weighted_kappa: float | None = Field(description="Cohen's kappa, weighted by the square of the distance.")
    pearson: float | None
    spearman: float | None
    mean_error: float | None = Field(description="Score minus label.")
    position: PositionBias
    length: LengthBias
