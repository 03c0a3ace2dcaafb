"""Fixtures of all tests: the core's, the plugins' and the evaluation's."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.fork_server import Client, install

# Tests start hundreds of processes. Where the environment forbids bytecode files, each of them would compile torch
# and transformers anew: three times the work of a short training run.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
# Models this small only wait for their threads, and the tests share the cores already.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Nobody looks at the pages of hundreds of runs. The tests of the page itself switch it on.
os.environ.setdefault("RLHF_REPORT", "0")

# What `rlhf` sets for its libraries: set only by the first command that a test runs in this process, no later process
# would have the environment of the fork server, and all of them would import torch anew.
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")

if sys.platform == "linux" and os.environ.get("RLHF_FORK_SERVER") != "0":
    install(Client(os.environ), Client(os.environ, workers=True))


# No test outlives a loss of power, and one that writes checkpoints would wait for the disk hundreds of times.
os.fsync = lambda fd: None


def pytest_collection_finish() -> None:
    """Of the modules of torch and transformers nothing is ever freed: a collection need not look at them."""
    gc.collect()
    gc.freeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest tests come first, of a real model and then all slow ones: none is left to run alone at the end."""
    items.sort(key=lambda item: (not item.nodeid.startswith("tests/real/"), item.get_closest_marker("slow") is None))


@pytest.fixture(scope="session")
def test_data() -> Path:
    """The folder of public data sets; the test is skipped without one, and fails if a file in it is missing."""
    folder = os.environ.get("RLHF_TEST_DATA")
    if not folder:
        pytest.skip("RLHF_TEST_DATA is not set: no real data to test against")
    return Path(folder)


class Ran(NamedTuple):
    """What one call of the command did."""

    code: int
    out: str
    err: str


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Ran]:
    """``call("runs", "list")``: `rlhf` itself, in this process, with empty caches."""
    from rlhf_core.cli.main import main

    monkeypatch.setenv("RLHF_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("RLHF_HOME", str(tmp_path / "home"))

    def run(*args: object) -> Ran:
        capsys.readouterr()
        with pytest.raises(SystemExit) as caught:
            main([str(a) for a in args])
        text = capsys.readouterr()
        return Ran(int(caught.value.code or 0), text.out, text.err)

    return run


@pytest.fixture
def rlhf(call: Callable[..., Ran], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Ran]:
    """``call``, inside an empty folder."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return call


@pytest.fixture
def command(call: Callable[..., Ran]) -> Callable[..., tuple[int, str]]:
    """``command("train", ...)``: exit code and stderr of ``call``."""

    def run(*args: object) -> tuple[int, str]:
        ran = call(*args)
        return ran.code, ran.err

    return run


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    """A real Chromium, driven by selenium; skipped where there is none."""
    from scripts.chromium import missing, open_chromium

    if missing():
        pytest.skip(missing())
    browser = open_chromium()
    yield browser
    browser.quit()


@pytest.fixture
def browser(chromium: Any) -> Iterator[Any]:
    """The browser at 1400 x 1000 points, in light colours; the test fails if its pages log an error."""
    from scripts.chromium import problems, show_as

    show_as(chromium, 1400, 1000)
    problems(chromium)
    yield chromium
    errors = problems(chromium)
    chromium.get("about:blank")
    assert errors == []
