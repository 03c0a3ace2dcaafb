"""Where what is expensive to make is kept between runs."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """``$RLHF_CACHE``, by default ``~/.cache/rlhf``. Nothing is made."""
    return Path(os.environ.get("RLHF_CACHE") or Path.home() / ".cache" / "rlhf").expanduser()
