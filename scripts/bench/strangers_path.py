"""A newcomer's first hour, timed: clone, install, every block of the tutorial, the page opened, the quickstart.

The clone, the environment, the home folder and pip's cache are new.
"""

from __future__ import annotations

import os
import re
import resource
import subprocess
import sys
import time
from collections.abc import Mapping
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
        result = {"title": browser.title, "charts": charts, "seconds": seconds, "problems": problems(browser)}
        return {"opened": True, **result, "megabytes": round(page.stat().st_size / 1e6, 2)}
    finally:
        browser.quit()


def walk(folder: Path, source: str, quickstart: bool) -> dict[str, Any]:
    clone, work, home = folder / "clone", folder / "work", folder / "home"
    for made in (work, home):
        made.mkdir(parents=True)
    venv = clone / ".venv"
    own = {k: v for k, v in os.environ.items() if not k.startswith(("RLHF_", "XDG_", "PYTHON", "VIRTUAL", "OMP_"))}
    env = {**own, "HOME": str(home), "VIRTUAL_ENV": str(venv), "PATH": f"{venv}/bin:{own['PATH']}", "TERM": "dumb"}
    load, rows = [round(load, 1) for load in os.getloadavg()], list[dict[str, Any]]()

    def add(row: dict[str, Any]) -> None:
        rows.append(row)
        print(f"{row['wall_s']:8.1f} s  {row['cpu_s']:8.1f} s  rc {row['rc']}  {row['command'][:80]}", flush=True)

    add({**timed(Step("clone", f"git clone -q {source} clone"), folder, env), "command": "git clone URL"})
    add(timed(Step("install", "make install"), clone, env))
    for step in steps_of((clone / "docs/tutorial.md").read_text()):
        add(timed(step, work, env))
    page = opened(work / "runs/grpo/report.html")
    if quickstart:
        add({**timed(Step("quickstart", QUICKSTART), clone, env), "command": "make quickstart"})
    totals = {f"all_{unit}": round(sum(row[unit] for row in rows)) for unit in ("wall_s", "cpu_s")}
    return {"load_at_start": load, "steps": rows, "page": page, **totals}


def run(folder: Path, source: str = str(ROOT), quickstart: bool = True) -> dict[str, Any]:
    """``folder`` does not exist yet; ``source`` is what is cloned."""
    if folder.exists():
        raise SystemExit(f"{folder} is there: folder=NEW names a new one")
    return walk(folder.absolute(), source, quickstart)
