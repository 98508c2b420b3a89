"""`/v1/rollouts`: rollouts, their samples and weight versions."""
