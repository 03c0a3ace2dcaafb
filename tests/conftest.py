"""Fixtures that several folders of tests share."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

QUICK = (
    "train",
    "--algo",
    "grpo",
    "--reward",
    "verifier",
    "--dataset",
    "pocket/arithmetic",
    "--set",
    "dataset.limit=64",  # reading and encoding all rows takes half of such a run
    "--set",
    "reward.workers=1",
    "--set",
    "threads=1",
    "--set",
    "trainer.steps=3",
    "--set",
    "trainer.rollout_batch_size=16",
    "--set",
    "trainer.eval_samples=4",
)
"""A training run of a few seconds."""


@pytest.fixture(scope="session")
def quick() -> tuple[str, ...]:
    """Arguments of a training run of a few seconds."""
    return QUICK


@pytest.fixture(scope="session")
def finished_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of three steps; not to be changed."""
    from rlhf_core.cli.main import main

    folder = tmp_path_factory.mktemp("finished") / "run"
    with pytest.raises(SystemExit) as caught:
        main([*QUICK, "--run-dir", str(folder), "--json"])
    assert caught.value.code == 0
    return folder


@pytest.fixture(scope="session")
def reward_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of one step that trained a reward model; not to be changed."""
    from rlhf_core.cli.main import main

    folder = tmp_path_factory.mktemp("rewards") / "run"
    sizes = ("max_steps=1", "batch_size=4", "eval_samples=0")
    settings = [text for size in sizes for text in ("--set", f"trainer.{size}")]
    with pytest.raises(SystemExit) as caught:
        main(["train", "--algo", "reward_model", "--run-dir", str(folder), "--set", "dataset.limit=16", *settings])
    assert caught.value.code == 0
    return folder


@pytest.fixture
def hub_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A hub id with a local copy as huggingface_hub keeps it, and nothing else to be had."""
    from huggingface_hub import constants

    from rlhf_core.models.sources import resolve_model

    revision = "0123456789abcdef0123456789abcdef01234567"
    repository = tmp_path / "hub" / "models--org--tiny"
    shutil.copytree(resolve_model("pocket").path, repository / "snapshots" / revision)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(revision)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    return "org/tiny"
