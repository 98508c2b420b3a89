"""The questions that every peer puts to the development API, and how all but Assay put them.

Assay renders its prompts itself; the others are given the same ones, rendered ahead, and are not charged for it.
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
#: Seconds a call may take, for every peer.
CALL_S = 20.0
#: By the development API's rule: the response holds the reference, or not.
RIGHT, WRONG = 10.0, 1.0


@dataclass(frozen=True, slots=True)
class Question:
    item: dict[str, Any]
    """As a job of Assay's has it."""
    messages: Any
    """As a model is given it."""
    expected: float | None = None
    """None: any answer will do."""

    def is_answered(self, answer: Any) -> bool:
        return answer is not None and self.expected in (None, answer)


def make_questions(first: int, number: int, repeated_share: float) -> list[Question]:
    """So many, of which this share repeats others, as equal answers do in the groups of a reward batch; in an order of
    chance that is the same for the same numbers. A third of the responses is wrong."""
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


# --- how they are put -------------------------------------------------------------------------------------------------


def make_client(url: str) -> OpenAI:
    return OpenAI(base_url=url, api_key="none", max_retries=0, timeout=CALL_S)


def make_async_client(url: str) -> AsyncOpenAI:
    """On aiohttp, as Assay does: it takes half the CPU of the SDK's default."""
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
