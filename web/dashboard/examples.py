"""A request for each kind of job that runs on the stack of `make up` in seconds: what the submit page begins with."""

import json
from typing import Any

_QUESTIONS = (("2 + 3", "5"), ("7 * 6", "42"), ("9 - 4", "5"), ("12 / 4", "3"))


def examples(profile: str) -> list[dict[str, str]]:
    """Name, title, what it does, where it is sent, and its body as text. `profile` is what judges."""
    reward = {"scorers": [{"name": "numeric_match"}]}
    found: list[tuple[str, str, str, str, dict[str, Any]]] = [
        (
            "score", "Score", "Rewards by rule: is the number in each response the right one? One of them is not.",
            "/v1/jobs",
            {
                "kind": "score",
                "spec": reward,
                "items": [
                    {"id": f"q{number}", "group_id": "g1", "response": f"It is {said}.", "reference": right}
                    for number, (said, right) in enumerate((("5", "5"), ("42", "42"), ("6", "5"), ("3", "3")), 1)
                ],
            },
        ),
        (
            "judge", "Judge", "A language model grades responses beside a reference; labels show how far it agrees "
            "with people.",
            "/v1/jobs",
            {
                "kind": "judge",
                "spec": {"profile": profile, "mode": "pass_fail"},
                "items": [
                    {"id": "right", "prompt": "2 + 3?", "response": "It is 5.", "reference": "5", "label": "pass"},
                    {"id": "wrong", "prompt": "7 * 6?", "response": "It is 48.", "reference": "42", "label": "fail"},
                    {"id": "brief", "prompt": "9 - 4?", "response": "5", "reference": "5", "label": "pass"},
                ],
            },
        ),
        (
            "inference", "Inference", "A model on the devices answers each row.",
            "/v1/jobs",
            {
                "kind": "inference",
                "spec": {"sampling": {"max_new_tokens": 24}},
                "items": [
                    {"id": "france", "query": "What is the capital of France?"},
                    {"id": "water", "query": "What is water made of?"},
                    {"id": "days", "query": "How many days has a week?"},
                ],
            },
        ),
        (
            "policy", "Policy scoring", "Each response is an instruction for a robot policy; the score is the share of "
            "its episodes that succeed. Episodes are filmed.",
            "/v1/jobs",
            {
                "kind": "score",
                "spec": {"scorers": [{"name": "policy", "options": {"trials": 2, "video": True}}]},
                "items": [
                    {"id": "red", "response": "reach the red target"},
                    {"id": "blue", "response": "reach the blue target", "task": {"task_id": 2}},
                    {"id": "odd", "response": "reach the blue target"},
                ],
            },
        ),
        (
            "simulated", "Simulated", "Sleeps instead of computing, and fails now and then: to see progress, failures, "
            "cancel and retry.",
            "/v1/jobs",
            {
                "kind": "simulated",
                "spec": {"cost_s": 0.4, "batch_items": 1},
                "items": [
                    {"id": f"item-{number}", "x": number} | ({"fail": True} if number % 8 == 5 else {})
                    for number in range(1, 25)
                ],
            },
        ),
        (
            "rollout", "Rollout", "Samples for a trainer, made while it trains: prompts are generated, rewarded and "
            "queued. Nobody takes these, so it stops when its prompts are done.",
            "/v1/rollouts",
            {
                "prompts": [{"prompt": f"What is {asked}?", "reference": right} for asked, right in _QUESTIONS],
                "simulated": {"generate_s": 0.5, "at_once": 2},
                "sampling": {"n": 2, "temperature": 1.0},
                "train_batch_size": 8,
                "max_queue_size": 32,
                "total_rollout_steps": 12,
            },
        ),
    ]  # fmt: skip
    return [
        {"name": name, "title": title, "about": about, "path": path, "body": _text(body)}
        for name, title, about, path, body in found
    ]


def _text(body: dict[str, Any]) -> str:
    """JSON as people would write it: a line for each field, and one for each item."""
    fields = []
    for name, value in body.items():
        if isinstance(value, list):
            rows = ",\n".join(f"    {json.dumps(row)}" for row in value)
            fields.append(f'  "{name}": [\n{rows}\n  ]')
        else:
            fields.append(f'  "{name}": {json.dumps(value)}')
    return "{\n" + ",\n".join(fields) + "\n}"
