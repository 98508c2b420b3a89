"""A policy server for machines without a GPU: openpi's protocol, a scripted controller behind it, and faults on demand.

`make up` starts two of them if no other policy is configured; tests and benchmarks always use it.
docs/policies.md describes its rule and its knobs.
"""

NOTICE = "Assay's development policy is a script: its success rates mean nothing."
