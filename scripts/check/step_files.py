"""Which files of the loop does one GRPO step run through?

    python -m scripts.check.step_files [--limit-files 31 --limit-lines 4600]

Trains two steps of the default algorithm on the pocket model and notes, in the second, every file of ``rlhf_core/rl``
and ``rlhf_core/training`` in which a function runs: what a reader opens to follow a step. Files beyond the loop's seams
(engine, kernels, data, run directory, plugins) are counted by folder, and not against the limits.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import tempfile
import threading
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).parents[2]
LOOPS = (ROOT / "rlhf_core" / "rl", ROOT / "rlhf_core" / "training")
ARGUMENTS = ("train", "--algo", "grpo", "--reward", "verifier", "--dataset", "pocket/arithmetic")
SETTINGS = ("trainer.steps=2", "trainer.rollout_batch_size=16", "trainer.eval_samples=0", "trainer.gold_samples=0")


def main() -> int:
    """Print the files and their lines; exit code 1 beyond the limits."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trainer", default="rlhf_core.rl.trainer:OnlineTrainer", help="module:class")
    parser.add_argument("--limit-files", type=int, default=31)
    parser.add_argument("--limit-lines", type=int, default=4600)
    args = parser.parse_args()
    files = files_of_a_step(args.trainer)
    loop = sorted(file for file in files if any(loop in file.parents for loop in LOOPS))
    lines = {file: len(file.read_text().splitlines()) for file in loop}
    for file in loop:
        print(f"{lines[file]:5}  {file.relative_to(ROOT)}")
    print(f"{sum(lines.values()):5}  lines in {len(loop)} files of the loop")
    beyond = Counter(str(file.relative_to(ROOT).parent) for file in files - set(loop))
    print("beyond its seams:", ", ".join(f"{folder} {count}" for folder, count in sorted(beyond.items())))
    return int(len(loop) > args.limit_files or sum(lines.values()) > args.limit_lines)


def files_of_a_step(trainer: str) -> set[Path]:
    """Files of the repository in which a function runs during the second step."""
    module, _, name = trainer.partition(":")
    cls: Any = getattr(importlib.import_module(module), name)
    step, seen = cls.step, set[str]()

    def note(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call":
            seen.add(frame.f_code.co_filename)

    def watched(self: Any, number: int) -> None:
        if number < 2:
            step(self, number)
            return
        sys.setprofile(note)
        threading.setprofile(note)
        try:
            step(self, number)
        finally:
            sys.setprofile(None)
            threading.setprofile(None)

    cls.step = watched
    run_quietly()
    return {path for path in map(Path, seen) if ROOT in path.parents and ".venv" not in path.parts}


def run_quietly() -> None:
    """Train two steps into a temporary folder.

    Raises:
        SystemExit: the run failed.
    """
    from rlhf_core.cli.main import main as rlhf

    with tempfile.TemporaryDirectory() as folder:
        settings = [word for setting in SETTINGS for word in ("--set", setting)]
        try:
            rlhf([*ARGUMENTS, *settings, "--run-dir", f"{folder}/run", "--json"])
        except SystemExit as ended:
            if ended.code:
                raise


if __name__ == "__main__":
    sys.exit(main())
