"""Read-only views of jobs: listings, results, summaries, queue depths, the job log."""

from pathlib import Path

SCRIPTS = Path(__file__).with_name("scripts")
