"""vLLM in the training process: what it cannot be used with is said before a model is loaded, with exit code 2."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rlhf_core.config import ConfigError
from rlhf_core.models import ModelConfig
from rlhf_core.training import SamplingSettings
from rlhf_plugin_vllm.colocated_config import ColocatedConfig


def plan(
    world_size: int = 1, strategy: str = "auto", ahead: int = 0, model: ModelConfig | None = None, **sampling: Any
) -> Any:
    trainer = SimpleNamespace(sampling=SamplingSettings(**sampling), batches_ahead=ahead)
    config = SimpleNamespace(trainer=trainer, model=model or ModelConfig(), strategy=SimpleNamespace(name=strategy))
    return SimpleNamespace(config=config, world_size=world_size, rank=0, dry_run=False)


def install(folder: Path, monkeypatch: pytest.MonkeyPatch, version: str, code: str = "LLM = object") -> None:
    """A distribution of this name beside the toolkit, here and in processes started from here."""
    (folder / "vllm").mkdir()
    (folder / "vllm" / "__init__.py").write_text(code)
    (folder / f"vllm-{version}.dist-info").mkdir()
    (folder / f"vllm-{version}.dist-info" / "METADATA").write_text(f"Name: vllm\nVersion: {version}\n")
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("PYTHONPATH", str(folder), prepend=os.pathsep)
    importlib.invalidate_caches()


@pytest.mark.parametrize(
    ("config", "settings", "words"),
    [
        ({}, {"world_size": 2, "strategy": "acme"}, "not made for strategy 'acme'"),
        ({"arguments": {"tensor_parallel_size": 2}}, {}, "tensor_parallel_size cannot be set"),
        ({}, {"ahead": 1}, "cannot sample ahead"),
        ({}, {"min_tokens": 3}, "min_tokens"),
        ({"arguments": {"logprobs_mode": "raw_logprobs"}}, {}, "logprobs_mode cannot be set"),
    ],
)
def test_settings_that_cannot_be_used_are_refused(config: Any, settings: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        ColocatedConfig(**config).preflight(plan(**settings))
    assert caught.value.exit_code == 2


def test_an_untested_version_is_refused_unless_it_is_allowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch, "0.9.1")
    with pytest.raises(ConfigError, match=r"not tested with vLLM 0\.9\.1"):
        ColocatedConfig().preflight(plan())
    ColocatedConfig(allow_untested=True).preflight(plan())


def test_a_vllm_that_does_not_import_is_refused_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, monkeypatch, "0.32.0", "raise ImportError('libcudart.so.13: cannot open shared object file')")
    with pytest.raises(ConfigError, match=r"vLLM 0\.32\.0 cannot be imported") as caught:
        ColocatedConfig().preflight(plan())
    assert "libcudart.so.13" in caught.value.why


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("vllm") is not None, reason="vLLM is installed here")
def test_a_run_without_vllm_ends_before_a_model_is_looked_for(tmp_path: Path) -> None:
    words = ["--algo", "grpo", "--reward", "verifier", "--dataset", "pocket/arithmetic", "--model", "/no/such/model"]
    command = [sys.executable, "-m", "rlhf_core.cli.main", "train", *words, "--set", "rollout.name=vllm_colocated"]
    result = subprocess.run([*command, "--run-dir", str(tmp_path / "run")], capture_output=True, text=True, timeout=120)
    assert result.returncode == 2
    assert "vLLM is not installed beside the toolkit" in result.stderr
    assert "rollout.python" in result.stderr
    assert not (tmp_path / "run").exists()
