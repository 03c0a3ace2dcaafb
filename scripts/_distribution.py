"""Throw-away distributions: components of a measurement or a fault, found by their entry points like any plugin."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path


def install(folder: Path, module: str, code: str, entry_points: str) -> None:
    """Write a distribution of one module into a folder, and make it importable here; children need ``PYTHONPATH``."""
    info = folder / f"{module}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module.replace('_', '-')}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(entry_points)
    (folder / f"{module}.py").write_text(code)
    sys.path.insert(0, str(folder))


@contextmanager
def installed(module: str, code: str, entry_points: str) -> Generator[Path, None, None]:
    """A temporary folder with such a distribution, which is gone in the end."""
    with tempfile.TemporaryDirectory() as folder:
        install(Path(folder), module, code, entry_points)
        try:
            yield Path(folder)
        finally:
            sys.path.remove(folder)
            sys.modules.pop(module, None)
