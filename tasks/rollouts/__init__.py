"""Job kind `rollout`: samples for a trainer, generated while it trains."""
