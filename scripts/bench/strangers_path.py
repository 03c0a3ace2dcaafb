"""A newcomer's first hour, timed: clone, install, every block of the tutorial, the page opened, the quickstart.

    python -m scripts.bench.strangers_path --folder ../stranger    # times everything, writes the record
    python -m scripts.bench.strangers_path --table                   # the record as a table

The clone, the environment, the home folder and pip's cache are new. Nothing is run but what README and tutorial say.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import resource
import subprocess
import sys
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]
RECORD = ROOT / "docs/bench/strangers_path.json"
FENCE = re.compile(r"^```(bash|python)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
QUICKSTART = "rlhf train --algo grpo --reward ensemble"
"""What `make quickstart` runs after the installation."""


class Step(NamedTuple):
    """Example: ``Step("tutorial 2", "rlhf train --algo sft ...")``"""

    name: str
    command: str
    language: str = "bash"


def steps_of(tutorial: str) -> list[Step]:
    """The commands of every section, and its Python programs, in their order."""
    steps: list[Step] = []
    for section in re.split(r"^## ", tutorial, flags=re.MULTILINE)[1:]:
        name = section.partition("\n")[0]
        for language, text in FENCE.findall(section):
            if language == "python":
                steps.append(Step(name, text, language))
                continue
            lines = re.sub(r"\s*\\\n\s*", " ", text).splitlines()
            steps += [Step(name, line) for line in lines if line.strip()]
    return steps


def timed(step: Step, folder: Path, env: Mapping[str, str]) -> dict[str, Any]:
    """Run a step; wall seconds, and processor seconds of it and its children."""
    command = ["bash", "-c", step.command] if step.language == "bash" else [sys.executable, "-c", step.command]
    if step.language == "python" and (own := Path(env["VIRTUAL_ENV"]) / "bin/python").exists():
        command[0] = str(own)
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    done = subprocess.run(command, cwd=folder, env=dict(env), capture_output=True, text=True, check=False)
    after, wall = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic() - began
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    shown = step.command if step.language == "bash" else "(the program)"
    row = {"step": step.name, "command": shown, "wall_s": round(wall, 1), "cpu_s": round(cpu, 1), "rc": done.returncode}
    if done.returncode:
        row["said"] = (done.stdout + done.stderr)[-2000:]
    return row


def opened(page: Path) -> dict[str, Any]:
    """A page in a real Chromium: its title, its charts, and what the browser complained of."""
    from scripts.chromium import missing, open_chromium, problems

    if why := missing():
        return {"opened": False, "why": why}
    browser = open_chromium()
    try:
        began = time.monotonic()
        browser.get(page.as_uri())
        while not (charts := browser.execute_script("return document.querySelectorAll('figure .bk-Figure').length")):
            if time.monotonic() - began > 60:
                break
            time.sleep(0.05)
        seconds = round(time.monotonic() - began, 2)
        said = {"title": browser.title, "charts": charts, "seconds": seconds, "problems": problems(browser)}
        return {"opened": True, **said, "megabytes": round(page.stat().st_size / 1e6, 2)}
    finally:
        browser.quit()


def walk(folder: Path, source: str, out: Path, quickstart: bool) -> dict[str, Any]:
    """Every step, in new folders below ``folder``; the record is written after each."""
    clone, work, home = folder / "clone", folder / "work", folder / "home"
    for place in (work, home):
        place.mkdir(parents=True)
    venv = clone / ".venv"
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("RLHF_", "XDG_", "PYTHON", "VIRTUAL", "OMP_"))}
    env = {**kept, "HOME": str(home), "VIRTUAL_ENV": str(venv), "PATH": f"{venv}/bin:{kept['PATH']}", "TERM": "dumb"}
    record: dict[str, Any] = {"command": "python -m scripts.bench.strangers_path --folder FOLDER", **_machine()}

    def add(row: dict[str, Any]) -> None:
        record["steps"].append(row)
        for unit in ("wall_s", "cpu_s"):
            record[f"all_{unit}"] = round(sum(row[unit] for row in record["steps"]))
        out.write_text(json.dumps(record, indent=2) + "\n")
        print(f"{row['wall_s']:8.1f} s  {row['cpu_s']:8.1f} s  rc {row['rc']}  {row['command'][:80]}", flush=True)

    add({**timed(Step("clone", f"git clone -q {source} clone"), folder, env), "command": "git clone URL"})
    add(timed(Step("install", "make install"), clone, env))
    for step in steps_of((clone / "docs/tutorial.md").read_text()):
        add(timed(step, work, env))
    record["page"] = opened(work / "runs/grpo/report.html")
    out.write_text(json.dumps(record, indent=2) + "\n")
    if quickstart:
        add({**timed(Step("quickstart", QUICKSTART), clone, env), "command": "make quickstart"})
    record["complete"] = True
    out.write_text(json.dumps(record, indent=2) + "\n")
    return record


def _machine() -> dict[str, Any]:
    from scripts.bench._processor import processor

    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "commit": commit.stdout.strip(),
        "machine": {"processor": processor(), "cores": os.cpu_count(), "python": platform.python_version()},
        "load_at_start": [round(load, 1) for load in os.getloadavg()],
        "complete": False,
        "steps": [],
    }


def table(record: Mapping[str, Any]) -> str:
    """The record in Markdown."""
    rows = ["| step | command | seconds | processor seconds |", "|---|---|---|---|"]
    for row in record["steps"]:
        command = row["command"] if len(row["command"]) <= 80 else row["command"][:77] + "..."
        code = command if command == "(the program)" else f"`{command.replace('|', chr(92) + '|')}`"
        rows.append(f"| {row['step']} | {code} | {row['wall_s']:.0f} | {row['cpu_s']:.0f} |")
    page = record.get("page", {})
    if page.get("opened"):
        rows.append(
            f"| page opened | {page['charts']} charts, {len(page['problems'])} complaints | {page['seconds']:.0f} | |"
        )
    return "\n".join(
        [*rows, f"| {'all' if record['complete'] else 'these'} | | {record['all_wall_s']} | {record['all_cpu_s']} |"]
    )


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, help="A folder that does not exist yet.")
    parser.add_argument("--source", default=str(ROOT), help="What to clone; default this repository.")
    parser.add_argument("--no-quickstart", action="store_true", help="Leave its training out.")
    parser.add_argument("--out", type=Path, default=RECORD)
    parser.add_argument("--table", action="store_true", help="Print the record that is there.")
    options = parser.parse_args()
    if options.table:
        print(table(json.loads(options.out.read_text())))
        return
    if options.folder is None or options.folder.exists():
        parser.error("--folder names a new folder")
    record = walk(options.folder.absolute(), options.source, options.out, not options.no_quickstart)
    sys.exit(any(row["rc"] for row in record["steps"]))


if __name__ == "__main__":
    main()
