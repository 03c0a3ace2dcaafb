"""Starts a vLLM server of the run's own, and ends it with the run."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from rlhf_core.config import ConfigError
from rlhf_plugin_vllm import supervise, weight_group, worker
from rlhf_plugin_vllm.client import Client, Refused, ServerGone
from rlhf_plugin_vllm.worker import ADAPTERS, EXTENSION

TAIL = 15
"""Lines of a server's output that an error shows."""
RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""What vLLM takes for ``--max-lora-rank``."""


LAUNCHER = frozenset(
    {"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK", "ROLE_NAME",
     "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}
)  # fmt: skip
"""What a launcher of ranks sets: a server that inherits it would wait for this run's process group."""


class ServerProcess:
    """A server and its output; restarted on the same port."""

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], port: int, log: Path, start_s: float
    ) -> None:
        self.command, self.environment = [*command, "--port", str(port)], dict(environment)
        self.url, self.log, self.start_s = f"http://127.0.0.1:{port}", log, start_s
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it; :meth:`wait` waits until it answers."""
        inherited = {k: v for k, v in os.environ.items() if k not in LAUNCHER and not k.startswith("TORCHELASTIC_")}
        with self.log.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, supervise.__file__, str(os.getpid()), *self.command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**inherited, **self.environment},
                start_new_session=True,
            )

    def wait(self) -> None:
        assert self._process is not None
        ends, client = time.monotonic() + self.start_s, Client(self.url)
        try:
            while time.monotonic() < ends:
                if self._process.poll() is not None:
                    raise ServerGone(f"it ended while it started:\n{self.tail()}")
                with contextlib.suppress(ServerGone, Refused):
                    client.get("/health", seconds=5.0)
                    return
                time.sleep(0.5)
        finally:
            client.close()
        self.stop()
        raise ServerGone(f"it did not answer within {self.start_s:g} s:\n{self.tail()}")

    def restart(self) -> None:
        """End what is left of it, and start it anew."""
        self.stop()
        self.start()
        self.wait()

    def stop(self) -> None:
        """End it and everything that it started; idempotent."""
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM)
        try:
            process.wait(3 * supervise.GRACE_S)
        except subprocess.TimeoutExpired:
            process.kill()

    def tail(self) -> str:
        text = self.log.read_text(errors="replace") if self.log.is_file() else ""
        return "\n".join(text.splitlines()[-TAIL:])


def server_command(python: str, folder: Path, dtype: str, context: int, rank: int, more: Sequence[str]) -> list[str]:
    """What starts a server that can be trained with."""
    command = [python, "-m", "vllm.entrypoints.openai.api_server", "--model", str(folder), "--host", "127.0.0.1"]
    command += ["--dtype", dtype, "--max-model-len", str(context), "--logprobs-mode", "processed_logprobs"]
    command += ["--worker-extension-cls", EXTENSION, "--enable-scale-out"]
    if rank:
        command += ["--enable-lora", "--max-lora-rank", str(lora_rank(rank))]
    return [*command, *more]


def lora_rank(rank: int) -> int:
    """The least that vLLM takes for adapters of a rank."""
    fitting = next((r for r in RANKS if r >= rank), None)
    if fitting is None:
        raise ConfigError(f"model.lora.r {rank} is more than vLLM takes ({RANKS[-1]})", fix="lower model.lora.r")
    return fitting


def server_environment(folder: Path) -> dict[str, str]:
    """Variables of a server, among them the way to the extension alone: the toolkit's other packages stay away."""
    package = folder / "extension" / "rlhf_plugin_vllm"
    package.mkdir(parents=True, exist_ok=True)
    (package / "__init__.py").write_text("")
    for module in (worker, weight_group):
        shutil.copy(str(module.__file__), package)
    paths = [str(package.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {
        ADAPTERS: str(folder / "adapters"),
        "PYTHONPATH": os.pathsep.join(paths),
        "VLLM_SERVER_DEV_MODE": "1",
        "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1",
        "VLLM_NO_USAGE_STATS": "1",
    }


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
