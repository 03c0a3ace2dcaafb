"""A saved reward model whose files are not what was written is refused, whatever it consists of."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rlhf_core.data import whole_folder
from rlhf_core.models import ModelConfig, ModelError, load_policy
from rlhf_plugin_reward.classifier_files import load_classifier, save_classifier
from rlhf_plugin_reward.config import check_reward_folder
from rlhf_plugin_reward.encoding import View
from rlhf_plugin_reward.net import fresh_net
from rlhf_plugin_reward.store import load_shared, save_shared


def flip_one_bit(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)


@pytest.mark.parametrize("file", ["heads.safetensors", "trunk/model.safetensors"])
def test_a_shared_trunk_with_heads(tmp_path: Path, file: str) -> None:
    policy = load_policy(ModelConfig())
    with whole_folder(tmp_path / "rm") as folder:
        save_shared(fresh_net(policy, 2, 0, "trunk"), policy.tokenizer, folder)
    load_shared(tmp_path / "rm", {})
    flip_one_bit(tmp_path / "rm" / file)
    with pytest.raises(ModelError, match=f"{file} is not what was written"):
        load_shared(tmp_path / "rm", {})


def test_a_classifier(tmp_path: Path) -> None:
    policy = load_policy(ModelConfig())
    with whole_folder(tmp_path / "rm") as folder:
        save_classifier(fresh_net(policy, 1, 0, "none"), policy.tokenizer, folder, view=View())
    load_classifier(str(tmp_path / "rm"))
    flip_one_bit(tmp_path / "rm" / "model.safetensors")
    with pytest.raises(ModelError, match=r"model\.safetensors is not what was written"):
        load_classifier(str(tmp_path / "rm"))


def test_a_language_model_is_no_reward_model_before_anything_is_loaded(
    tmp_path: Path, call: Callable[..., Any]
) -> None:
    load_policy(ModelConfig(path="pocket")).model.save_pretrained(tmp_path / "policy")
    run = ("train", "--algo", "grpo", "--reward", "bradley_terry", "--dataset", "pocket/arithmetic", "--dry-run")
    ran = call(*run, "--set", f"reward.path={tmp_path / 'policy'}")
    assert ran.code == 2
    assert "is not a trained reward model but a language model" in ran.err
    assert "LlamaForCausalLM" in ran.err


@pytest.mark.parametrize("text", ['{"architectures"', "[1]", "\xff"])
def test_a_broken_configuration_is_named_before_anything_is_loaded(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text, "latin-1")
    with pytest.raises(ModelError, match="holds no reward model"):
        check_reward_folder(str(tmp_path))
