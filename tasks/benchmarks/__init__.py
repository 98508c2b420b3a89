"""Job kind `benchmark`: the system measures itself, on a schedule or when asked, and remembers what it found."""
