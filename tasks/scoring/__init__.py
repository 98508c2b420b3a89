"""Job kind `score`: rules that give a response a number. docs/scoring.md lists them."""
