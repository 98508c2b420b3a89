"""Example requests of the submit page: for each kind of job a request that runs on the stack of `make up` in
seconds."""

import json
from typing import Any

_QUESTIONS = (("2 + 3", "5"), ("7 * 6", "42"), ("9 - 4", "5"), ("12 / 4", "3"))


def examples(profile: str) -> list[dict[str, str]]:
    """Return name, title, description, path and body text of each example. `profile` is the API profile that judges."""
    reward = {"scorers": [{"name": "numeric_match"}]}
    found: list[tuple[str, str, str, str, dict[str, Any]]] = [
        (
            "score",
            "Score",
            "Compute rewards by rule: whether each response has the correct number. The third response is wrong.",
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
            "judge",
            "Judge",
            "A language model grades responses against a reference; labels show its agreement with people.",
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
            "inference",
            "Inference",
            "A model on the devices answers each row.",
            "/v1/jobs",
            {
                "kind": "inference",
                "spec": {"sampling": {"max_new_tokens": 24}},
                "items": [
                    {"id": "france", "query": "Which city is the capital of France?"},
                    {"id": "water", "query": "Which elements does water consist of?"},
                    {"id": "days", "query": "How many days has a week?"},
                ],
            },
        ),
        (
            "policy",
            "Policy scoring",
            "Each response is an instruction for a robot policy; the score is the share of "
            "episodes that succeed. Videos of the episodes are recorded.",
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
            "simulated",
            "Simulated",
            "Sleep instead of computing, and fail sometimes: to see progress, failures, cancel and retry.",
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
            "rollout",
            "Rollout",
            "Samples for a trainer, generated while it trains: prompts are generated, rewarded and "
            "queued. Without a trainer it stops after its prompts are done.",
            "/v1/rollouts",
            {
                "prompts": [{"prompt": f"Compute {asked}.", "reference": right} for asked, right in _QUESTIONS],
                "simulated": {"generate_s": 0.5, "at_once": 2},
                "sampling": {"n": 2, "temperature": 1.0},
                "train_batch_size": 8,
                "max_queue_size": 32,
                "total_rollout_steps": 12,
            },
        ),
    ]
    return [
        {"name": name, "title": title, "about": about, "path": path, "body": _text(body)}
        for name, title, about, path, body in found
    ]


def _text(body: dict[str, Any]) -> str:
    """Format JSON as people write it: a line for each field, and a line for each item."""
    fields = []
    for name, value in body.items():
        if isinstance(value, list):
            rows = ",\n".join(f"    {json.dumps(row)}" for row in value)
            fields.append(f'  "{name}": [\n{rows}\n  ]')
        else:
            fields.append(f'  "{name}": {json.dumps(value)}')
    return "{\n" + ",\n".join(fields) + "\n}"
