"""The life every job shares: accepted once, run wherever, never lost, never counted twice. See docs/architecture.md."""
