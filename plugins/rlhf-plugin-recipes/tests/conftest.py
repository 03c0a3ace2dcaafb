"""Stages in this process: the same commands, without seconds of imports for each."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from rlhf_core.cli.main import main

Run = Callable[..., Any]


def start_here(words: Sequence[str], log: Path, printed: Path | None) -> int:
    """As ``run_in_process``, here."""
    out = io.StringIO()
    code: Any = 0
    with contextlib.redirect_stdout(out):
        try:
            main(list(words))
        except SystemExit as end:
            code = end.code
    (printed or log).write_text(out.getvalue())
    return int(code or 0)


@pytest.fixture(name="start_here")
def start_here_fixture() -> Run:
    return start_here


@pytest.fixture
def recipe(rlhf: Run, monkeypatch: pytest.MonkeyPatch) -> Run:
    """``recipe(stages, "--dry-run", vars={...})``: writes ``r.yaml`` and runs it in an empty folder."""
    monkeypatch.setattr("rlhf_plugin_recipes.process.run_in_process", start_here)

    def run(stages: Any, *args: str, **sections: Any) -> Any:
        text = stages if isinstance(stages, str) else yaml.safe_dump({"stages": stages, **sections}, sort_keys=False)
        Path("r.yaml").write_text(text)
        return rlhf("recipe", "run", "r.yaml", *args)

    return run
