"""The models a device worker holds, and how they are run. Implements `tasks.inference.engine.Engine`.

The modules here import torch: nothing that runs in a parent process or a launcher imports them.
"""
