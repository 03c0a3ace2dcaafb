"""The command line, for tests of whole runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str]]:
    """``command("train", ...)``: exit code and stderr of `rlhf` in this process, with empty caches."""
    from rlhf_core.cli.main import main

    monkeypatch.setenv("RLHF_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("RLHF_HOME", str(tmp_path / "home"))

    def run(*args: object) -> tuple[int, str]:
        capsys.readouterr()
        with pytest.raises(SystemExit) as caught:
            main([str(a) for a in args])
        return int(caught.value.code or 0), capsys.readouterr().err

    return run
