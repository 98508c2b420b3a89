"""A judge for machines without a key: an OpenAI-compatible API that grades by a stated rule and misbehaves on demand.

`make up` uses it when no API is configured, tests and benchmarks use it always. What it says means nothing, and every
reply says so. docs/development_api.md has the rule, the knobs and the counts.
"""

#: In every rationale and every reply's headers.
NOTICE = "Assay's development API wrote this by a fixed rule: it means nothing."
FINGERPRINT = "assay-development"
