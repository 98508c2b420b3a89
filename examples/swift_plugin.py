"""Reward function for ms-swift.

Run ms-swift with --external_plugins examples/swift_plugin.py --reward_funcs assay; ASSAY_URL and ASSAY_TOKEN must be
set on the host of the trainer. The dataset's column `solution` (or `answer`, ...) holds the references for the scorers.
"""

from assay.rewards.swift import register

REWARD = {
    "scorers": [
        {"name": "math_equal", "options": {"within": "answer"}},
        {"name": "format", "weight": 0.2, "options": {"tags": ["think", "answer"]}},
    ],
    "penalties": [{"name": "repetition", "scale": 0.5}],
}

register(REWARD, name="assay")
