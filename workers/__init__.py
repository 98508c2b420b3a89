"""What a process holds: devices, child processes, event loops. Imports `tasks` and `config`, never `web`."""
