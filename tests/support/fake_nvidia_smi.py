"""A stand-in for `nvidia-smi` that lists GPUs which this machine does not have."""

from pathlib import Path


def install(folder: Path, gpus: int, exit_code: int = 0) -> str:
    """Write the command and return the folder to put on PATH."""
    folder.mkdir(exist_ok=True)
    command = folder / "nvidia-smi"
    command.write_text(f"#!/bin/sh\nseq 0 {gpus - 1}\nexit {exit_code}\n")
    command.chmod(0o755)
    return str(folder)
