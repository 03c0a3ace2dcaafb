"""Untrained models of steps, made once."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlhf_core.models import ModelConfig, load_policy
from rlhf_plugin_prm.store import save_model
from rlhf_plugin_reward.net import fresh_net


@pytest.fixture(scope="session")
def prm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A process reward model that has learned nothing, as a folder."""
    folder = tmp_path_factory.mktemp("models") / "prm"
    policy = load_policy(ModelConfig())
    save_model(fresh_net(policy, 1, 0, "none"), policy.tokenizer, folder, "steps", "newline")
    return folder


@pytest.fixture(scope="session")
def orm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same net as an outcome model."""
    folder = tmp_path_factory.mktemp("models") / "orm"
    policy = load_policy(ModelConfig())
    save_model(fresh_net(policy, 1, 0, "none"), policy.tokenizer, folder, "outcome", "newline")
    return folder
