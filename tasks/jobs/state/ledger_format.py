"""Numbers and names in the ledger's records, for Python and for the Lua scripts (`tasks/script_constants.py`)."""

#: Distance between the scores of two priorities in the sorted set of a queue's chunks. Chunks of the same priority are
#: ordered by their sequence number.
PRIORITY_SPAN = 1e12
#: Number of items per page of bitmaps and groups.
PAGE_ITEMS = 8192
#: Number of decimal digits of a group.
GROUP_DIGITS = 10
#: Name of the stage that moves outcomes of a stored job out of Redis; its items are parts.
PARTS = "~parts"
#: Stands for an item in the set `parked`: the whole stage is suspended, and resumes at the member's time.
RESTED = "~"
#: Maximum number of events in a job's stream, and of events that wait for the log.
EVENTS_KEPT = 1000
#: TTL in seconds of the events of an ended job.
EVENTS_TTL_S = 60
#: Minimum number of seconds between two progress events of a job.
PROGRESS_EVERY_S = 0.25
#: Seconds after which a failure of the storage that did not happen again is forgotten.
FAULT_S = 30
#: TTL of claims, waiters and batches in seconds: a safety net in case that no process releases them.
CLAIM_S = 86400
#: Separates the stage from the data in an entry of `job_carry`. JSON on one line has no line break.
CARRY_SEPARATOR = "\n"
#: Prefix of a stub, which refers to a value that is in a file.
STUB_PREFIX = '{"~stored":'
