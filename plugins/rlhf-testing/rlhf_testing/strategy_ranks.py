"""Conformance of strategies on several ranks, which are processes of this machine."""

from __future__ import annotations

import json
import os
import pickle
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from rlhf_core.config import ComponentConfig
from rlhf_testing.report import require

MODULE = "rlhf_testing.strategy_rank"


def check_strategy_on_ranks(config: ComponentConfig, ranks: int = 2, limit_s: float = 300.0) -> None:
    """Check a strategy on several ranks, each a process with gloo.

    Sums, gathers and exchanges are right and in rank order; gradients, norms, clips and updates of uneven shares, and
    of a rank without items, are those of one process; every rank has the same weights; whole weights and the
    optimizer's state; forwards without gradient; weights that are read after ``prepare``; collectives of a second
    thread; rank 0 alone at work; a rank that ends leaves nobody waiting. Takes some seconds.

    Example:
        check_strategy_on_ranks(MyStrategyConfig(device="cpu"))

    Args:
        config: the strategy's configuration; its class is in a module that the ranks can import.
        ranks: at least 2.
        limit_s: seconds after which ranks that are still there are ended.
    """
    require(ranks > 1, config, "there are several ranks", f"{ranks}", "check_strategy checks one process")
    with tempfile.TemporaryDirectory(prefix="rlhf-kit-") as name:
        folder = Path(name)
        (folder / "config").write_bytes(pickle.dumps(config))
        processes = [_start(folder, rank, ranks) for rank in range(ranks)]
        try:
            _wait(config, processes, folder, limit_s)
        finally:
            for process in processes:
                process.kill()
                process.wait()


def _start(folder: Path, rank: int, ranks: int) -> subprocess.Popen[bytes]:
    port = folder / "port"
    if not port.is_file():
        port.write_text(str(_free_port()))
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("TORCHELASTIC_", "ACCELERATE_"))}
    env = {
        **inherited,
        "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
        "OMP_NUM_THREADS": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port.read_text(),
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
    }
    with (folder / f"output-{rank}").open("wb") as output:
        return subprocess.Popen([sys.executable, "-m", MODULE, str(folder)], env=env, stdout=output, stderr=output)


def _free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def _wait(config: ComponentConfig, processes: list[subprocess.Popen[bytes]], folder: Path, limit_s: float) -> None:
    """Until all have ended, or one with an error."""
    ends = time.monotonic() + limit_s
    while time.monotonic() < ends:
        codes = [process.poll() for process in processes]
        if any(codes):
            raise AssertionError(_said(config, codes, folder))
        if all(code == 0 for code in codes):
            early = [rank for rank in range(len(codes)) if not (folder / f"report-{rank}").is_file()]
            require(not early, config, "a rank ends when all is checked", f"ranks {early} ended before")
            return
        time.sleep(0.05)
    stages = [_text(folder / f"stage-{rank}") or "starting" for rank in range(len(processes))]
    seen = "; ".join(f"rank {rank}: {stage}" for rank, stage in enumerate(stages))
    require(False, config, f"the ranks are done within {limit_s:.0f} s", seen, "a collective that not all ranks enter?")


def _said(config: ComponentConfig, codes: list[int | None], folder: Path) -> str:
    """Why a rank ended: a property before what another complains of, because that rank is gone."""
    time.sleep(0.5)
    rows: list[tuple[int, dict[str, Any]]] = [
        (rank, json.loads(text)) for rank in range(len(codes)) if (text := _text(folder / f"report-{rank}"))
    ]
    for _, row in sorted(rows, key=lambda pair: float(pair[1].get("time", 0.0))):
        if "text" in row:
            return row["text"] if "trace" not in row else _raised(config, row)
    rank = next(n for n, code in enumerate(codes) if code)
    output = _text(folder / f"output-{rank}")[-2000:]
    return f"{type(config).__name__} ('{config.name}'): ranks end without an error\n  seen: rank {rank} says {output}"


def _raised(config: ComponentConfig, row: dict[str, Any]) -> str:
    return f"{type(config).__name__} ('{config.name}'): ranks raise nothing\n  seen: {row['text']}\n{row['trace']}"


def _text(file: Path) -> str:
    return file.read_text(errors="replace") if file.is_file() else ""
