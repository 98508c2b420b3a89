"""Job kind `inference`: batch inference over rows on every device; output in input order. See docs/inference.md."""
