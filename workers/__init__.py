"""Worker processes and their resources: devices, child processes, event loops. Imports `tasks` and `config` only."""
