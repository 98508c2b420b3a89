"""Rewards for a group of answers, as a trainer asks for them.

Run: pip install ./client && python examples/score.py   (ASSAY_URL and ASSAY_TOKEN say where the server is)
"""

from statistics import fmean

from assay import Assay, JobFailed, WaitTimeout

PROMPT = "Natalia sold 48 clips in April, and half as many in May. How many in all?"
ANSWERS = ["48 + 24 = 72. #### 72", "48 + 48 = 96. #### 96", "I do not know.", "72"]


def rewards(client: Assay, step: int) -> list[float]:
    """One reward per answer. An answer that could not be scored gets the mean of the others, not a zero."""
    items = [
        {"id": f"{step}-{n}", "group_id": str(step), "prompt": PROMPT, "response": answer, "reference": "72"}
        for n, answer in enumerate(ANSWERS)
    ]
    # The key makes a trainer that was restarted at this step find its job again instead of paying twice.
    job = client.score(items, ["numeric_match"], priority="interactive", idempotency_key=f"example-{step}")
    scores = job.wait(timeout_s=60).scores()
    valid = [score for score in scores.values if score is not None]
    return scores.filled(fmean(valid) if valid else 0.0)


def main() -> int:
    with Assay() as client:
        try:
            for answer, reward in zip(ANSWERS, rewards(client, step=1), strict=True):
                print(f"{reward:.2f}  {answer}")
        except (JobFailed, WaitTimeout) as error:  # both say what to do
            print(error)
            return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
