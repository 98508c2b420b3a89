"""Job kinds and the job core. Imports `config` only; `web` and `workers` import this package, but not each other."""
