"""Bytes and seconds of handing one version to a server's worker, by transport; no vLLM, no card.

    python plugins/rlhf-plugin-vllm/tests/transport_figures.py [MIB]

A trainer has MIB (1024) of float32 weights. A worker, another process of this machine, has them in bfloat16, and copies
what comes into its own. Seconds are from the first byte that the trainer writes to the last that the worker has; the
median of rounds in which transports take turns. What vLLM does while it loads is the same for both and left out.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from rlhf_plugin_vllm.transport import stored_weights
from rlhf_plugin_vllm.weight_files import MIB, write_buckets
from rlhf_plugin_vllm.weight_group import Receiver, Sender
from rlhf_plugin_vllm.worker import checked_files, weights_in

ROUNDS = 5
BUCKET = 128 * MIB
SHAPE = (2048, 2048)
"""Of each weight: 16 MiB in float32."""
CPU = torch.device("cpu")


def weights_of(mib: int, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    return {f"layers.{n}.weight": torch.full(SHAPE, float(n), dtype=dtype) for n in range(max(1, mib // 16))}


def work(mib: int) -> None:
    """A worker: takes a version for each line that it reads, and answers with one."""
    torch.set_num_threads(1)
    own = weights_of(mib, torch.bfloat16)
    print("ready", flush=True)
    for line in sys.stdin:
        told = json.loads(line)
        if "folder" in told:
            rows, group = weights_in(checked_files(told["folder"], told["digest"])), None
        else:
            group = Receiver(told, 0, CPU)
            rows = group.weights()
        for name, weight in rows:
            own[name].copy_(weight)
        if group is not None:
            group.close()
        print("done", flush=True)


class Worker:
    """The process, and what it is told."""

    def __init__(self, mib: int) -> None:
        words = [sys.executable, __file__, "worker", str(mib)]
        self.process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.wait_for("ready")

    def tell(self, line: str) -> None:
        assert self.process.stdin is not None
        print(line, file=self.process.stdin, flush=True)

    def wait_for(self, word: str) -> None:
        assert self.process.stdout is not None
        assert self.process.stdout.readline().strip() == word


def by_files(worker: Worker, weights: dict[str, torch.Tensor], folder: Path) -> int:
    """Returns the bytes that the worker reads."""
    digest, size = write_buckets(folder, weights, BUCKET, dtype=torch.bfloat16)
    worker.tell(json.dumps({"folder": str(folder), "digest": digest}))
    worker.wait_for("done")
    return size


def by_gloo(worker: Worker, weights: dict[str, torch.Tensor], folder: Path) -> int:
    """Returns the bytes that the worker is sent."""
    write_buckets(folder, weights, BUCKET, dtype=torch.bfloat16, hashed=False)
    sender = Sender("gloo", "127.0.0.1", 1, 60.0, CPU)
    worker.tell(sender.address.to_json())
    sender.join(lambda: worker.process.poll() is not None)
    size = sender.send(stored_weights(folder), BUCKET)
    worker.wait_for("done")
    sender.close()
    return size


def main(mib: int) -> None:
    torch.set_num_threads(1)
    weights, worker = weights_of(mib, torch.float32), Worker(mib)
    transports: dict[str, Any] = {"files": by_files, "gloo": by_gloo}
    seconds: dict[str, list[float]] = {name: [] for name in transports}
    sizes: dict[str, int] = {}
    for number in range(ROUNDS):
        for name in list(transports)[:: 1 if number % 2 else -1]:
            with tempfile.TemporaryDirectory() as folder:
                start = time.perf_counter()
                sizes[name] = transports[name](worker, weights, Path(folder))
                seconds[name].append(time.perf_counter() - start)
    worker.process.kill()
    worker.process.wait()
    for name, taken in seconds.items():
        print(f"{name:6} {sizes[name] / 1e6:8.1f} MB   median {statistics.median(taken):.2f} s   {sorted(taken)}")


if __name__ == "__main__":
    work(int(sys.argv[2])) if sys.argv[1:2] == ["worker"] else main(int(sys.argv[1]) if sys.argv[1:] else 1024)
