"""The plugin of faults, installed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

PLUGIN = Path(__file__).parents[1] / "fixtures" / "acme_faults" / "acme_faults.py"


@pytest.fixture
def faults(tmp_path: Path) -> Path:
    """A folder for PYTHONPATH in which tests/fixtures/acme_faults is installed."""
    folder = tmp_path / "site"
    info = folder / "acme_faults-1.0.dist-info"
    info.mkdir(parents=True)
    shutil.copy(PLUGIN, folder)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-faults\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[rlhf]\nfaults = acme_faults:faults\n")
    return folder
