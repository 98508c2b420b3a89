"""Judge workload: questions that every peer sends to the development API, and the client of all peers except Assay.

Assay renders its prompts itself. The other peers get the same prompts, rendered beforehand, and are not charged for it.
"""

import json
import random
from dataclasses import dataclass
from typing import Any

from openai import AsyncOpenAI, DefaultAioHttpClient, OpenAI

from tasks.judging.model import JudgeItem, JudgeSpec
from tasks.judging.prompts import prompts
from tasks.judging.rubrics import Rubrics

SPEC = {"profile": "main", "mode": "reference", "use_schema": "never", "timeout_s": 20}
MODEL = "development"
#: Timeout of a call in seconds, for every peer.
CALL_S = 20.0
#: Scores by the rule of the development API: whether the response contains the reference.
RIGHT, WRONG = 10.0, 1.0


@dataclass(frozen=True, slots=True)
class Question:
    """A question with its expected verdict."""

    item: dict[str, Any]
    """Item of an Assay job."""
    messages: Any
    """Messages for the model."""
    expected: float | None = None
    """Expected answer; None: any answer is accepted."""

    def is_answered(self, answer: Any) -> bool:
        return answer is not None and self.expected in (None, answer)


def make_questions(first: int, number: int, repeated_share: float) -> list[Question]:
    """Return `number` questions, of which a share repeats others, as in the groups of a reward batch.

    Their order is random, but the same for equal arguments. A third of the responses is wrong."""
    spec = JudgeSpec.model_validate(SPEC)
    rubric = Rubrics(None).find_for(spec.rubric, spec.mode)
    chance = random.Random(first)

    def make(n: int) -> Question:
        item = {"prompt": "How many are there?", "response": f"There are {n}.", "reference": str(n if n % 3 else -n)}
        (prompt, *_) = prompts(spec, rubric, JudgeItem.model_validate(item))
        return Question(item, [dict(message) for message in prompt.messages], RIGHT if n % 3 else WRONG)

    distinct = [make(n) for n in range(first, first + number - int(number * repeated_share))]
    questions = distinct + [chance.choice(distinct) for _ in range(number - len(distinct))]
    chance.shuffle(questions)
    return questions


# --- client
# ------------------------------------------------------------------------------------------------------------


def make_client(url: str) -> OpenAI:
    return OpenAI(base_url=url, api_key="none", max_retries=0, timeout=CALL_S)


def make_async_client(url: str) -> AsyncOpenAI:
    """Return a client on aiohttp, as Assay uses it: it needs half the CPU of the SDK's default."""
    return AsyncOpenAI(
        base_url=url, api_key="none", max_retries=0, timeout=CALL_S, http_client=DefaultAioHttpClient(timeout=CALL_S)
    )


def ask(client: OpenAI, messages: Any) -> float:
    reply = client.chat.completions.create(model=MODEL, messages=messages, temperature=0, max_tokens=1024)
    return read_verdict(reply.choices[0].message.content)


async def ask_async(client: AsyncOpenAI, messages: Any) -> float:
    reply = await client.chat.completions.create(model=MODEL, messages=messages, temperature=0, max_tokens=1024)
    return read_verdict(reply.choices[0].message.content)


def read_verdict(content: str | None) -> float:
    return float(json.loads(content or "")["score"])
