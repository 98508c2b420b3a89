"""The HTTP API and the dashboard. Imports `tasks` and `config`, never `workers`, never torch."""
