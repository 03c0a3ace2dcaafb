"""Runs the benchmarks named on the command line, or all, and records what came out."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import pkgutil
import platform
import time
from pathlib import Path
from typing import Any

from rlhf_core.plan import library_versions

ROOT = Path(__file__).parents[2]


def names() -> list[str]:
    """Every benchmark module of this folder."""
    return sorted(m.name for m in pkgutil.iter_modules([str(Path(__file__).parent)]) if not m.name.startswith("_"))


def machine() -> dict[str, Any]:
    """What the numbers depend on besides the code."""
    system = f"{platform.system()} {platform.machine()}"
    return {"system": system, "cores": os.cpu_count(), "versions": library_versions()}


def main() -> None:
    """Run and write ``docs/bench/NAME.json`` for each."""
    parser = argparse.ArgumentParser(prog="python -m scripts.bench", description=__doc__)
    parser.add_argument("names", nargs="*", help=f"from: {', '.join(names())}; default all")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "bench")
    args = parser.parse_args()
    unknown = set(args.names) - set(names())
    if unknown:
        parser.error(f"unknown benchmark {', '.join(sorted(unknown))}; there are: {', '.join(names())}")
    args.out.mkdir(parents=True, exist_ok=True)
    for name in args.names or names():
        start = time.perf_counter()
        results = importlib.import_module(f"scripts.bench.{name}").run()
        seconds = time.perf_counter() - start
        print(f"{name} ({seconds:.0f} s)", *(f"  {key}: {value}" for key, value in results.items()), sep="\n")
        record = {"command": f"python -m scripts.bench {name}", "results": results, "machine": machine()}
        (args.out / f"{name}.json").write_text(json.dumps(record, indent=2) + "\n")


main()
