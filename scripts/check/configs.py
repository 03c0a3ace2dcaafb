"""Every YAML file in configs/ is accepted by ``rlhf config validate``."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from scripts.check.files import repository_files


def check(root: Path) -> list[str]:
    """Return the message of every file that is refused."""
    problems: list[str] = []
    for file in repository_files(root):
        if file.suffix not in {".yaml", ".yml"} or root / "configs" not in file.parents:
            continue
        command = [str(Path(sys.executable).with_name("rlhf")), "config", "validate", str(file)]
        out = subprocess.run(command, capture_output=True, text=True, cwd=root, check=False)
        if out.returncode:
            said = (out.stderr or out.stdout).strip()
            problems.append(f"{file.relative_to(root)}: exit code {out.returncode}: {said}")
    return problems
