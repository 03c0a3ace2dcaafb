"""One sandbox for all tests that do not break theirs, and verifiers that use it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from rlhf_core.config import BuildContext, ConfigError
from rlhf_core.data import Prompt
from rlhf_core.plugins.registry import Registry
from rlhf_core.rewards import Sample
from rlhf_plugin_code.sandbox import Limits, Sandbox

if sys.platform != "linux":
    pytest.skip("the sandbox needs Linux", allow_module_level=True)


@pytest.fixture(scope="session")
def sandbox() -> Iterator[Sandbox]:
    """A warm sandbox with short deadlines; tests are skipped where the machine offers no isolation."""
    warm = Sandbox(Limits(timeout_s=3.0, memory_mb=256))
    try:
        warm.start()
    except ConfigError as error:
        pytest.skip(f"no isolation on this machine: {error.why}")
    yield warm
    warm.close()


@pytest.fixture(scope="session")
def sample() -> Callable[..., Sample]:
    """``sample(completion, test_list=[...])``: a completion of a row with these columns."""

    def make(completion: str, answer: str | None = None, **meta: Any) -> Sample:
        return Sample(Prompt("rows/1", ({"role": "user", "content": "Write f."},), answer, "rows", meta), completion)

    return make


@pytest.fixture(scope="module")
def verify(sandbox: Sandbox) -> Callable[..., Any]:
    """``verify(Config(...), sample)`` in the warm sandbox with the config's limits, so that a test costs no start."""
    registry = Registry(disabled=())
    ctx = BuildContext(config=None, registry=registry, seed=0)  # pyright: ignore[reportArgumentType]

    def run(config: Any, sample: Sample) -> Any:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Sandbox, "start", lambda _: None)
            verifier = config.build(ctx)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sandbox, "limits", verifier.sandbox.limits)
            verifier.sandbox = sandbox
            return verifier.verify(sample)

    return run
