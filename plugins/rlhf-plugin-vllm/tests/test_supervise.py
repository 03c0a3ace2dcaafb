"""Servers of a run end with it, also when it is killed."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rlhf_plugin_vllm.client import ServerGone
from rlhf_plugin_vllm.server import ServerProcess, server_command
from tests.waiting import alive, wait_for

SERVER = """
import http.server, os, subprocess, sys
child = subprocess.Popen(["sleep", "300"])
print(os.getpid(), child.pid, flush=True)
class Healthy(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.send_header("content-length", "0"); self.end_headers()
    def log_message(self, *_): pass
http.server.HTTPServer(("127.0.0.1", int(sys.argv[-1])), Healthy).serve_forever()
"""
TRAINER = """
import sys, time
from pathlib import Path
from rlhf_plugin_vllm.server import ServerProcess, free_port
server = ServerProcess([sys.executable, sys.argv[1]], {}, free_port(), Path(sys.argv[2]), 60.0)
server.start(); server.wait(); print("up", flush=True); time.sleep(300)
"""


def test_a_killed_trainer_leaves_no_server(tmp_path: Path) -> None:
    (tmp_path / "server.py").write_text(SERVER)
    command = [sys.executable, "-c", TRAINER, str(tmp_path / "server.py"), str(tmp_path / "log")]
    trainer = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert trainer.stdout is not None
    assert trainer.stdout.readline() == "up\n"
    pids = [int(word) for word in (tmp_path / "log").read_text().split()]
    assert all(alive(pid) for pid in pids)
    trainer.send_signal(signal.SIGKILL)
    trainer.wait()
    wait_for(lambda: not any(map(alive, pids)), "the end of the server")


def test_a_server_that_does_not_start_shows_its_output(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "import sys; sys.exit('no such model')"]
    server = ServerProcess(command, {}, 1, tmp_path / "log", 30.0)
    server.start()
    with pytest.raises(ServerGone, match="no such model"):
        server.wait()
    server.stop()


def test_adapters_get_a_rank_that_vllm_takes(tmp_path: Path) -> None:
    command = server_command("python", tmp_path, "float32", 64, 4, ["--seed=1"])
    assert command[command.index("--max-lora-rank") + 1] == "8"
    assert command[-1] == "--seed=1"
    assert "--enable-lora" not in server_command("python", tmp_path, "float32", 64, 0, [])


def test_a_server_does_not_see_the_launcher_of_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would wait for a process group that is not its own."""
    for name in ("RANK", "MASTER_ADDR", "TORCHELASTIC_USE_AGENT_STORE", "KEPT"):
        monkeypatch.setenv(name, "1")
    tell = (
        "import os; print({'RANK', 'MASTER_ADDR', 'TORCHELASTIC_USE_AGENT_STORE', 'KEPT', 'ADDED'} & set(os.environ))"
    )
    server = ServerProcess([sys.executable, "-c", tell], {"ADDED": "1"}, 0, tmp_path / "log", 30.0)
    server.start()
    with pytest.raises(ServerGone):
        server.wait()
    assert set((tmp_path / "log").read_text().split("{")[1].split("}")[0].replace("'", "").split(", ")) == {
        "ADDED",
        "KEPT",
    }
