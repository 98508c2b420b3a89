"""Reward manager for verl that combines base scores, a judge's scores and a length penalty."""
