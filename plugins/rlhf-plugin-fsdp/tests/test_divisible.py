"""What ``strategy.sequence_parallel`` and ``tensor_parallel`` refuse before a model is loaded, and how a row is cut."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import BertConfig, BertLMHeadModel, Qwen3Config, Qwen3ForCausalLM, Qwen3Model

from rlhf_core.config import ConfigError
from rlhf_core.models import ModelConfig, ModelError, load_policy
from rlhf_core.models.config import LoraSettings
from rlhf_core.models.layers.packing import Row, pack
from rlhf_core.models.layers.segments import Segment
from rlhf_core.models.save import add_lora
from rlhf_core.rl import OnlineTrainerConfig
from rlhf_core.training import SamplingSettings
from rlhf_plugin_dpo.config import DpoConfig
from rlhf_plugin_dpo.unpaired_config import KtoConfig
from rlhf_plugin_fsdp.config import FsdpConfig
from rlhf_plugin_fsdp.tensor_parallel import planned
from rlhf_plugin_fsdp.ulysses import check_structure, slice_row
from rlhf_plugin_grpo.config import GrpoConfig
from rlhf_plugin_ppo.config import GaeConfig, PpoConfig
from rlhf_plugin_sft.config import SftConfig

UNTRIED: Any = {"name": "schedule_free", "schedule": "constant"}
LLAMA: dict[str, Any] = {"model_type": "llama", "num_attention_heads": 8, "num_key_value_heads": 2}


def preflight(
    folder: Path,
    size: int,
    trainer: Any = None,
    settings: Any = None,
    ranks: int = 0,
    strategy: Any = None,
    **model: Any,
) -> None:
    """Of a run on a model of which there is a ``config.json`` and no more."""
    (folder / "config.json").write_text(json.dumps({**LLAMA, **(settings or {})}))
    (folder / "model.safetensors").write_bytes(b"\x02\0\0\0\0\0\0\0{}")
    (folder / "tokenizer.json").write_text("{}")
    (folder / "tokenizer_config.json").write_text("{}")
    run = SimpleNamespace(trainer=trainer or SftConfig(), model=ModelConfig(path=str(folder), **model))
    run.advantage = GaeConfig() if isinstance(trainer, PpoConfig) else None
    ctx: Any = SimpleNamespace(world_size=ranks or size, config=run, dry_run=False)
    run.strategy = FsdpConfig(**({"sequence_parallel": size} if strategy is None else strategy))
    run.strategy.preflight(ctx)


@pytest.mark.parametrize("trainer", [SftConfig(), DpoConfig(), GrpoConfig(), OnlineTrainerConfig(name="variant")])
@pytest.mark.parametrize("size", [2, 4, 8])
def test_runs_whose_divided_sequences_were_compared_are_accepted(tmp_path: Path, size: int, trainer: Any) -> None:
    preflight(tmp_path, size, trainer, ranks=2 * size, lora={"r": 4}, gradient_checkpointing=True)


@pytest.mark.parametrize(
    ("size", "settings", "said"),
    [
        (3, {}, r"3 does not divide the heads.*8 heads of attention and 2 of keys.*use 2, 4, 8"),
        (16, {}, "16 does not divide the heads"),
        (4, {"num_attention_heads": 12, "num_key_value_heads": 6}, "4 does not divide the heads.*use 2, 3, 6, 12"),
        (2, {"layer_types": ["full_attention", "linear_attention"]}, "layers of linear_attention"),
        (2, {"mamba_d_state": 16}, "recurrent layers"),
        (2, {"kv_lora_rank": 8}, "MLA"),
        (2, {"num_local_experts": 8}, "mixtures of experts"),
        (2, {"text_config": {"num_attention_heads": 5, "num_key_value_heads": 5}}, "5 heads"),
    ],
)
def test_models_that_cannot_be_divided_are_refused(tmp_path: Path, size: int, settings: Any, said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        preflight(tmp_path, size, settings=settings)
    assert_says(refused.value, said)


@pytest.mark.parametrize(
    ("trainer", "model", "said"),
    [
        (KtoConfig(), {}, "algorithm kto"),
        (PpoConfig(), {}, "a critic"),
        (GrpoConfig(packing="off"), {}, "packing=off"),
        (GrpoConfig(sampling=SamplingSettings(top_p=0.9)), {}, "top_p"),
        (SftConfig(), {"attention": "eager"}, "eager"),
        (SftConfig(), {"quantize": "nf4", "lora": {"r": 4}}, "quantize"),
    ],
)
def test_runs_that_cannot_be_divided_are_refused(tmp_path: Path, trainer: Any, model: Any, said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        preflight(tmp_path, 2, trainer, **model)
    assert_says(refused.value, said)


@pytest.mark.parametrize("trainer", [SftConfig(), DpoConfig(), GrpoConfig(), OnlineTrainerConfig(name="variant")])
def test_runs_whose_divided_weights_were_compared_are_accepted(tmp_path: Path, trainer: Any) -> None:
    preflight(tmp_path, 2, trainer, ranks=4, strategy={"tensor_parallel": 2}, lora={"r": 4})


@pytest.mark.parametrize(
    ("trainer", "settings", "strategy", "model", "said"),
    [
        (None, {"num_attention_heads": 5}, {}, {}, "does not divide .*: num_attention_heads 5"),
        (None, {"num_key_value_heads": 1}, {}, {}, "num_key_value_heads 1"),
        (None, {"intermediate_size": 7}, {}, {}, "intermediate_size 7"),
        (None, {"model_type": "phi3"}, {}, {}, "a phi3.*colwise_gather_output, rowwise_split_input"),
        (None, {"model_type": "gpt2"}, {}, {}, "a gpt2.*has nothing"),
        (None, {"num_local_experts": 8}, {}, {}, "mixtures of experts"),
        (None, {}, {"sequence_parallel": 2}, {}, "strategy.sequence_parallel"),
        (None, {}, {"shard_size": 2}, {}, "strategy.shard_size"),
        (None, {}, {"offload": True}, {}, "strategy.offload"),
        (None, {}, {}, {"gradient_checkpointing": "selective"}, "gradient_checkpointing=selective.*divided weights"),
        (None, {}, {}, {"lora": {"dora": True}}, "model.lora.dora"),
        (None, {}, {}, {"lora": {"dropout": 0.1}}, "model.lora.dropout"),
        (None, {}, {}, {"lora": {"modules_to_save": ["lm_head"]}}, "modules_to_save"),
        (SftConfig(optimizer=UNTRIED), {}, {}, {}, "optimizer schedule_free"),
        (KtoConfig(), {}, {}, {}, "algorithm kto"),
        (PpoConfig(), {}, {}, {}, "a critic"),
    ],
)
def test_weights_that_cannot_be_divided_are_refused(
    tmp_path: Path, trainer: Any, settings: Any, strategy: Any, model: Any, said: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        preflight(tmp_path, 2, trainer, settings, 4, {"tensor_parallel": 2, **strategy}, **model)
    assert_says(refused.value, f"strategy.tensor_parallel.*{said}")


def test_a_parameter_that_the_plan_leaves_out_is_refused() -> None:
    """As q and k norms were by earlier versions: each rank would have the gradient of its own heads."""
    sizes: dict[str, Any] = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    trunk, plan = Qwen3Model(Qwen3Config(vocab_size=30, **sizes)), Qwen3Config.base_model_tp_plan
    assert plan is not None
    assert len(list(planned(trunk, plan))) == 9
    with pytest.raises(ConfigError, match=r"a model with layers.0.self_attn.q_norm"):
        list(planned(trunk, {name: kind for name, kind in plan.items() if "q_norm" not in name}))


def test_one_process_has_the_parts_of_a_rank_for_a_memory_plan() -> None:
    """Of weights that transformers' plan divides, adapters too; what it replicates stays, and all of it comes back."""
    sizes: dict[str, Any] = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = add_lora(
        Qwen3ForCausalLM(Qwen3Config(vocab_size=30, head_dim=4, num_key_value_heads=2, **sizes)), LoraSettings(r=1)
    )
    before = dict(model.named_parameters())
    with FsdpConfig(tensor_parallel=2).rehearsed(model):
        parts = {name: p.numel() / before[name].numel() for name, p in model.named_parameters()}
        learn = {name: p.requires_grad for name, p in model.named_parameters()}
        model(input_ids=torch.tensor([[1, 2, 3]]), use_cache=False).logits.sum().backward()
    of_rows = tuple(f"{name}_proj.lora_A.default.weight" for name in ("o", "down"))
    of_columns = tuple(f"{name}_proj.lora_B.default.weight" for name in ("q", "k", "v", "gate", "up"))
    halves = {name for name in before if name.endswith(("base_layer.weight", *of_rows, *of_columns))}
    assert len(halves) == 7 + 7
    assert parts == {name: 0.5 if name in halves else 1.0 for name in before}
    assert all(p is before[name] for name, p in model.named_parameters())
    assert learn == {name: p.requires_grad for name, p in before.items()}


def test_ranks_make_whole_groups(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="2 does not divide 3 ranks"):
        preflight(tmp_path, 2, ranks=3)


def test_speech_policies_are_refused(tmp_path: Path) -> None:
    (tmp_path / "modality.json").write_text("{}")
    with pytest.raises(ConfigError, match="a modality"):
        preflight(tmp_path, 2)


def test_a_model_that_is_not_packed_is_refused_by_what_it_computes() -> None:
    sizes: dict[str, Any] = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    with pytest.raises(ModelError, match="cannot divide the sequences of BertLMHeadModel"):
        check_structure(BertLMHeadModel(BertConfig(vocab_size=30, **sizes)), True)


def test_what_is_found_off_or_watched_is_refused() -> None:
    model = load_policy(ModelConfig()).model
    check_structure(model, True)
    with pytest.raises(ModelError, match="packing is off"):
        check_structure(model, False)
    model.__dict__["watch_rows"] = None
    with pytest.raises(ModelError, match="routers of experts"):
        check_structure(model, True)


def test_slices_are_equally_long_and_lie_end_to_end() -> None:
    row = pack([(7, 8, 9)] * 2, [(1, 2), (3, 4, 5)], share=True)
    assert row.ids == [7, 8, 9, 1, 3, 4]
    slices = [slice_row(row, 4, member) for member in range(4)]
    assert [own.ids for own in slices] == [[7, 8], [9, 1], [3, 4], [0, 0]]
    assert [own.positions for own in slices] == [[0, 1], [2, 3], [3, 4], [0, 1]]
    assert [own.start for own in slices] == [0, 2, 4, 6]
    assert all(own.segments == (*row.segments, Segment((6, 8))) for own in slices)
    assert slice_row(row, 2, 1).segments == row.segments, "a row that is cut evenly is not filled up"
    assert slice_row(Row([7], [0], (Segment((0, 1)),), [0]), 2, 1).ids == [0]


def assert_says(error: ConfigError, pattern: str) -> None:
    text = " ".join(str(part) for part in (error, error.why, error.fix))
    assert re.search(pattern, text, re.DOTALL), text
