"""Agents behind faulty services, killed twice: is any call paid for twice, and does the spend cap hold?

    python -m scripts.audit.agent_services --json docs/bench/agent_services.json

The service is a stand-in on this machine whose model is the oracle of ``agentbench_mini``; the clients are the real
SDKs of Anthropic and OpenAI inside `rlhf eval agentbench_mini`, four agents on 36 tasks, a process of its own that is
killed with SIGKILL twice while it works and started again with the same command. Arrivals meet 429, 500, 529, broken
answers, dropped connections and hangs. The meter is the service's own: it bills an answer once it is made, also one
that it never delivers, that is cut short, or whose reader has died. It knows a question by the header ``x-question``:
two tasks may ask the same words, and Anthropic's requests hold no seed that tells them apart.

Three starts follow the kills: with a cap that does not leave room for everything; with one that does; and one that may
repeat what may have been paid for already (a killed process's calls, and those that were cut off), which the starts
before must not. A last start must send nothing.
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

from rlhf_core.cli import context_of, open_registry
from rlhf_plugin_agents.stand_in import oracle
from rlhf_plugin_agents.suites.config import AgentBenchMini
from rlhf_plugin_judge.ledger import Ledger
from rlhf_plugin_judge.prices import NANO, Price
from rlhf_plugin_judge.stand_in import Service, StandIn
from scripts.bench._processor import processor

AGENTS = ("zero_shot", "react", "plan_and_execute", "multi_agent")
FAULTS = {"429": 0.08, "500": 0.04, "529": 0.02, "malformed": 0.01, "drop": 0.01, "hang": 0.01}
"""Of all arrivals."""
PRICE = Price(input=1, output=5)
MODELS = {"anthropic": "claude-haiku-4-5", "openai": "oracle"}


def words(backend: str, server: StandIn, folder: Path, cap: float, per_category: int, *, repeat: bool) -> list[str]:
    """The command, from the interpreter on."""
    settings: dict[str, Any] = {
        "base_url": server.url + ("/v1" if backend == "openai" else ""),
        "prices": f"{{{MODELS[backend]}: {{input: {PRICE.input:g}, output: {PRICE.output:g}}}}}",
        "ledger": folder / "ledger.jsonl",
        "max_cost_usd": cap,
        "timeout_s": 2,
        "backoff_s": 0.05,
        "prompt_caching": "false",
        "repeat_after_timeout": str(repeat).lower(),
        "repeat_after_kill": str(repeat).lower(),
    }
    if backend == "openai":
        del settings["prompt_caching"]
    return [
        sys.executable, "-m", "rlhf_core.cli.main", "eval", "agentbench_mini", "--backend", backend,
        "--model", MODELS[backend], "--out", str(folder / "out"), "--workers", "8",
        "--max-per-category", str(per_category), "--json", *(w for a in AGENTS for w in ("--agent", a)),
        *(w for k, v in settings.items() for w in ("--set", f"backend.{k}={v}")),
    ]  # fmt: skip


def start(command: Sequence[str], folder: Path) -> subprocess.Popen[bytes]:
    """Start it, with keys that are none and a cache of its own."""
    own = {"ANTHROPIC_API_KEY": "stand-in-key", "OPENAI_API_KEY": "stand-in-key", "OMP_NUM_THREADS": "1"}
    env = {**os.environ, **own, "RLHF_CACHE": str(folder / "cache")}
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def kill_at(process: subprocess.Popen[bytes], service: Service, answers: int) -> bool:
    """SIGKILL as soon as the service has made so many answers; False if the process ended before."""
    limit = time.monotonic() + 300
    while service.seen["answers"] < answers and time.monotonic() < limit:
        if process.poll() is not None:
            return False
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    return True


def finish(command: Sequence[str], folder: Path) -> list[dict[str, Any]]:
    """Run to the end; the evaluations."""
    process = start(command, folder)
    out, err = process.communicate(timeout=1200)
    if process.returncode:
        raise SystemExit(f"rlhf eval ended with code {process.returncode}\n{err.decode()[-3000:]}")
    return json.loads(out)["evaluations"]


def counted(evaluations: Sequence[dict[str, Any]], service: Service, folder: Path, cap: float) -> dict[str, Any]:
    """Verdicts, the service's meter, the ledger and the cap."""
    ledger = Ledger(folder / "ledger.jsonl", cap)
    billed = service.seen["billed_nano"]
    rows = [json.loads(line) for e in evaluations for line in (Path(e["folder"]) / "rows.jsonl").open()]
    each = Counter((r["trajectory"]["agent"], r["task"]) for r in rows)
    return {
        "plays": len(rows),
        "each once": set(each.values()) == {1},
        "right": sum(bool(r["right"]) for r in rows),
        "wrong": sum(r["right"] is False for r in rows),
        "missing": sum(e["missing"] for e in evaluations),
        "calls billed": sum(service.billed.values()),
        "calls billed twice": sum(n > 1 for n in service.billed.values()),
        "cap_usd": cap,
        "billed_usd": billed / NANO,
        "ledger_usd": ledger.total / NANO,
        "billed <= ledger <= cap": billed <= ledger.total <= ledger.cap,
    }


def run(backend: str, per_category: int, seed: int) -> dict[str, Any]:
    """Start, kill, start, kill, and on until all is done."""
    suite = AgentBenchMini.model_validate({"max_per_category": per_category})
    tasks = suite.tasks(context_of(open_registry()))
    made = Service(oracle(tasks), FAULTS, seed, PRICE, latency_s=0.02, models=(MODELS[backend],))
    with tempfile.TemporaryDirectory() as name, StandIn(made) as server:
        folder, service, began = Path(name), server.service, time.monotonic()

        def command(cap: float, *, repeat: bool = False) -> list[str]:
            return words(backend, server, folder, cap, per_category, repeat=repeat)

        tight, room = 0.0045 * len(tasks), 1.0
        kills = [kill_at(start(command(tight), folder), service, at) for at in (2 * len(tasks), 4 * len(tasks))]
        found: dict[str, Any] = {"tasks": len(tasks), "agents": AGENTS, "faults": FAULTS, "kills": sum(kills)}
        for title, cap, repeat in (
            ("tight cap", tight, False), ("room", room, False), ("what may have been paid repeated", room, True)
        ):  # fmt: skip
            evaluations = finish(command(cap, repeat=repeat), folder)
            found[title] = counted(evaluations, service, folder, cap)
            print(f"{backend}, {title}, {time.monotonic() - began:.0f} s: {found[title]}", file=sys.stderr, flush=True)
        before = service.seen["arrivals"]
        finish(command(room, repeat=True), folder)
        arrived = {k: service.seen[k] for k in ("arrivals", *FAULTS)}
        return {**found, "service": arrived, "requests of one more start": service.seen["arrivals"] - before}


def main() -> None:
    """Both services, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--max-per-category", type=int, default=12)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    began = time.monotonic()
    result: dict[str, Any] = {b: run(b, args.max_per_category, args.seed + i) for i, b in enumerate(MODELS)}
    result |= {"seconds": round(time.monotonic() - began), "processor": processor()}
    text = json.dumps(result, indent=2)
    print(text)
    if args.json:
        args.json.write_text(text + "\n")


if __name__ == "__main__":
    main()
