"""Rollouts for asynchronous trainers: the server generates samples continuously, and swaps weights while it generates.

`FullyAsyncRollouter` creates a rollout, `MessageQueueClient` takes its samples (or creates a queue without generation),
`ParameterSynchronizer` sends new weights to its devices.
"""

from assay.rollouts.message_queue import MessageQueueClient
from assay.rollouts.rollouter import FullyAsyncRollouter
from assay.rollouts.synchronizer import ParameterSynchronizer

__all__ = ["FullyAsyncRollouter", "MessageQueueClient", "ParameterSynchronizer"]
