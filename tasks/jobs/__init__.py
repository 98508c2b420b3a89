"""Job core: the lifecycle that every job kind shares. A job is accepted once, may run on any worker, is never lost, and
no item is counted twice. See docs/architecture.md."""
