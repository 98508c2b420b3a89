"""Job kind `judge`: a language model judges responses. docs/judging.md shows it in use."""
