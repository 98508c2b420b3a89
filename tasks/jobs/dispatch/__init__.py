"""Dispatch of chunks to queues, and recovery of the chunks of dead workers."""
