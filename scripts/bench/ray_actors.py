"""What a distributed runtime costs beside processes of our own: Ray's actors and the hosts of environments.

    python -m venv RAY && RAY/bin/pip install ray
    python -m scripts.bench.ray_actors --ray RAY/bin/python --write docs/bench/ray_actors.json

Both sides, one after the other on the same machine: seconds until the first worker answers, from an interpreter that
has imported neither; so many workers more; milliseconds of a call that does nothing; proportional memory of all
processes beside the caller; seconds until a worker that hangs is gone, once told to end; and how many processes are
left ten seconds after the caller was killed with SIGKILL. Ray keeps its own processes (scheduler, store of objects,
agents) whatever the number of workers. It is asked for no dashboard, an object store of 100 MB and two CPUs.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import time
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from scripts.bench.episode_schedules import proportional_mib

WORKERS, CALLS = 16, 200
LEFT_AFTER_S = 10.0
MARK = "RLHF_BENCH_MARK"
ROOT = Path(__file__).parents[2]

RAY = """
import json, os, sys, time
began = time.perf_counter()
import ray
ray.init(num_cpus=2, include_dashboard=False, object_store_memory=100_000_000, log_to_driver=False, logging_level=40)

@ray.remote(num_cpus=0)
class Worker:
    def call(self, seconds=0.0):
        time.sleep(seconds)
        return os.getpid()

one = Worker.remote()
ray.get(one.call.remote())
first = time.perf_counter() - began
began = time.perf_counter()
more = [Worker.remote() for _ in range(WORKERS - 1)]
ray.get([w.call.remote() for w in more])
started = time.perf_counter() - began
calls = []
for _ in range(CALLS):
    began = time.perf_counter()
    ray.get(one.call.remote())
    calls.append(time.perf_counter() - began)
pid = ray.get(one.call.remote())
print(json.dumps({"first": first, "started": started, "calls": calls, "ready": True}), flush=True)
sys.stdin.readline()
one.call.remote(600.0)
time.sleep(0.5)
began = time.perf_counter()
ray.kill(one)
while os.path.exists(f"/proc/{pid}") and open(f"/proc/{pid}/stat").read().split()[2] != "Z":
    time.sleep(0.002)
print(json.dumps({"gone": time.perf_counter() - began}), flush=True)
sys.stdin.readline()
"""

OURS = """
import json, sys, tempfile, time
from pathlib import Path
began = time.perf_counter()
from rlhf_plugin_episodes.episode import Episode
from rlhf_core.types.messages import ToolCall
from rlhf_core.models.config import ModelConfig
from rlhf_core.models.load import load_tokenizer
from rlhf_core.types.rollouts import Prompt, PromptGroup
from scripts.bench._late_tools import agent_of, install

folder = Path(tempfile.mkdtemp())
install(folder)
tokenizer = load_tokenizer(ModelConfig(path="pocket", chat_template="hermes"))
agent, _ = agent_of(tokenizer, {"workers": WORKERS, "call_timeout_s": 1.0}, {"hang_every": 100})
question = {"role": "user", "content": "?"}

def episode(n):
    return Episode(PromptGroup(Prompt(str(n), (question,)), (1,), 1), 0, n, 100, 100)

def ask(episodes):
    return agent.answers.step([(e, [ToolCall("wait", {}, "call00000")]) for e in episodes], 0)

one = episode(100)
ask([one])
first = time.perf_counter() - began
more = [episode(100 * n + 200) for n in range(WORKERS - 1)]
began = time.perf_counter()
ask(more)
started = time.perf_counter() - began
calls = []
for _ in range(CALLS):
    began = time.perf_counter()
    ask([one])
    calls.append(time.perf_counter() - began)
print(json.dumps({"first": first, "started": started, "calls": calls}), flush=True)
sys.stdin.readline()
late = episode(7)
ask([late][:0])
began = time.perf_counter()
results = ask([late])
assert results[0][0][0].status == "timeout", results
print(json.dumps({"gone": time.perf_counter() - began - 1.0}), flush=True)
sys.stdin.readline()
"""


def measured(python: str, program: str) -> dict[str, Any]:
    """What one side costs."""
    mark = uuid.uuid4().hex
    began = time.perf_counter()
    caller = subprocess.Popen(
        [python, "-c", f"WORKERS, CALLS = {WORKERS}, {CALLS}\n{program}"],
        cwd=ROOT,
        env={**os.environ, MARK: mark},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert caller.stdin is not None
    assert caller.stdout is not None
    ready = said(caller.stdout)
    whole = time.perf_counter() - began
    others = [pid for pid in marked(mark) if pid != caller.pid]
    memory = sum(map(proportional_mib, others))
    caller.stdin.write("\n")
    caller.stdin.flush()
    gone = said(caller.stdout)["gone"]
    caller.send_signal(signal.SIGKILL)
    caller.wait()
    time.sleep(LEFT_AFTER_S)
    left = list(marked(mark))
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    return {
        "first_answer_s": round(ready["first"], 2),
        "until_ready_s": round(whole, 2),
        "further_worker_ms": round(1000 * ready["started"] / (WORKERS - 1), 1),
        "call_ms": round(1000 * statistics.median(ready["calls"]), 3),
        "processes": len(others),
        "memory_mib": round(memory),
        "hanging_worker_gone_ms": round(1000 * gone, 1),
        "left_after_sigkill": len(left),
    }


def said(lines: Iterable[str]) -> dict[str, Any]:
    """The next line of JSON; a runtime may say something of its own before."""
    for line in lines:
        if line.startswith("{"):
            return json.loads(line)
    raise RuntimeError("the measured program ended early")


def marked(mark: str) -> Iterator[int]:
    """Processes that this measurement started, however they were reparented; zombies are none."""
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            if f"{MARK}={mark}".encode() in (entry / "environ").read_bytes():
                yield int(entry.name)
        except OSError:
            continue


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ray", required=True, metavar="PYTHON", help="an interpreter that has ray")
    parser.add_argument("--write", type=Path)
    args = parser.parse_args()
    from scripts.bench.__main__ import commit, machine

    version = subprocess.run(
        [args.ray, "-c", "import ray; print(ray.__version__)"], check=True, capture_output=True, text=True
    ).stdout.strip()
    record = {
        "command": "python -m scripts.bench.ray_actors --ray PYTHON --write FILE",
        "commit": commit(),
        "machine": machine(),
        "ray": version,
        "workers": WORKERS,
        "ours": measured(sys.executable, OURS),
        "ray_actors": measured(args.ray, RAY),
        "load_average": [round(x, 2) for x in os.getloadavg()],
    }
    print(json.dumps(record, indent=2))
    if args.write:
        args.write.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
