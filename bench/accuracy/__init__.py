"""Accuracy of the scorers and of the default reward model, measured on labelled answers."""
