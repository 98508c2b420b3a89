"""Policy servers of a host: named by settings, or started, supervised and restarted here, one per device slot."""
