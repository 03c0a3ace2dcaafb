"""The embedded environment `lookup` (facts behind a search and a calculator) and the small model that plays it."""

from __future__ import annotations

from pathlib import Path


def weights_path() -> Path:
    return Path(__file__).parent / "weights"
