"""Every YAML file in configs/, but for accelerate's own, is accepted by ``rlhf config validate``."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from scripts.check.files import repository_files


def check(root: Path) -> list[str]:
    """Return what is said of the files if any is refused."""
    folder = root / "configs"
    yaml = [f for f in repository_files(root) if f.suffix in {".yaml", ".yml"} and folder in f.parents]
    files = [str(f) for f in yaml if folder / "accelerate" not in f.parents]
    if not files:
        return []
    command = [str(Path(sys.executable).with_name("rlhf")), "config", "validate", *files]
    out = subprocess.run(command, capture_output=True, text=True, cwd=root, check=False)
    return [f"exit code {out.returncode}: {out.stdout}{out.stderr}".strip()] if out.returncode else []
