"""`rlhf dashboard` itself: what it prints, how it ends, what it refuses."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

COMMAND = [sys.executable, "-m", "rlhf_core.cli.main", "dashboard"]


def heed_ctrl_c() -> None:
    """What a shell starts in the background ignores SIGINT, and so does everything started from there."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_it_prints_its_address_serves_and_ends_cleanly(root: Path, how: signal.Signals) -> None:
    command = [*COMMAND, str(root), "--port", "0", "--no-open"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, preexec_fn=heed_ctrl_c, **pipes) as process:  # type: ignore[call-overload]
        assert process.stdout is not None
        url = re.search(r"http://127\.0\.0\.1:[1-9]\d*/\S{32}/", process.stdout.readline())
        assert url
        with urllib.request.urlopen(f"{url.group()}api/runs", timeout=10) as answer:
            assert b'"first"' in answer.read()
        process.send_signal(how)
        out, err = process.communicate(timeout=10)
    assert (process.returncode, err) == (0, "")
    assert "ended" in out


def test_a_port_in_use_is_refused(root: Path, command: Callable[..., tuple[int, str]]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, err = command("dashboard", root, "--port", port, "--no-open")
    assert code == 2
    assert f"port {port} cannot be used" in err
    assert "--port 0" in err


@pytest.mark.parametrize("port", ["-1", "65536", "x"])
def test_what_is_no_port_is_refused(root: Path, command: Callable[..., tuple[int, str]], port: str) -> None:
    assert command("dashboard", root, "--port", port)[0] == 2


def test_a_folder_without_runs_is_refused(tmp_path: Path, command: Callable[..., tuple[int, str]]) -> None:
    code, err = command("dashboard", tmp_path)
    assert code == 2
    assert "holds no run" in err
    assert "rlhf train" in err
    assert "there is no folder" in command("dashboard", tmp_path / "nowhere")[1]
    (tmp_path / "file").touch()
    assert command("dashboard", tmp_path / "file")[0] == 2
