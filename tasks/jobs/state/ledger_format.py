"""Numbers and names in the ledger's records, for Python and for the Lua scripts (`tasks/script_constants.py`)."""

#: Distance between the scores of two priorities among the chunks of a queue; chunks of one priority are in between, by
#: their sequence number.
PRIORITY_SPAN = 1e12
#: Items of one page of bitmaps and groups.
PAGE_ITEMS = 8192
#: Decimal digits of a group.
GROUP_DIGITS = 10
#: Name of the stage that moves outcomes of a stored job out of Redis; its items are parts.
PARTS = "~parts"
#: In place of an item in the set `parked`: the whole stage rests, and may go on when the time is over.
RESTED = "~"
#: Events that a job's stream keeps, and events that wait for the log, at most.
EVENTS_KEPT = 1000
#: Seconds between two progress events of a job, at least.
PROGRESS_EVERY_S = 0.25
#: Seconds after which claims, waiters and batches expire, in case that nothing releases them.
CLAIM_S = 86400
#: How a stub begins, which stands for a value that is in a file.
STUB_PREFIX = '{"~stored":'
