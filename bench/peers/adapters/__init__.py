"""Adapters: one module for each compared task queue or program, all behind the interface in `peer.py`."""
