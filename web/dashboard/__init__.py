"""HTML pages of the dashboard. Their data comes from the HTTP API."""
