"""What do the tests find? Changes one line of the core or an algorithm at a time and runs the tests that should fail.

    python -m scripts.check.mutants [--only TEXT] [--jobs 2] [--least 0.9]

Every mutation is a row of ``mutants.toml``. Each runs in a child process in which the changed text is imported in
place of the file, which itself stays as it is. The tests are run once without a mutation first: they must pass.
Exit code 1 if fewer than ``--least`` of the mutations are found, or a row no longer fits the code.
"""

from __future__ import annotations

import argparse
import os
import sys
import tomllib
from collections.abc import Iterator, Sequence
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType
from typing import NamedTuple

ROOT = Path(__file__).parents[2]


class Mutant(NamedTuple):
    """One change and the tests that should find it."""

    file: str
    old: str
    new: str
    tests: str
    """Arguments of pytest; what follows ``-k`` is one expression."""


MUTANTS = [Mutant(**row) for row in tomllib.loads(Path(__file__).with_suffix(".toml").read_text())["mutants"]]


def main() -> int:
    """Print what was found of every mutation; exit code 1 if it is too little."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="mutations whose file or tests hold this text")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--least", type=float, default=0.9, help="share that has to be found")
    args = parser.parse_args()
    mutants = [mutant for mutant in MUTANTS if args.only in f"{mutant.file} {mutant.tests}"]
    if stale := [mutant for mutant in mutants if (ROOT / mutant.file).read_text().count(mutant.old) != 1]:
        print("not exactly once in the file:", *(f"{m.file}: {m.old}" for m in stale), sep="\n  ")
        return 1
    load_libraries()
    plain = [Mutant("", "", "", tests) for tests in dict.fromkeys(mutant.tests for mutant in mutants)]
    if broken := [mutant.tests for mutant, code in run(plain, args.jobs) if code]:
        print("fail without a mutation:", *broken, sep="\n  ")
        return 1
    killed = 0
    for mutant, code in run(mutants, args.jobs):
        killed += code == 1
        word = {0: "NOT FOUND", 1: "found"}.get(code, f"pytest ended with {code}")
        print(f"{word}: {mutant.file}: {mutant.old.strip()} -> {mutant.new.strip()}", flush=True)
    print(f"{killed} of {len(mutants)} mutations found ({killed / len(mutants):.0%})")
    return int(killed < args.least * len(mutants))


def load_libraries() -> None:
    """Import once, for all children, what takes longest."""
    os.environ.update(HF_HUB_OFFLINE="1", OMP_NUM_THREADS="1", RLHF_FORK_SERVER="0")
    import hypothesis  # noqa: F401
    import pytest  # noqa: F401
    import torch  # noqa: F401
    import transformers.modeling_utils  # noqa: F401


def run(mutants: Sequence[Mutant], jobs: int) -> Iterator[tuple[Mutant, int]]:
    """Each mutation in its own child process; the exit codes of pytest."""
    waiting, running = list(mutants), dict[int, Mutant]()
    while waiting or running:
        while waiting and len(running) < jobs:
            mutant = waiting.pop(0)
            pid = os.fork()
            if not pid:
                test(mutant)
            running[pid] = mutant
        pid, status = os.wait()
        yield running.pop(pid), os.waitstatus_to_exitcode(status)


def test(mutant: Mutant) -> None:
    """Run the tests of a mutation in this process, and leave it."""
    import pytest

    os.chdir(ROOT)
    log = os.open(os.devnull, os.O_WRONLY)
    os.dup2(log, 1)
    os.dup2(log, 2)
    if mutant.file:
        import_changed(ROOT / mutant.file, mutant)
    files, _, expression = mutant.tests.partition(" -k ")
    chosen = ["-k", expression] if expression else []
    options = ["-x", "-m", "not slow and not long", "-p", "no:cacheprovider", "-o", "timeout=120"]
    os._exit(pytest.main([*files.split(), *chosen, *options]))


def import_changed(file: Path, mutant: Mutant) -> None:
    """Import the changed text in place of the file."""
    text, get_code = file.read_text().replace(mutant.old, mutant.new), SourceFileLoader.get_code

    def changed(self: SourceFileLoader, fullname: str) -> CodeType | None:
        if Path(self.path) == file:
            return compile(text, self.path, "exec", dont_inherit=True)
        return get_code(self, fullname)

    SourceFileLoader.get_code = changed


if __name__ == "__main__":
    sys.exit(main())
