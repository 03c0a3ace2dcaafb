"""Runs the checks named on the command line, or all of them; exit code 1 if any found a problem."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from scripts.check import configs, cycles, imports, paths, sizes

CHECKS: Mapping[str, Callable[[Path], list[str]]] = {
    "imports": imports.check,
    "cycles": cycles.check,
    "sizes": sizes.check,
    "paths": paths.check,
    "configs": configs.check,
}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m scripts.check", description=__doc__)
    parser.add_argument("names", nargs="*", help=f"from: {', '.join(CHECKS)}; default all")
    parser.add_argument("--root", type=Path, default=Path(__file__).parents[2])
    args = parser.parse_args(argv)
    unknown = [n for n in args.names if n not in CHECKS]
    if unknown:
        parser.error(f"unknown check {', '.join(unknown)}; there are: {', '.join(CHECKS)}")
    total = 0
    for name in args.names or CHECKS:
        problems = CHECKS[name](args.root.resolve())
        total += len(problems)
        print(f"{name}: {len(problems) or 'no'} problem{'s' * (len(problems) != 1)}", *problems, sep="\n  ")
    return 1 if total else 0


sys.exit(main())
