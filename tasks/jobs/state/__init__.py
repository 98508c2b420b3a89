"""State of jobs: the ledger with its scripts, payloads, outcomes, the result cache, and the storage of large jobs."""
