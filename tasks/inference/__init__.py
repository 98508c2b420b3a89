"""Job kind `inference`: a row in, an answer out, in order, on all devices. docs/inference.md shows it in use."""
