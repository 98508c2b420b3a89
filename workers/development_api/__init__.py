"""Development API: an OpenAI-compatible judge for machines without an API key, with a fixed rule and faults on demand.

`make up` uses it when no API is configured; tests and benchmarks always use it. Its verdicts mean nothing, and every
reply says this. docs/development_api.md describes the rule, the knobs and the counts.
"""

#: Text of every rationale and of a header of every reply.
NOTICE = "Assay's development API wrote this by a fixed rule: it means nothing."
FINGERPRINT = "assay-development"
