"""The Pi0 reward-server protocol: `/score` and `/pool_status`."""
