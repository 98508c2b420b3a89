"""State of jobs: the ledger and its scripts, payloads, outcomes, the result cache, storage of large jobs."""
