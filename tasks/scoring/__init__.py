"""Job kind `score`: scorers that assign a number to a response. docs/scoring.md lists them."""
