"""Many verifications of which some hang, eat memory or crash: the worker pool beside math-verify called directly.

The direct side is one process that has math-verify's own timeout (an alarm of whole seconds) and the same limit of
memory; when it dies, it is started again behind the call that killed it, which is lost.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from rlhf_core.plugins.registry import Registry
from rlhf_core.types.rollouts import Prompt, Sample, Score
from rlhf_plugin_verifiers.reward_config import VerifierRewardConfig
from rlhf_plugin_verifiers.workers import VerifierPool, descendants, worker_spec
from scripts._distribution import installed

FAULTS = (("hang", 0.01), ("memory", 0.005), ("segfault", 0.001))
EXPECTED = {"": "ok", "hang": "timeout", "memory": "error", "segfault": "error"}
MODULE = """
import ctypes
from rlhf_core.rewards import VerifierConfig
from rlhf_core.types.rollouts import Score

class FaultyConfig(VerifierConfig):
    name: str = "faulty"
    def build(self, ctx):
        import math_verify
        return Faulty()

def hang():
    while True: pass

def right(gold, said):
    from math_verify import parse, verify
    return float(verify(parse(gold, parsing_timeout=None), parse(said, parsing_timeout=None), timeout_seconds=None))

class Faulty:
    def verify(self, sample):
        fault = sample.prompt.meta["fault"]
        if fault == "hang": hang()
        if fault == "memory": bytearray(64 << 30)
        if fault == "segfault": ctypes.string_at(0)
        value = 1.0 if fault == "echo" else right(sample.prompt.answer, sample.completion)
        return Score(value, {"number": float(sample.prompt.meta["number"])})
"""
DIRECT = """
import ctypes, json, resource, sys, time
from math_verify import parse, verify
from math_verify.utils import timeout
from faulty_verifier import hang
seconds = int(sys.argv[2])
resource.setrlimit(resource.RLIMIT_AS, (4096 << 20, 4096 << 20))
for line in open(sys.argv[1]).readlines()[int(sys.argv[3]):]:
    number, fault, gold, said = json.loads(line)
    begun, status, value = time.perf_counter(), "ok", None
    try:
        if fault == "hang": timeout(seconds)(hang)()
        if fault == "memory": bytearray(64 << 30)
        if fault == "segfault": ctypes.string_at(0)
        value = float(verify(parse(gold, parsing_timeout=seconds), parse(said, parsing_timeout=seconds),
                             timeout_seconds=seconds))
    except MemoryError: status = "error"
    except BaseException: status = "timeout"
    print(json.dumps([number, status, value, time.perf_counter() - begun]), flush=True)
"""


class Timed(VerifierPool):
    def verify(self, samples: Sequence[Sample]) -> list[Score]:
        """As the pool, with fresh times."""
        self.times: list[float] = []
        return super().verify(samples)

    def _call(self, sample: Sample) -> Score:
        started = time.perf_counter()
        score = super()._call(sample)
        self.times.append(time.perf_counter() - started)
        if len(self.times) % 5000 == 0:
            print(f"{len(self.times)} calls, load {os.getloadavg()[0]:.1f}", file=sys.stderr, flush=True)
        return score


def calls(count: int, seed: int) -> list[tuple[int, str, str, str]]:
    """Number, fault, reference and answer of every call."""
    rng = random.Random(seed)
    made = []
    for number in range(count):
        draw, fault = rng.random(), ""
        for name, share in FAULTS:
            if 0 <= draw < share and not fault:
                fault = name
            draw -= share
        a, b = rng.randrange(1, 1000), rng.randrange(2, 50)
        said = a if rng.random() < 0.5 else a + 1
        made.append((number, fault, f"${a}/{b}$", rf"so the answer is $\boxed{{\frac{{{said}}}{{{b}}}}}$"))
    return made


def distribution() -> AbstractContextManager[Path]:
    """A throw-away package with the faulty verifier, importable here and in the workers."""
    return installed("faulty_verifier", MODULE, "[rlhf.verifier]\nfaulty = faulty_verifier:FaultyConfig\n")


def through_pool(
    work: Sequence[tuple[int, str, str, str]], workers: int, deadline_s: float, recycle: int | None
) -> dict[str, Any]:
    registry = Registry(disabled=())
    options = {"verifier": "faulty", "timeout_s": deadline_s, "workers": workers, "recycle_after_calls": recycle}
    config = VerifierRewardConfig.model_validate(options, context={"registry": registry})
    before = set(descendants(os.getpid()))
    pool = Timed(
        worker_spec("verifier", config.verifier, registry, memory_mb=config.memory_mb),
        workers=workers,
        timeout_s=deadline_s,
        start_timeout_s=120.0,
        recycle_after_calls=recycle,
    )
    pool.verify([sample(n, "echo", "", "") for n in range(500)])
    overhead = statistics.median(pool.times)
    started = time.perf_counter()
    scores = pool.verify([sample(*call) for call in work])
    seconds = time.perf_counter() - started
    alive = len(set(descendants(os.getpid())) - before)
    pool.close()
    misplaced = sum(s.ok and s.parts["number"] != i for i, s in enumerate(scores))
    wrong = sum(s.status.value != EXPECTED[call[1]] for s, call in zip(scores, work))
    return {
        **figures(pool.times, seconds, len(work)),
        "overhead_ms": round(1000 * overhead, 2),
        "statuses": dict(Counter(s.status.value for s in scores)),
        "lost": len(work) - len(scores),
        "misordered": misplaced,
        "unexpected_statuses": wrong,
        "restarts": pool.restarts,
        "recycle": recycle,
        "recycled": pool.recycled,
        "processes_while_running": alive,
        "leaked": len(set(descendants(os.getpid())) - before),
        "right": sum(s.value == 1.0 for s in scores),
    }


def sample(number: int, fault: str, gold: str, said: str) -> Sample:
    prompt = Prompt(str(number), ({"role": "user", "content": "?"},), gold, "", {"fault": fault, "number": number})
    return Sample(prompt, said)


def directly(work: Sequence[tuple[int, str, str, str]], folder: Path, deadline_s: int) -> dict[str, Any]:
    file = folder / "calls.jsonl"
    file.write_text("".join(json.dumps(call) + "\n" for call in work))
    answers: dict[int, tuple[str, float | None]] = {}
    times: list[float] = []
    started, at, deaths = time.perf_counter(), 0, 0
    while at < len(work):
        command = [sys.executable, "-c", DIRECT, str(file), str(deadline_s), str(at)]
        with subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "PYTHONPATH": str(folder)},
        ) as process:
            assert process.stdout
            for line in process.stdout:
                number, status, value, seconds = json.loads(line)
                answers[number] = (status, value)
                times.append(seconds)
                at = number + 1
        if at < len(work):
            deaths += 1
            at += 1
    seconds = time.perf_counter() - started
    return {
        "count": len(work),
        **figures(times, seconds, len(work)),
        "lost": len(work) - len(answers),
        "deaths": deaths,
        "statuses": dict(Counter(status for status, _ in answers.values())),
        "right": sum(value == 1.0 for _, value in answers.values()),
    }


def figures(times: Sequence[float], seconds: float, count: int) -> dict[str, Any]:
    ordered = sorted(times)
    at = {q: round(1000 * ordered[min(len(ordered) - 1, int(len(ordered) * q))], 2) for q in (0.5, 0.99, 0.999)}
    return {
        "seconds": round(seconds, 1),
        "calls_per_second": round(count / seconds, 1),
        "p50_ms": at[0.5],
        "p99_ms": at[0.99],
        "p999_ms": at[0.999],
    }


def run(
    count: int = 200_000,
    workers: int = 4,
    deadline_s: float = 0.5,
    direct_count: int = 20_000,
    direct_deadline_s: int = 1,
    recycle: int | None = None,
    seed: int = 0,
) -> dict[str, Any]:
    """``direct_count`` are the first calls, for the direct side, whose deadline is of whole seconds; ``recycle``
    replaces a worker after so many calls."""
    work = calls(count, seed)
    with distribution() as folder:
        return {
            "count": count,
            "workers": workers,
            "deadline_s": deadline_s,
            "faults": dict(Counter(call[1] or "none" for call in work)),
            "pool": through_pool(work, workers, deadline_s, recycle),
            "direct_deadline_s": direct_deadline_s,
            "direct": directly(work[:direct_count], folder, direct_deadline_s),
            "load_after": os.getloadavg(),
        }


def broken(results: Mapping[str, Any]) -> list[str]:
    return [name for name in ("lost", "misordered", "unexpected_statuses", "leaked") if results["pool"][name]]
