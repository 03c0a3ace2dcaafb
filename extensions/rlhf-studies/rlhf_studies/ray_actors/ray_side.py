"""Ray's actors; runs where ``ray`` is installed and this toolkit is not."""

import time

BEGAN = time.perf_counter()

import json  # noqa: E402
import os  # noqa: E402
import sys  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402


def main() -> None:
    workers, count = map(int, sys.argv[1:])
    import ray as runtime  # pyright: ignore[reportMissingImports]

    ray: Any = runtime
    quiet = {"include_dashboard": False, "log_to_driver": False, "logging_level": 40}
    ray.init(num_cpus=2, object_store_memory=100_000_000, **quiet)

    @ray.remote(num_cpus=0)
    class Worker:
        def call(self, seconds: float = 0.0) -> int:
            time.sleep(seconds)
            return os.getpid()

    def timed(*actors: Any) -> float:
        began = time.perf_counter()
        ray.get([actor.call.remote() for actor in actors])
        return time.perf_counter() - began

    one: Any = Worker.remote()
    pid = ray.get(one.call.remote())
    first, began = time.perf_counter() - BEGAN, time.perf_counter()
    more = [Worker.remote() for _ in range(workers - 1)]
    timed(*more)
    started = time.perf_counter() - began
    calls = [timed(one) for _ in range(count)]
    print(json.dumps({"first": first, "started": started, "calls": calls}), flush=True)
    sys.stdin.readline()
    one.call.remote(600.0)
    time.sleep(0.5)
    began, state = time.perf_counter(), Path(f"/proc/{pid}/stat")
    ray.kill(one)
    while state.exists() and state.read_text().split()[2] != "Z":
        time.sleep(0.002)
    print(json.dumps({"gone": time.perf_counter() - began}), flush=True)
    sys.stdin.readline()


if __name__ == "__main__":
    main()
