"""Paid services with faults, and clients killed twice: is any row lost, any call paid for twice, does the cap hold?

Services are stand-ins that speak the real SDKs' protocols. The clients, `rlhf reward score --reward judge` and `rlhf
eval agentbench_mini`, are killed with SIGKILL while they work and started again with the same words. The meter counts
what the service would bill, answers that it never delivered included. A last start must send nothing.
"""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rlhf_core.cli import context_of, open_registry
from rlhf_core.data.jsonl import read_jsonl
from rlhf_plugin_agents.stand_in import oracle
from rlhf_plugin_agents.suites.config import AgentBenchMini
from rlhf_plugin_judge.delimiters import fence_untrusted
from rlhf_plugin_judge.ledger import Ledger
from rlhf_plugin_judge.prices import NANO, Price
from rlhf_plugin_judge.stand_in import Service, StandIn, by_question
from scripts.faults._process import kill_when, run_to_end

JUDGE_FAULTS = {"429": 0.10, "500": 0.05, "malformed": 0.02, "prose": 0.02, "hang": 0.01}
"""Of all arrivals. ``malformed``: the HTTP body is no JSON. ``prose``: the judge's answer is none."""
AGENT_FAULTS = {"429": 0.08, "500": 0.04, "529": 0.02, "malformed": 0.01, "drop": 0.01, "hang": 0.01}
AGENTS = ("zero_shot", "react", "plan_and_execute", "multi_agent")
PRICE = Price(input=1, output=5)
MODELS = {"anthropic": "claude-haiku-4-5", "openai": "oracle"}
HOLDS = "billed <= ledger <= cap"


def sets(settings: Mapping[str, Any]) -> list[str]:
    return [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]


def killed(words: Sequence[str], folder: Path, service: Service, answers: int) -> bool:
    return kill_when(lambda: service.seen["answers"] >= answers, words, folder)


def money(service: Service, folder: Path, cap: float) -> dict[str, Any]:
    ledger, billed = Ledger(folder / "ledger.jsonl", cap), service.seen["billed_nano"]
    figures = {"cap_usd": cap, "billed_usd": billed / NANO, "ledger_usd": ledger.total / NANO}
    return {**figures, HOLDS: billed <= ledger.total <= ledger.cap}


def judge_words(server: StandIn, folder: Path, count: int, cap: float) -> list[str]:
    file = folder / "answers.jsonl"
    rows = [{"id": f"row/{i}", "prompt": f"What is {i} + {i}?", "completion": f"It is {2 * i}."} for i in range(count)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings = {
        "judge.base_url": server.url,
        "judge.ledger": folder / "ledger.jsonl",
        "judge.max_cost_usd": cap,
        "judge.timeout_s": 2,
        "judge.backoff_s": 0.05,
        "asking.max_tokens": 64,
    }
    output = str(folder / "scored.jsonl")
    return ["reward", "score", "--reward", "judge", "--input", str(file), "--output", output, *sets(settings)]


def verdicts(folder: Path, count: int) -> dict[str, Any]:
    rows = list(read_jsonl(folder / "scored.jsonl"))
    wrong = [row["id"] for row in rows if row["status"] == "ok" and row["parts"]["grade"] != expected(row)]
    return {
        "rows": len(rows),
        "each once": [row["id"] for row in rows] == [f"row/{i}" for i in range(count)],
        "statuses": dict(Counter(row["status"] for row in rows)),
        "wrong": len(wrong),
    }


def expected(row: Mapping[str, Any]) -> float:
    text = fence_untrusted(("conversation", row["prompt"]), ("response", row["completion"]))
    return float(json.loads(by_question({"messages": [{"content": text}]}))["grade"])


def judge(count: int, caps: Sequence[float], kills: Sequence[int], seed: int) -> dict[str, Any]:
    """Start, kill, start again until it is done, with each cap in turn; then once more, which must cost nothing."""
    made = Service(by_question, JUDGE_FAULTS, seed, latency_s=0.05)
    with tempfile.TemporaryDirectory() as name, StandIn(made) as server:
        folder, service = Path(name), server.service

        def score(cap: float) -> None:
            (folder / "scored.jsonl").unlink(missing_ok=True)  # the command does not replace one
            run_to_end(judge_words(server, folder, count, cap), folder, good=(0, 1))

        first = judge_words(server, folder, count, caps[0])
        starts: dict[str, Any] = {}
        ended = sum(killed(first, folder, service, at) for at in kills)
        for cap in caps:
            score(cap)
            starts[f"cap {cap:g} USD"] = {**verdicts(folder, count), **money(service, folder, cap)}
        before = service.seen["arrivals"]
        score(caps[-1])
        return {
            "requests": count,
            "kills": ended,
            "starts": starts,
            "service": {kind: service.seen[kind] for kind in ("arrivals", *JUDGE_FAULTS)},
            "requests of one more start": service.seen["arrivals"] - before,
        }


def agent_words(
    backend: str, server: StandIn, folder: Path, cap: float, per_category: int, *, repeat: bool
) -> list[str]:
    settings: dict[str, Any] = {
        "base_url": server.url + ("/v1" if backend == "openai" else ""),
        "prices": f"{{{MODELS[backend]}: {{input: {PRICE.input:g}, output: {PRICE.output:g}}}}}",
        "ledger": folder / "ledger.jsonl",
        "max_cost_usd": cap,
        "timeout_s": 2,
        "backoff_s": 0.05,
        "repeat_after_timeout": str(repeat).lower(),
        "repeat_after_kill": str(repeat).lower(),
        **({"prompt_caching": "false"} if backend == "anthropic" else {}),
    }
    return [
        "eval", "agentbench_mini", "--backend", backend, "--model", MODELS[backend], "--out", str(folder / "out"),
        "--workers", "8", "--max-per-category", str(per_category), "--json",
        *(word for agent in AGENTS for word in ("--agent", agent)),
        *sets({f"backend.{key}": value for key, value in settings.items()}),
    ]  # fmt: skip


def counted(evaluations: Sequence[Mapping[str, Any]], service: Service, folder: Path, cap: float) -> dict[str, Any]:
    """Verdicts, the service's meter, the ledger and the cap."""
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
        **money(service, folder, cap),
    }


def played(words: Sequence[str], folder: Path) -> list[dict[str, Any]]:
    return json.loads(run_to_end(words, folder))["evaluations"]


def agents(backend: str, per_category: int, seed: int) -> dict[str, Any]:
    """Start, kill, start, kill, and on until all is done."""
    tasks = AgentBenchMini.model_validate({"max_per_category": per_category}).tasks(context_of(open_registry()))
    made = Service(oracle(tasks), AGENT_FAULTS, seed, PRICE, latency_s=0.02, models=(MODELS[backend],))
    with tempfile.TemporaryDirectory() as name, StandIn(made) as server:
        folder, service = Path(name), server.service

        def words(cap: float, *, repeat: bool = False) -> list[str]:
            return agent_words(backend, server, folder, cap, per_category, repeat=repeat)

        tight, room = 0.0045 * len(tasks), 1.0
        kills = sum(killed(words(tight), folder, service, at) for at in (2 * len(tasks), 4 * len(tasks)))
        starts: dict[str, Any] = {}
        for title, cap, repeat in (
            ("tight cap", tight, False), ("room", room, False), ("what may have been paid repeated", room, True)
        ):  # fmt: skip
            starts[title] = counted(played(words(cap, repeat=repeat), folder), service, folder, cap)
        before = service.seen["arrivals"]
        played(words(room, repeat=True), folder)
        return {
            "tasks": len(tasks),
            "kills": kills,
            "starts": starts,
            "service": {kind: service.seen[kind] for kind in ("arrivals", *AGENT_FAULTS)},
            "requests of one more start": service.seen["arrivals"] - before,
        }


def cases(requests: int = 500, per_category: int = 12, seed: int = 0) -> dict[str, Callable[[], dict[str, Any]]]:
    """``requests`` of the judge, ``per_category`` tasks of the agents."""
    n = requests
    return {
        "judge, room": partial(judge, n, [1.0], [n // 4, n // 2], seed),
        "judge, tight cap": partial(judge, n, [1e-4 * n, 1.0], [n // 16, n // 8], seed + 1),
        **{f"agents, {backend}": partial(agents, backend, per_category, seed + i) for i, backend in enumerate(MODELS)},
    }


def broken(results: Mapping[str, Any]) -> list[str]:
    faults = ["one more start sends requests"] if results["requests of one more start"] else []
    for title, start in results["starts"].items():
        faults += [] if start[HOLDS] else [f"{title}: the bill is above the ledger, or the ledger above the cap"]
        faults += [f"{title}: a row is lost or doubled"] if not start["each once"] else []
        faults += [f"{title}: {start['wrong']} wrong"] if start["wrong"] else []
    return faults
