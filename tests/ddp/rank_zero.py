"""Rank 0 works alone for longer than the deadline of a collective: run by torchrun or as two plain processes.

Arguments: what rank 0 does (``work``, ``fail``, ``hang``), for how many seconds, and the deadline.
"""

from __future__ import annotations

import os
import sys
import time

from rlhf_core.distributed.accelerated import AcceleratedStrategy
from rlhf_core.distributed.rank_zero import alone
from rlhf_core.types.errors import RlhfError


def main() -> int:
    does, seconds, timeout_s = sys.argv[1], float(sys.argv[2]), float(sys.argv[3])
    strategy = AcceleratedStrategy(2, "cpu", timeout_s)
    strategy.barrier("both ranks")
    began = time.monotonic()
    try:
        with alone(strategy, "benchmarks"), alone(strategy, "the first of them"):
            if strategy.rank == 0:
                print(f"pid {os.getpid()}", flush=True)
                time.sleep(seconds)
                if does == "fail":
                    raise OSError("no space left")
        assert strategy.gather_objects(strategy.rank) == [0, 1]
        print(f"rank {strategy.rank} went on after {time.monotonic() - began:.1f} s", flush=True)
    except (RlhfError, OSError) as error:
        waited_s = time.monotonic() - began
        print(f"error of rank {strategy.rank} after {waited_s:.1f} s: {type(error).__name__}: {error}", flush=True)
        return 1
    strategy.close()
    return 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # what torch keeps for a lost rank would wait for it
