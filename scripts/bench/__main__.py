"""Runs the measurements named on the command line, or those that the documents quote, and records what came out.

    python -m scripts.bench                                  # what RECORD names
    python -m scripts.bench step_time rollout                # these two
    python -m scripts.bench speech_training folder=runs/s    # with a setting: a keyword of its run() or cases()

Each case is written as soon as it is measured. A case that was recorded at the same commit with the same settings is
not measured again, so an interrupted record goes on where it stopped; ``--again`` measures everything, ``--missing``
what no commit has, ``--only TEXT`` cases with this text in their name. ``make docs`` writes the page of the records.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import pkgutil
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from types import ModuleType
from typing import Any

import yaml
from pydantic import validate_call

from rlhf_core.config.plan import library_versions
from scripts.bench._processor import cards, processor, product_gflops

ROOT = Path(__file__).parents[2]
RECORD = ("step_time", "pocket_step", "rollout")
PLACES = ("folder", "data", "model")
"""Settings that say where something lies; a record does not hold them."""


def names(package: str = "scripts.bench") -> list[str]:
    folder = ROOT.joinpath(*package.split("."))
    return sorted(m.name for m in pkgutil.iter_modules([str(folder)]) if not m.name.startswith("_"))


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


def cases_of(module: ModuleType, settings: Mapping[str, Any]) -> dict[str, Callable[[], Any]]:
    if hasattr(module, "cases"):
        return validate_call(module.cases)(**settings)
    return {"run": partial(validate_call(module.run), **settings)}


def measure(
    name: str,
    folder: Path,
    at: str,
    again: bool,
    missing: bool = False,
    only: str = "",
    settings: Mapping[str, Any] | None = None,
    package: str = "scripts.bench",
) -> list[str]:
    """Measure what is not recorded at commit ``at`` (``missing``: at any) and has ``only`` in its name; the file is
    complete after every case. Returns what a harness of faults finds broken."""
    module, path = importlib.import_module(f"{package}.{name}"), folder / f"{name}.json"
    used = {key: value for key, value in (settings or {}).items() if key not in PLACES}
    wanted, record = cases_of(module, settings or {}), json.loads(path.read_text()) if path.is_file() else {}
    cases = {case: row for case, row in record.get("cases", {}).items() if case in wanted or used}
    broken: list[str] = []
    for case, work in wanted.items():
        if only not in case:
            continue
        known = case in cases and cases[case].get("settings", {}) == used
        if known and not again and (missing or cases[case]["commit"] == at != "unknown"):
            print(f"{name} {case}: recorded already at {cases[case]['commit']}")
            continue
        start = time.perf_counter()
        results = work()
        seconds = round(time.perf_counter() - start)
        print(f"{name} {case} ({seconds} s)", *(f"  {k}: {v}" for k, v in results.items()), sep="\n", flush=True)
        broken += [f"{name} {case}: {text}" for text in getattr(module, "broken", lambda _: [])(results)]
        facts = {"commit": at, **({"settings": used} if used else {}), "machine": machine()}
        cases[case] = {**facts, "measured_in_seconds": seconds, "results": results}
        aside = path.with_suffix(".part")
        aside.write_text(json.dumps({"command": f"python -m {package} {name}", "cases": cases}, indent=2) + "\n")
        aside.replace(path)
    if hasattr(module, "finish"):
        module.finish({case: row["results"] for case, row in cases.items()}, folder)
    return broken


def main(package: str, by_default: Sequence[str], about: str | None) -> int:
    """Measure and write ``docs/bench/NAME.json`` for each; exit code 1 if a promise is broken."""
    known = names(package)
    parser = argparse.ArgumentParser(
        prog=f"python -m {package}", description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("words", nargs="*", help=f"NAME and KEY=VALUE; there are: {', '.join(known)}")
    parser.add_argument("--again", action="store_true", help="measure recorded cases again")
    parser.add_argument("--missing", action="store_true", help="measure only cases without any record")
    parser.add_argument("--only", default="", metavar="TEXT", help="measure only cases with this text in their name")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "bench")
    args = parser.parse_args()
    chosen = [word for word in args.words if "=" not in word]
    settings = {key: yaml.safe_load(value) for key, _, value in (w.partition("=") for w in args.words if "=" in w)}
    if unknown := set(chosen) - set(known):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; there are: {', '.join(known)}")
    args.out.mkdir(parents=True, exist_ok=True)
    at, broken = commit(), list[str]()
    for name in chosen or by_default:
        again = args.again or (at.endswith("-dirty") and not args.missing)
        broken += measure(name, args.out, at, again, args.missing, args.only, settings, package)
    print(*broken, sep="\n")
    return int(bool(broken))


if __name__ == "__main__":
    sys.exit(main("scripts.bench", RECORD, __doc__))
