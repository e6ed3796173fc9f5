"""The Python environment of comparisons: a virtual environment outside the repository, created on first use."""
import functools
import os
import pathlib
import subprocess
import sys


@functools.cache
def environment(*packages):
    """The interpreter of GALLEY_PEERS (default ~/.cache/galley/peers), with these packages installed."""
    folder = pathlib.Path(os.environ.get("GALLEY_PEERS", pathlib.Path.home() / ".cache/galley/peers"))
    python = folder / "bin/python"
    if python.exists() and subprocess.run([python, "-c", f"import {', '.join(packages)}"], capture_output=True).returncode == 0:
        return python
    print(f"installing {', '.join(packages)} into {folder}", file=sys.stderr)
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    subprocess.run([python, "-m", "pip", "install", "--quiet", *packages], check=True)
    return python
