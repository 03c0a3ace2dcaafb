"""What does one GRPO step run through?

    python -m scripts.check.step_path [--limit-files 50 --limit-functions 350 ...] [--list files|functions|paths]

Trains two steps of the default algorithm on the pocket model and records, in the second, every Python call into a
function of this repository, in every thread. Comprehensions and generator expressions belong to the function that
they stand in. A path is the frames from ``OnlineTrainer.step`` to a component, both the plumbing of the loop and the
component itself counted; frames of libraries are left out.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]
ARGUMENTS = ("train", "--algo", "grpo", "--reward", "ensemble")
SETTINGS = (
    "matmul=onednn",  # what `auto` takes on some processors, and the longer way
    "trainer.steps=2",
    "trainer.eval_samples=0",
    "trainer.gold_samples=0",
    "trainer.rollout_batch_size=16",
    "reward.members=2",
    "reward.max_pairs=32",
    "reward.heldout_pairs=16",
)
TRAINER = "rlhf_core.rl.trainer:OnlineTrainer"
ENDS = {
    "loss": "GrpoClip.__call__",
    "engine": "NativeEngine.generate",
    "reward": "EnsembleReward.score",
    "estimator": "GroupNorm.estimate",
}
"""Component -> function that a path to it ends in."""
LIMITS = {"files": 50, "functions": 350, "loss": 5, "engine": 6, "reward": 5, "estimator": 3}
INNER = ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>")


class Recorded(NamedTuple):
    calls: Counter[CodeType]
    paths: dict[str, list[str]]
    """Component -> functions from the step to it, the step left out, the component's last."""


def main() -> int:
    """Print the tables; exit code 1 beyond a limit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trainer", default=TRAINER, help="module:class")
    parser.add_argument("--list", choices=("files", "functions", "paths"), nargs="*", default=("files", "paths"))
    for name, limit in LIMITS.items():
        parser.add_argument(f"--limit-{name}", type=int, default=limit, metavar="N")
    args = parser.parse_args()
    recorded = record_step(args.trainer)
    if "files" in args.list:
        print_files(recorded.calls)
    if "functions" in args.list:
        print_functions(recorded.calls)
    if "paths" in args.list:
        for component, path in recorded.paths.items():
            print(f"{component}: step > {' > '.join(path)}\n")
    counts = {"files": len({code.co_filename for code in recorded.calls}), "functions": len(recorded.calls)}
    counts |= {component: len(path) for component, path in recorded.paths.items()}
    print(f"{'':12}{'counted':>8}{'limit':>8}")
    for name, count in counts.items():
        print(f"{name:12}{count:8}{getattr(args, f'limit_{name}'):8}")
    print(f"{'calls':12}{sum(recorded.calls.values()):8}")
    missing = [component for component in ENDS if component not in counts]
    if missing:
        print(f"not reached in the step: {', '.join(missing)}")
    return int(bool(missing) or any(count > getattr(args, f"limit_{name}") for name, count in counts.items()))


def print_files(calls: Counter[CodeType]) -> None:
    functions = Counter(code.co_filename for code in calls)
    print(f"{'functions':>9} {'calls':>7}  file")
    for file in sorted(functions):
        count = sum(calls[code] for code in calls if code.co_filename == file)
        print(f"{functions[file]:9} {count:7}  {Path(file).relative_to(ROOT)}")
    print()


def print_functions(calls: Counter[CodeType]) -> None:
    for code in sorted(calls, key=lambda code: (code.co_filename, code.co_firstlineno)):
        print(f"{calls[code]:7}  {Path(code.co_filename).relative_to(ROOT)}:{code.co_qualname}")
    print()


def record_step(trainer: str) -> Recorded:
    """Every call of the second step, and the deepest path to each component."""
    module, _, name = trainer.partition(":")
    cls: Any = getattr(importlib.import_module(module), name)
    step = cls.step
    recorded = Recorded(Counter(), {})
    note = recorder(recorded, step.__code__)

    def recorded_step(self: Any, number: int) -> None:
        if number < 2:
            step(self, number)
            return
        sys.setprofile(note)
        threading.setprofile(note)
        try:
            step(self, number)
        finally:
            sys.setprofile(None)
            threading.setprofile(None)  # pyright: ignore[reportArgumentType]

    cls.step = recorded_step
    run_quietly()
    return recorded


def recorder(recorded: Recorded, step: CodeType) -> Callable[[FrameType, str, Any], None]:
    """A profile function that counts calls, and keeps the deepest path to each component."""
    own: dict[str, bool] = {}

    def is_own(code: CodeType) -> bool:
        file = code.co_filename
        if file not in own:
            path = Path(file)
            own[file] = ROOT in path.parents and not any(part.startswith(".venv") for part in path.parts)
        return own[file]

    def note(frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        if event != "call" or code.co_name in INNER or not is_own(code):
            return
        recorded.calls[code] += 1
        for component, function in ENDS.items():
            if code.co_qualname == function:
                path = path_to(frame)
                if len(path) > len(recorded.paths.get(component, ())):
                    recorded.paths[component] = path

    def path_to(frame: FrameType) -> list[str]:
        path: list[str] = []
        at: FrameType | None = frame
        while at is not None and at.f_code is not step:
            if is_own(at.f_code) and at.f_code.co_name not in INNER:
                path.insert(0, at.f_code.co_qualname)
            at = at.f_back
        return path

    return note


def run_quietly() -> None:
    """Train two steps into a temporary folder."""
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
