"""A model without weights is tried on its shards; what whole loading refuses or treats otherwise is refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import BertConfig, BertLMHeadModel, GraniteConfig, GraniteForCausalLM

from rlhf_core.distributed.accelerated import AcceleratedStrategy
from rlhf_core.models import ModelConfig, ModelError
from rlhf_core.models.load import load_policy
from rlhf_core.rl import OnlineTrainerConfig
from rlhf_core.training import PolicyModule
from rlhf_core.training.forward import ALL
from rlhf_core.training.forward_check import probe_forward_options, try_transformer
from rlhf_core.training.micro_batches import NoGradForward, micro_batches_of_size
from rlhf_core.training.optimizer import prepare_to_learn
from rlhf_core.training.rollout_batch import TrainingSample
from rlhf_plugin_fsdp.config import FsdpConfig
from rlhf_plugin_fsdp.strategy import Fsdp
from rlhf_plugin_reward.net import RewardNet, new_head
from rlhf_plugin_reward.pairs import PairModule

SIZES: dict[str, Any] = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
CONFIG = OnlineTrainerConfig(name="t")


@pytest.fixture
def strategy() -> Iterator[Fsdp]:
    made = Fsdp(FsdpConfig(device="cpu"), AcceleratedStrategy(1, "cpu"))
    yield made
    made.close()


def options_of(strategy: Fsdp, path: str) -> Any:
    module = PolicyModule(load_policy(ModelConfig(path=path), weights=False).model, 1.0, ALL)
    assert next(module.parameters()).is_meta
    prepared, _ = prepare_to_learn(strategy, module, CONFIG.optimizer)
    return probe_forward_options(strategy, prepared, path, packing_required=False)


def test_the_pocket_model_is_packed(strategy: Fsdp) -> None:
    assert options_of(strategy, "pocket") == ALL


def bert(vocabulary: int) -> Any:
    return BertLMHeadModel(BertConfig(vocab_size=vocabulary, **SIZES))


def granite(vocabulary: int) -> Any:
    return GraniteForCausalLM(GraniteConfig(vocab_size=vocabulary, logits_scaling=4.0, **SIZES))


def test_a_model_that_scales_its_logits_learns_from_data_on_shards(tmp_path: Path, strategy: Fsdp) -> None:
    tokenizer = load_policy(ModelConfig(path="pocket")).tokenizer
    granite(len(tokenizer)).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    config = ModelConfig(path=str(tmp_path))
    sample, cut = (
        TrainingSample("a", (3, 4, 5), (6, 7), np.ones(2, bool), np.ones(2, np.float32)),
        micro_batches_of_size(1),
    )
    module = PolicyModule(load_policy(config, weights=False).model)
    prepared, _ = prepare_to_learn(strategy, module, CONFIG.optimizer)
    try_transformer(strategy, prepared, str(tmp_path))
    rows = NoGradForward(strategy, prepared).rows([sample], cut, lambda m, micro: m.measure(micro, {"logprobs"}))
    with torch.no_grad():
        (whole,) = PolicyModule(load_policy(config).model).measure([sample], {"logprobs"})
    assert rows[0][0] == pytest.approx(whole.logprobs_T, abs=1e-6)


@pytest.mark.parametrize(
    "module_of", [PolicyModule, lambda model: PairModule(RewardNet(model.bert, new_head(16, 1, 0)))]
)
def test_an_encoder_does_not_learn_from_data(tmp_path: Path, strategy: Fsdp, module_of: Any) -> None:
    tokenizer = load_policy(ModelConfig(path="pocket")).tokenizer
    bert(len(tokenizer)).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    module = module_of(load_policy(ModelConfig(path=str(tmp_path)), weights=False).model)
    prepared, _ = prepare_to_learn(strategy, module, CONFIG.optimizer)
    with pytest.raises(ModelError, match="an encoder"):
        try_transformer(strategy, prepared, str(tmp_path))


@pytest.mark.parametrize(("make", "said"), [(bert, "an encoder"), (granite, "cannot be trained on shards")])
def test_what_only_weights_show_is_refused(tmp_path: Path, strategy: Fsdp, make: Any, said: str) -> None:
    tokenizer = load_policy(ModelConfig(path="pocket")).tokenizer
    make(len(tokenizer)).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(ModelError, match=said):
        options_of(strategy, str(tmp_path))
