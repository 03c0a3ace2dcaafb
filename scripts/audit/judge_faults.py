"""A judge behind a faulty service, killed twice: is every row there once, and does the spend cap hold?

    python -m scripts.audit.judge_faults --requests 500 --json docs/bench/judge_faults.json

The service is the judge plugin's stand-in, which speaks the Messages API on this machine; the client is the real SDK
inside `rlhf reward score --reward judge`, a process of its own that is killed with SIGKILL while it works and started
again with the same command. Every arrival at the service may meet a fault. The meter counts what the service would
have billed: also answers that it never delivered, that were cut short, or that died with the process.

Two runs: one whose cap leaves room, and one whose cap does not, until it is raised.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rlhf_core.data.jsonl import read_jsonl
from rlhf_plugin_judge.delimiters import delimited
from rlhf_plugin_judge.ledger import Ledger
from rlhf_plugin_judge.prices import NANO
from rlhf_plugin_judge.stand_in import Service, StandIn, by_question

FAULTS = {"429": 0.10, "500": 0.05, "malformed": 0.02, "prose": 0.02, "hang": 0.01}
"""Of all arrivals. ``malformed``: the HTTP body is no JSON. ``prose``: the judge's answer is none."""


def rows_file(folder: Path, count: int) -> Path:
    """Completions to be graded."""
    file = folder / "answers.jsonl"
    rows = [{"id": f"row/{i}", "prompt": f"What is {i} + {i}?", "completion": f"It is {2 * i}."} for i in range(count)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def words(server: StandIn, folder: Path, rows: Path, cap: float) -> list[str]:
    """The command, from the interpreter on."""
    settings = {
        "judge.base_url": server.url,
        "judge.ledger": folder / "ledger.jsonl",
        "judge.max_cost_usd": cap,
        "judge.timeout_s": 2,
        "judge.backoff_s": 0.05,
        "asking.max_tokens": 64,
    }
    return [
        sys.executable,
        "-m",
        "rlhf_core.cli.main",
        "reward",
        "score",
        "--reward",
        "judge",
        "--input",
        str(rows),
        "--output",
        str(folder / "scored.jsonl"),
        *(w for k, v in settings.items() for w in ("--set", f"{k}={v}")),
    ]


def start(command: Sequence[str], folder: Path) -> subprocess.Popen[bytes]:
    """Start it, with a key that is none and a cache of its own."""
    own = {"ANTHROPIC_API_KEY": "stand-in-key", "RLHF_CACHE": str(folder / "cache"), "OMP_NUM_THREADS": "1"}
    env = {**os.environ, **own}
    return subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def kill_at(process: subprocess.Popen[bytes], service: Service, answers: int) -> bool:
    """SIGKILL as soon as the service has given so many answers; False if the process ended before."""
    limit = time.monotonic() + 300
    while service.seen["answers"] < answers and time.monotonic() < limit:
        if process.poll() is not None:
            return False
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    return True


def finish(command: Sequence[str], folder: Path) -> float:
    """Run to the end; seconds. The output of an earlier run is removed: the command does not replace one."""
    (folder / "scored.jsonl").unlink(missing_ok=True)
    began = time.monotonic()
    process = start(command, folder)
    _, err = process.communicate(timeout=1200)
    if process.returncode not in (0, 1):
        raise SystemExit(f"rlhf reward score ended with code {process.returncode}\n{err.decode()[-3000:]}")
    return round(time.monotonic() - began, 1)


def verdicts(folder: Path, count: int) -> dict[str, Any]:
    """What is in the output beside what should be."""
    rows = list(read_jsonl(folder / "scored.jsonl"))
    ids = [row["id"] for row in rows]
    wrong = [row["id"] for row in rows if row["status"] == "ok" and row["parts"]["grade"] != expected(row)]
    return {
        "rows": len(rows),
        "each once, in order": ids == [f"row/{i}" for i in range(count)],
        "statuses": dict(Counter(row["status"] for row in rows)),
        "wrong grades": len(wrong),
    }


def expected(row: dict[str, Any]) -> float:
    """The grade that the service gives this row, whatever else happens."""
    text = delimited(("conversation", row["prompt"]), ("response", row["completion"]))
    return float(json.loads(by_question({"messages": [{"content": text}]}))["grade"])


def money(service: Service, folder: Path, cap: float) -> dict[str, Any]:
    """The service's meter, the ledger, and the cap."""
    ledger = Ledger(folder / "ledger.jsonl", cap)
    open_ = [name for name in ledger.amounts if name not in ledger.settled]
    billed = service.seen["billed_nano"]
    return {
        "cap_usd": cap,
        "billed_usd": billed / NANO,
        "ledger_usd": ledger.total / NANO,
        "reservations of killed processes": len(open_),
        "billed <= ledger <= cap": billed <= ledger.total <= ledger.cap,
    }


def arrivals(service: Service) -> dict[str, int]:
    """What came to the service, and what it did."""
    twice = sum(n > 1 for n in service.answered.values())
    return {k: service.seen[k] for k in ("arrivals", *FAULTS)} | {"answered twice": twice}


def run(count: int, caps: Sequence[float], kills: Sequence[int], seed: int) -> dict[str, Any]:
    """Start, kill, start again until it is done, with each cap in turn; then once more, which must cost nothing."""
    with tempfile.TemporaryDirectory() as name, StandIn(Service(by_question, FAULTS, seed, latency_s=0.05)) as server:
        folder, service = Path(name), server.service
        rows = rows_file(folder, count)
        killed = sum(kill_at(start(words(server, folder, rows, caps[0]), folder), service, at) for at in kills)
        found: dict[str, Any] = {"requests": count, "faults": FAULTS, "kills": killed}
        for cap in caps:
            seconds = finish(words(server, folder, rows, cap), folder)
            found[f"cap {cap:g} USD"] = {
                **verdicts(folder, count),
                **money(service, folder, cap),
                "service": arrivals(service),
                "seconds of the last start": seconds,
            }
        before = service.seen["arrivals"]
        finish(words(server, folder, rows, caps[-1]), folder)
        return {**found, "requests sent by one more start": service.seen["arrivals"] - before}


def main() -> None:
    """Run both, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    n = args.requests
    result = {
        "room": run(n, [1.0], [n // 4, n // 2], args.seed),
        "tight": run(n, [1e-4 * n, 1.0], [n // 16, n // 8], args.seed + 1),
    }
    text = json.dumps(result, indent=2)
    print(text)
    if args.json:
        args.json.write_text(text + "\n")


if __name__ == "__main__":
    main()
