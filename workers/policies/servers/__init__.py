"""Policy servers: given by settings, or started, watched and restarted here, one per device slot."""
