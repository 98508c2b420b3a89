"""Size of a chunk: limits of its duration and of its number of items. `fill_queues.lua` chooses the size of each chunk
within them, by the measured cost of the job's items."""

#: Target duration of a chunk, in seconds of work.
CHUNK_S = 1.5
#: Minimum duration of a chunk, in seconds of work: shorter chunks are not worth a message.
LEAST_CHUNK_S = 0.1
#: Maximum number of items of a chunk: keeps every script below a few milliseconds.
MOST_ITEMS = 500
