"""The engine of a device worker: loads models, generates and scores. Implements `tasks.inference.engine.Engine`.

The modules of this package import torch, so launchers and the parent processes of workers must not import them.
"""
