"""Tries every attack on this machine's sandbox and prints a table; exit code 1 if one succeeds."""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import threading
import time
from pathlib import Path

from rlhf_plugin_code.redteam.arena import CONTROLS, LIMITS, Arena, Outcome, arena, as_row
from rlhf_plugin_code.redteam.attacks import GROUPS
from rlhf_plugin_code.sandbox import CpuUnavailable, Sandbox

WORK = """
import time
def f(x):
    while time.process_time() < 0.7: pass
    return x * x
"""


class Neighbour:
    """A second sandbox whose program needs half its CPU time: its answers must be right; times are recorded."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.wrong = self.missing = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work)

    def _work(self) -> None:
        with Sandbox(LIMITS) as sandbox:
            while not self._stop.is_set():
                started = time.monotonic()
                try:
                    self.wrong += not all(sandbox.tests(WORK, ["assert f(12) == 144"]).passed)
                except CpuUnavailable:
                    self.missing += 1
                self.times.append(time.monotonic() - started)

    def __enter__(self) -> Neighbour:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m rlhf_plugin_code.redteam", description=__doc__)
    parser.add_argument("--group", choices=list(GROUPS))
    parser.add_argument("--only", help="attacks whose name contains this")
    parser.add_argument("--markdown", type=Path, help="write the table there")
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")
    args = parser.parse_args(argv)
    chosen = [(g, n) for g in GROUPS if args.group in (None, g) for n in GROUPS[g] if (args.only or "") in n]
    with arena() as ground, Neighbour() as neighbour:
        time.sleep(0.5)
        outcomes = [watched(ground, neighbour, group, name) for group, name in chosen]
        isolation = ground.sandbox.isolation
    lines = table(outcomes, isolation, neighbour)
    if args.json:
        print(json.dumps([as_row(o) for o in outcomes], indent=1))
    else:
        print("\n".join(lines))
    if args.markdown:
        args.markdown.write_text("\n".join(lines) + "\n")
    return 1 if neighbour.wrong or any(o.won for o in outcomes) else 0


def watched(ground: Arena, neighbour: Neighbour, group: str, name: str) -> Outcome:
    before = len(neighbour.times)
    outcome = ground.attack(group, name)
    times = neighbour.times[before:]
    median = f"{statistics.median(times) * 1000:.0f} ms" if times else ""
    print(f"{outcome.won or 'stopped':20} {name}", file=sys.stderr)
    return Outcome(outcome.group, outcome.name, outcome.won, outcome.stopped_by, outcome.seconds, median)


def table(outcomes: list[Outcome], isolation: str, neighbour: Neighbour) -> list[str]:
    won = sum(bool(o.won) for o in outcomes)
    rows = [
        f"| {o.group} | {o.name} | {f'**{o.won}**' if o.won else 'no'} | {cell(o.stopped_by)} | "
        f"{'yes' if o.name in CONTROLS else ''} | {o.seconds:.2f} | {o.neighbour} |"
        for o in outcomes
    ]
    middle = statistics.median(neighbour.times) * 1000 if neighbour.times else 0.0
    return [
        "# Attacks on the sandbox",
        "",
        f"`python -m rlhf_plugin_code.redteam --markdown FILE` on Linux "
        f"{platform.release().split('-')[0]}, Python {platform.python_version()}. Isolation: {isolation}. Limits: "
        f"{LIMITS.timeout_s:g} s, {LIMITS.memory_mb} MB, {LIMITS.processes} processes.",
        "",
        f"{len(outcomes)} attacks, {won} succeeded. A second sandbox beside them ran {len(neighbour.times)} "
        f"programs of 0.7 s on a CPU with {neighbour.wrong} wrong verdicts and {neighbour.missing} missing ones, "
        f"median {middle:.0f} ms each; the last column is its median during the attack. Seconds are on the clock and "
        "include the look around afterwards. Control: the attack is seen to succeed without isolation "
        "(`tests/test_attacks.py`); the others have none.",
        "",
        "| group | attack | succeeded | what it met | control | seconds | neighbour |",
        "|---|---|---|---|---|---|---|",
        *rows,
    ]


def cell(text: str) -> str:
    return text.replace("|", "/").replace("\n", " ").replace("<", "&lt;")[:120]


if __name__ == "__main__":
    sys.exit(main())
