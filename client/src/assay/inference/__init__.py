"""Files of inference jobs on the client's side: contexts, outputs, and resuming a run after an interruption."""
