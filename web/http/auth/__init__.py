"""Authentication: bearer tokens, and the checks that every request passes."""
