"""Robot policies behind WebSocket servers of openpi's protocol: connections, the pool, and the episodes that use it."""
