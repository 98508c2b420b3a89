"""The whole system on one machine: Redis servers and the Procfile's processes, until Ctrl-C or for one command."""
