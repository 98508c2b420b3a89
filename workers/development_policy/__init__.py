"""A policy server for machines without a GPU: openpi's protocol, a scripted controller behind it, and faults on demand.

`make up` starts two when no other policy is configured; tests and benchmarks use it always. docs/policies.md has its
rule and its knobs.
"""

NOTICE = "Assay's development policy is a script: its success rates mean nothing."
