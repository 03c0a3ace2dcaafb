"""Runs the command with something wrong and looks at what it says and leaves."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def refused(rlhf: Callable[..., Any], quick: tuple[str, ...]) -> Callable[..., str]:
    """``refused(*options, says=(...))``: exit code 2, one message with every part, no traceback, nothing written."""

    def check(*options: object, says: tuple[str, ...], args: tuple[str, ...] = quick) -> str:
        before = sorted(Path("..").rglob("*"))
        out = rlhf(*args, *options)
        assert out.code == 2, out.err
        for part in says:
            assert part in out.err, f"{part!r} is not in: {out.err}"
        assert out.err.count("error: ") == 1
        assert "Traceback" not in out.err
        assert "Traceback" not in out.out
        assert sorted(Path("..").rglob("*")) == before, "something was written"
        return out.err

    return check


@pytest.fixture
def model_folder(tmp_path: Path) -> Path:
    """A copy of the pocket model, to be broken."""
    from rlhf_plugin_pocket import weights_path

    folder = tmp_path / "model"
    shutil.copytree(weights_path(), folder)
    return folder
