"""A real run, and a dashboard over copies of it."""

from __future__ import annotations

import fcntl
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import rlhf_core
from rlhf_plugin_dashboard.serve import Dashboard
from rlhf_plugin_dashboard.site import Site

SETTINGS = {
    "trainer.steps": 4,
    "trainer.rollout_batch_size": 8,
    "trainer.eval_samples": 2,
    "trainer.eval_every": 4,
    "trainer.sampling.max_tokens": 8,
    "threads": 1,
    "monitors": [],  # a row of metrics.jsonl is a step here
}


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of four steps; not to be changed."""
    rows = [{"prompt": f"What is {a} + {b}?", "answer": str(a + b)} for a in range(5) for b in range(5)]
    folder = tmp_path_factory.mktemp("dashboard") / "first"
    rlhf_core.train("grpo", dataset=rows, reward="verifier", settings=SETTINGS, run_dir=folder, progress=False)
    return folder


@pytest.fixture
def root(finished: Path, tmp_path: Path) -> Path:
    """A folder of two runs that a test may change, one of them deeper."""
    for name in ("first", "sweep/second"):
        shutil.copytree(finished, tmp_path / "runs" / name, ignore=shutil.ignore_patterns("final", "checkpoints"))
    return tmp_path / "runs"


@pytest.fixture
def serve() -> Iterator[Callable[[Path], Dashboard]]:
    """``serve(folder)``: a dashboard on a free port, in a thread."""
    servers: list[Dashboard] = []

    def start(folder: Path) -> Dashboard:
        server = Dashboard(Site(folder), 0)
        servers.append(server)
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        return server

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


class Growing:
    """A run whose files grow again, row by row of the real one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows = {name: (path / f"{name}.jsonl").read_bytes().splitlines(True) for name in ("metrics", "trace")}
        for name in self.rows:
            (path / f"{name}.jsonl").write_bytes(b"")
        (path / "summary.json").unlink()
        self._lock = os.open(path, os.O_RDONLY)
        fcntl.flock(self._lock, fcntl.LOCK_EX)

    def kill(self) -> None:
        """What a run's process holds is gone with it."""
        os.close(self._lock)

    def append(self, stream: str, count: int) -> None:
        """The next rows of a stream."""
        with (self.path / f"{stream}.jsonl").open("ab") as file:
            for row in self.rows[stream][:count]:
                file.write(row)
        del self.rows[stream][:count]

    def append_half(self, stream: str) -> None:
        """Half of the next row, as a reader may find it."""
        row = self.rows[stream][0]
        with (self.path / f"{stream}.jsonl").open("ab") as file:
            file.write(row[: len(row) // 2])
        self.rows[stream][0] = row[len(row) // 2 :]


@pytest.fixture
def growing(root: Path) -> Growing:
    """The first run, begun anew."""
    return Growing(root / "first")
