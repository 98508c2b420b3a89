"""How work is asked for: HTTP. Imports `tasks` and `config`, never `workers`, never torch."""
