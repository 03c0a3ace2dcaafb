"""One sandbox for all tests that do not break theirs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from rlhf_core.api import ConfigError, Prompt, Sample
from rlhf_plugin_code.sandbox import Limits, Sandbox

if sys.platform != "linux":
    pytest.skip("the sandbox needs Linux", allow_module_level=True)


@pytest.fixture(scope="session")
def sandbox() -> Iterator[Sandbox]:
    """A warm sandbox with short deadlines; tests are skipped where the machine offers no isolation."""
    made = Sandbox(Limits(timeout_s=3.0, memory_mb=256))
    try:
        made.start()
    except ConfigError as error:
        pytest.skip(f"no isolation on this machine: {error.why}")
    yield made
    made.close()


@pytest.fixture(scope="session")
def sample() -> Callable[..., Sample]:
    """``sample(completion, test_list=[...])``: a completion of a row with these columns."""

    def make(completion: str, answer: str | None = None, **meta: Any) -> Sample:
        return Sample(Prompt("rows/1", ({"role": "user", "content": "Write f."},), answer, "rows", meta), completion)

    return make
