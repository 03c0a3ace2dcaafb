"""Starts each side as a program of its own, listens to it, and kills it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from statistics import median
from typing import Any

from rlhf_core.config import RlhfError
from rlhf_studies.common.outside import other_python
from rlhf_studies.ray_actors.config import RayActorsConfig
from rlhf_studies.ray_actors.late import ENTRY
from rlhf_study.runs import offering
from rlhf_study.study import Study
from rlhf_study.tables import markdown

MARK = "RLHF_STUDY_MARK"


class RayActors(Study[RayActorsConfig]):
    def run(self, seed: int, folder: Path) -> dict[str, Any]:
        sides = {"ours": (sys.executable, "our_side.py")}
        if not self.config.only_ours:
            sides["ray"] = (other_python(self.config.python, "ray"), "ray_side.py")
        return {name: self.measured(python, program, folder) for name, (python, program) in sides.items()}

    def measured(self, python: str, program: str, folder: Path) -> dict[str, Any]:
        mark, began = uuid.uuid4().hex, time.perf_counter()
        words = [python, Path(__file__).with_name(program), str(self.config.workers), str(self.config.calls)]
        env = {**os.environ, MARK: mark, "PYTHONPATH": str(offering(folder, ENTRY))}
        caller = subprocess.Popen(words, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert caller.stdin is not None
        assert caller.stdout is not None
        try:
            ready = said(caller.stdout)
            elapsed = time.perf_counter() - began
            others = [pid for pid in marked(mark) if pid != caller.pid]
            memory = sum(map(proportional_mib, others))
            caller.stdin.write("\n")
            caller.stdin.flush()
            gone = said(caller.stdout)["gone"]
        finally:
            caller.kill()
            caller.wait()
        time.sleep(self.config.left_after_s)
        left = list(marked(mark))
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        return {
            "first_answer_s": round(ready["first"], 2),
            "until_ready_s": round(elapsed, 2),
            "further_worker_ms": round(1000 * ready["started"] / (self.config.workers - 1), 1),
            "call_ms": round(1000 * median(ready["calls"]), 3),
            "processes": len(others),
            "memory_mib": round(memory),
            "hanging_worker_gone_ms": round(1000 * gone, 1),
            "left_after_sigkill": len(left),
        }

    def table(self, results: Mapping[int, Mapping[str, Any]]) -> str:
        figures = next(iter(results.values()))
        keys = next(iter(figures.values()))
        return markdown(
            ("", *figures), [(key.replace("_", " "), *(side[key] for side in figures.values())) for key in keys]
        )


def said(lines: Iterable[str]) -> dict[str, Any]:
    """The next line of JSON; a runtime may say something of its own before."""
    for line in lines:
        if line.startswith("{"):
            return json.loads(line)
    raise RlhfError("the measured program ended early")


def marked(mark: str) -> Iterator[int]:
    """Processes that this measurement started, however they were reparented; zombies are none."""
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and f"{MARK}={mark}".encode() in (entry / "environ").read_bytes():
                yield int(entry.name)
        except OSError:
            continue


def proportional_mib(pid: int) -> float:
    """Memory of a process, of what is shared its part."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024
