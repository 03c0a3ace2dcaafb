"""Runs the benchmarks named on the command line, or all, and records what came out.

    python -m scripts.bench step_time rollout        # these two
    python -m scripts.bench --record                 # what the documents quote

Each case is written as soon as it is measured. A case that was recorded at the same commit is not measured again, so an
interrupted record goes on where it stopped; ``--again`` measures everything anew, ``--missing`` what no commit has,
``--only TEXT`` cases with this text in their name.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import pkgutil
import platform
import subprocess
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from rlhf_core.config.plan import library_versions
from scripts.bench._processor import cards, processor, product_gflops

ROOT = Path(__file__).parents[2]
RECORD = ("step_time", "pocket_step", "rollout", "cost_curves")


def names() -> list[str]:
    """Every benchmark module of this folder."""
    return sorted(m.name for m in pkgutil.iter_modules([str(Path(__file__).parent)]) if not m.name.startswith("_"))


@cache
def machine() -> dict[str, Any]:
    """What the numbers depend on besides the code; the speed of a matrix product is measured, once."""
    return {
        "system": f"{platform.system()} {platform.machine()}",
        "cores": os.cpu_count(),
        "processor": processor(),
        **({"cards": cards()} if cards() else {}),
        "product_gflops_of_one_core": product_gflops(),
        "versions": library_versions(),
    }


def commit() -> str:
    """The commit, with a mark when files differ from it."""
    try:
        return subprocess.run(
            ["git", "describe", "--always", "--dirty", "--exclude=*"],
            cwd=ROOT,
            check=True,
            capture_output=True,
            text=True,
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def cases_of(module: ModuleType) -> dict[str, Callable[[], Any]]:
    """A benchmark has either ``cases()`` or one ``run()``."""
    return module.cases() if hasattr(module, "cases") else {"run": module.run}


def measure(name: str, folder: Path, at: str, again: bool, missing: bool = False, only: str = "") -> None:
    """Measure what is not recorded at commit ``at`` (``missing``: at any) and has ``only`` in its name; the file is
    complete after every case."""
    module, path = importlib.import_module(f"scripts.bench.{name}"), folder / f"{name}.json"
    wanted, record = cases_of(module), json.loads(path.read_text()) if path.is_file() else {}
    by_default = {"machine": record["machine"]} if "machine" in record else {}  # of all cases, in older records
    cases = {case: {**by_default, **row} for case, row in record.get("cases", {}).items() if case in wanted}
    for case, work in wanted.items():
        if only not in case:
            continue
        if case in cases and not again and (missing or cases[case]["commit"] == at != "unknown"):
            print(f"{name} {case}: recorded already at {cases[case]['commit']}")
            continue
        start = time.perf_counter()
        results = work()
        seconds = round(time.perf_counter() - start)
        print(f"{name} {case} ({seconds} s)", *(f"  {k}: {v}" for k, v in results.items()), sep="\n", flush=True)
        cases[case] = {"commit": at, "machine": machine(), "measured_in_seconds": seconds, "results": results}
        aside = path.with_suffix(".part")
        aside.write_text(json.dumps({"command": f"python -m scripts.bench {name}", "cases": cases}, indent=2) + "\n")
        aside.replace(path)
    if hasattr(module, "finish"):
        module.finish({case: row["results"] for case, row in cases.items()}, folder)


def main() -> None:
    """Measure and write ``docs/bench/NAME.json`` for each."""
    parser = argparse.ArgumentParser(
        prog="python -m scripts.bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", help=f"from: {', '.join(names())}; default all")
    parser.add_argument("--record", action="store_true", help=f"the same as: {' '.join(RECORD)}")
    parser.add_argument("--again", action="store_true", help="measure recorded cases anew")
    parser.add_argument("--missing", action="store_true", help="measure only cases without any record")
    parser.add_argument("--only", default="", metavar="TEXT", help="measure only cases with this text in their name")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "bench")
    args = parser.parse_args()
    unknown = set(args.names) - set(names())
    if unknown:
        parser.error(f"unknown benchmark {', '.join(sorted(unknown))}; there are: {', '.join(names())}")
    args.out.mkdir(parents=True, exist_ok=True)
    at = commit()
    for name in args.names or (RECORD if args.record else names()):
        again = args.again or (at.endswith("-dirty") and not args.missing)
        measure(name, args.out, at, again, args.missing, args.only)


if __name__ == "__main__":
    main()
