"""Tab completion: names of what is installed, without importing it, and runs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

RUN = """
from rlhf_core.cli.main import main
try:
    main()
finally:
    print(sorted({'torch', 'transformers'} & set(sys.modules)))
"""


def completed(words: str, folder: Path) -> list[str]:
    """What the shell offers for the last word, and at the end which heavy modules were imported."""
    env = {
        **os.environ,
        "_RLHF_COMPLETE": "bash_complete",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split(" ")) - 1),
    }
    code = f"import sys; sys.argv[:] = ['rlhf']\n{RUN}"
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, cwd=folder, capture_output=True, text=True, timeout=60, check=False
    )
    return [line.removeprefix("plain,") for line in done.stdout.splitlines()]


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("rlhf train --algo gr", {"grpo", "grpo_paper"}),
        ("rlhf train --reward ens", {"ensemble"}),
        ("rlhf config show --loss grpo_c", {"grpo_clip"}),
        ("rlhf train --dataset pocket/a", {"pocket/assistant", "pocket/arithmetic"}),
        ("rlhf train --model p", {"pocket", "pocket-tools"}),
        ("rlhf train --resume runs/m", {"runs/mine"}),
        ("rlhf runs show m", {"mine"}),
        ("rlhf trace show m", {"mine"}),
        ("rlhf train --env lo", {"lookup"}),
        ("rlhf eval pol", {"policies"}),
    ],
)
def test_names_are_offered_and_nothing_heavy_is_imported(words: str, offered: set[str], tmp_path: Path) -> None:
    (tmp_path / "runs" / "mine").mkdir(parents=True)
    (tmp_path / "runs" / "mine" / "plan.json").write_text("{}")
    *names, heavy = completed(words, tmp_path)
    assert offered <= set(names)
    assert heavy == "[]"
