"""What the work is. Imports `config` only; `web` and `workers` import it, never each other."""
