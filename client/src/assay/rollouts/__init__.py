"""Rollouts for asynchronous trainers: samples that are always flowing, and weights swapped underneath.

`FullyAsyncRollouter` makes one, `MessageQueueClient` takes its samples (or is a queue alone), `ParameterSynchronizer`
brings new weights to its devices.
"""

from assay.rollouts.message_queue import MessageQueueClient
from assay.rollouts.rollouter import FullyAsyncRollouter
from assay.rollouts.synchronizer import ParameterSynchronizer

__all__ = ["FullyAsyncRollouter", "MessageQueueClient", "ParameterSynchronizer"]
