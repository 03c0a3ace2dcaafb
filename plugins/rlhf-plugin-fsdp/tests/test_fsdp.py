"""The strategy on one process, and what its settings cannot be. Two ranks: tests/ddp/test_fsdp.py."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.distributed.tensor import DTensor

from rlhf_core.config import ConfigError
from rlhf_core.distributed import decoder_layers
from rlhf_core.distributed.accelerated import AcceleratedStrategy
from rlhf_core.models import ModelConfig, load_policy
from rlhf_core.rl import OnlineTrainerConfig
from rlhf_plugin_dpo.config import DpoConfig
from rlhf_plugin_dpo.iterative_config import IterativeDpoConfig
from rlhf_plugin_dpo.unpaired_config import KtoConfig
from rlhf_plugin_fsdp.config import FsdpConfig
from rlhf_plugin_fsdp.strategy import Fsdp
from rlhf_plugin_ppo.config import GaeConfig, PpoConfig
from rlhf_plugin_prm.config import OrmConfig, PrmConfig
from rlhf_plugin_reward.config import RewardModelConfig
from rlhf_plugin_rubric.config import RubricTrainerConfig
from rlhf_plugin_sft.config import SftConfig
from rlhf_testing import check_strategy, check_strategy_on_ranks

LORA: Any = {"r": 4}


def context(world_size: int = 2, trainer: Any = None, lora: Any = None) -> Any:
    run = SimpleNamespace(
        trainer=trainer or OnlineTrainerConfig(name="grpo", precision="fp32"), model=ModelConfig(lora=lora)
    )
    return SimpleNamespace(world_size=world_size, config=run)


def test_it_keeps_the_contract_on_one_process() -> None:
    check_strategy(FsdpConfig(device="cpu"))


@pytest.mark.slow
def test_it_keeps_the_contract_on_two_ranks() -> None:
    check_strategy_on_ranks(FsdpConfig(device="cpu"))


@torch.no_grad()
def test_after_a_forward_all_is_shards_again() -> None:
    strategy = Fsdp(FsdpConfig(device="cpu", reshard_after_forward=False), AcceleratedStrategy(1, "cpu"))
    try:
        module = strategy.prepare_frozen(load_policy(ModelConfig()).model)
        with strategy.sharded_forward(module) as prepared:
            prepared(input_ids=torch.tensor([[1, 2, 3]]))
            assert not all(isinstance(p, DTensor) for p in module.parameters())
        assert all(isinstance(p, DTensor) for p in module.parameters()), "a reference is synced shard by shard"
    finally:
        strategy.close()


@pytest.mark.parametrize(
    ("settings", "ranks", "said"),
    [
        ({"shard_size": 3}, 4, "does not divide 4 ranks"),
        ({"param_dtype": "bfloat16"}, 2, "trainer.precision fp32"),
        ({"offload": True, "device": "cpu"}, 2, "offload without CUDA"),
    ],
)
def test_layouts_that_cannot_be_are_refused(settings: dict[str, Any], ranks: int, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        FsdpConfig(**settings).preflight(context(ranks))


@pytest.mark.parametrize(
    "trainer",
    [
        OnlineTrainerConfig(name="grpo", precision="bf16"),
        SftConfig(precision="bf16"),
        DpoConfig(precision="bf16"),
        RewardModelConfig(precision="bf16"),
        PrmConfig(precision="bf16"),
    ],
)
def test_bf16_weights_go_with_bf16_precision(trainer: Any) -> None:
    config = FsdpConfig(param_dtype="bfloat16", shard_size=2)
    config.preflight(context(4, trainer))
    with pytest.raises(ConfigError, match=r"trainer\.precision fp32"):
        config.preflight(context(4, trainer.model_copy(update={"precision": "fp32"})))


@pytest.mark.parametrize("setting", [{"offload": True}, {"param_dtype": "bfloat16"}])
def test_weights_of_4_bits_are_neither_moved_nor_cast(setting: dict[str, Any]) -> None:
    ctx = context(2, SftConfig(precision="bf16"))
    ctx.config.model = ModelConfig(quantize="nf4", lora=LORA)
    FsdpConfig().preflight(ctx)
    with pytest.raises(ConfigError, match=rf"strategy\.{next(iter(setting))} with model\.quantize"):
        FsdpConfig.model_validate(setting).preflight(ctx)


@pytest.mark.parametrize("trainer", [RewardModelConfig(), DpoConfig(), PpoConfig()])
def test_a_base_of_4_bits_is_refused_where_it_was_not_compared(trainer: Any) -> None:
    ctx = context(2, trainer)
    ctx.config.model, ctx.config.advantage = ModelConfig(quantize="nf4", lora=LORA), GaeConfig()
    with pytest.raises(ConfigError, match=f"does not train {trainer.name} with model.quantize nf4"):
        FsdpConfig().preflight(ctx)


def test_runs_that_were_not_compared_are_refused() -> None:
    other = SimpleNamespace(name="theirs", precision="fp32")
    with pytest.raises(ConfigError, match="does not train theirs"):
        FsdpConfig().preflight(context(2, other))


def test_a_float32_head_on_a_bfloat16_trunk_is_refused_where_both_lie_in_one_unit() -> None:
    ctx = context(2, RewardModelConfig())
    ctx.config.model = ModelConfig(dtype="bfloat16")
    with pytest.raises(ConfigError, match=r"model\.dtype=bfloat16 and reward_model"):
        FsdpConfig().preflight(ctx)
    for trainer in (RewardModelConfig(train_trunk="lora"), SftConfig()):
        ctx.config.trainer = trainer
        FsdpConfig().preflight(ctx)


@pytest.mark.parametrize(
    "trainer",
    [
        SftConfig(),
        DpoConfig(),
        KtoConfig(),
        IterativeDpoConfig(),
        RewardModelConfig(),
        RewardModelConfig(train_trunk="lora"),
        RewardModelConfig(train_trunk="frozen"),
        PrmConfig(),
        OrmConfig(),
        RubricTrainerConfig(),
        PpoConfig(),
    ],
)
def test_runs_that_were_compared_are_not(trainer: Any) -> None:
    FsdpConfig().preflight(context(2, trainer))
    FsdpConfig().preflight(context(2, trainer, ModelConfig(lora=LORA).lora))


def test_every_decoder_layer_is_a_unit_and_the_head_is_none() -> None:
    model = load_policy(ModelConfig()).model
    layers = decoder_layers(torch.nn.ModuleDict({"model": model}))
    assert len(layers) == len(model.model.layers)
    assert all(type(layer) is type(model.model.layers[0]) for layer in layers)


def test_what_shares_a_weight_is_no_unit() -> None:
    model = load_policy(ModelConfig()).model
    first, *rest = decoder_layers(model)
    model.lm_head.extra = first.mlp.up_proj.weight
    assert decoder_layers(model) == rest
    model._no_split_modules = [*model._no_split_modules, type(model.model.embed_tokens).__name__]
    assert decoder_layers(model) == rest, "an embedding is in no list"
