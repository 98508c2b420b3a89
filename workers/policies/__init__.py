"""Robot policies behind WebSocket servers of openpi's protocol: connections, the pool, and episodes run with it."""
