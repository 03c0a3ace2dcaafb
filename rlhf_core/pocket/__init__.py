"""The embedded default: a generated small world, its data sets, and a small model that lives in it."""

from __future__ import annotations

from pathlib import Path


def weights_path() -> Path:
    """Folder of the shipped model in Hugging Face form (rebuilt by ``scripts/build_pocket.py``)."""
    return Path(__file__).parent / "weights"
