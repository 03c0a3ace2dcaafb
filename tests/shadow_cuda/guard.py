"""Compiles and loads ``guard.cpp``, before torch is imported: torch asks once, at its import, what cards there are."""

from __future__ import annotations

import ctypes
import importlib
import importlib.metadata
import importlib.util
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from types import ModuleType


def load() -> None:
    """Takes about a second where it was not compiled for this torch before; needs g++."""
    assert "torch" not in sys.modules, "the shadow card must be there before torch is imported"
    source, spec = Path(__file__).with_name("guard.cpp"), importlib.util.find_spec("torch")
    assert spec is not None
    assert spec.origin is not None
    home = Path(spec.origin).parent
    version = importlib.metadata.version("torch")
    library = Path(tempfile.gettempdir()) / f"shadow-cuda-{os.getuid()}-{version}-{source.stat().st_mtime_ns}.so"
    if not library.is_file():
        aside = library.with_suffix(f".{os.getpid()}")
        words = ["g++", "-std=c++20", "-shared", "-fPIC", "-I", home / "include", source, "-L", home / "lib"]
        words += ["-lc10", "-ltorch_cpu", f"-Wl,-rpath,{home / 'lib'}"]
        subprocess.run([*words, "-o", aside], check=True, timeout=120)
        aside.replace(library)
    ctypes.CDLL(str(library))


def device() -> ModuleType:
    """The module of the card, whose import imports torch."""
    return importlib.import_module("tests.shadow_cuda.device")
