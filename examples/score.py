"""Score a group of answers, as a trainer does in a training step.

Run: pip install ./client && python examples/score.py   (ASSAY_URL and ASSAY_TOKEN are the server's URL and token)
"""

from statistics import fmean

from assay import Assay, JobFailed, WaitTimeout

PROMPT = "Natalia sold 48 clips in April, and half as many in May. How many in all?"
ANSWERS = ["48 + 24 = 72. #### 72", "48 + 48 = 96. #### 96", "I do not know.", "72"]


def rewards(client: Assay, step: int) -> list[float]:
    """Return a reward per answer. An answer that could not be scored gets the mean of the valid rewards, not zero."""
    items = [
        {"id": f"{step}-{n}", "group_id": str(step), "prompt": PROMPT, "response": answer, "reference": "72"}
        for n, answer in enumerate(ANSWERS)
    ]
    # With the key, a trainer that is restarted at this step finds its job again, instead of running it twice.
    job = client.score(items, ["numeric_match"], priority="interactive", idempotency_key=f"example-{step}")
    scores = job.wait(timeout_s=60).scores()
    valid = [score for score in scores.values if score is not None]
    return scores.filled(fmean(valid) if valid else 0.0)


def main() -> int:
    with Assay() as client:
        try:
            for answer, reward in zip(ANSWERS, rewards(client, step=1), strict=True):
                print(f"{reward:.2f}  {answer}")
        except (JobFailed, WaitTimeout) as error:  # the messages say how to continue
            print(error)
            return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
