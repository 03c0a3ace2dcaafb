"""Reward models of others, and adapters: what is saved is a plain classifier, what is loaded scores as it would."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
)

from rlhf_core.config import BuildContext, Registry
from rlhf_core.config.load import validate
from rlhf_core.data import Datasets, PreferencePair
from rlhf_core.distributed import LocalStrategy
from rlhf_core.models import ModelConfig, ModelError, load_policy
from rlhf_plugin_reward.classifier_files import load_classifier, save_classifier, save_trunk
from rlhf_plugin_reward.config import EnsembleConfig
from rlhf_plugin_reward.encoding import View
from rlhf_plugin_reward.ensemble import load_or_train, train_ensemble
from rlhf_plugin_reward.net import RewardNet, fresh_net
from rlhf_plugin_reward.reward import load_ensemble

TINY = [
    "--set",
    "trainer.max_steps=3",
    "--set",
    "trainer.eval_samples=0",
    "--set",
    "trainer.batch_size=8",
    "--set",
    "dataset.limit=32",
    "--set",
    "threads=1",
]
PAIRS = [
    PreferencePair(f"p/{i}", ({"role": "user", "content": f"What is 2 + {i}?"},), "5", "Great question! 5")
    for i in range(16)
]


def is_plain(folder: Path) -> bool:
    """Loads without peft, and its trunk is no longer the pocket model's."""
    model = AutoModelForSequenceClassification.from_pretrained(folder)
    before = load_policy(ModelConfig()).model.model.state_dict()
    after = model.model.state_dict()
    assert before.keys() == after.keys()
    return not all(torch.equal(before[k], after[k]) for k in before)


@pytest.mark.parametrize("options", [["--set", "model.lora.r=4"], ["--set", "trainer.train_trunk=lora"]])
def test_adapters_are_merged_into_the_saved_reward_model(
    command: Callable[..., Any], tmp_path: Path, options: list[str]
) -> None:
    run = tmp_path / "run"
    code, err = command("train", "--algo", "reward_model", *TINY, *options, "--run-dir", run)
    assert code == 0, err
    assert is_plain(run / "final")
    load_classifier(str(run / "final"))


def test_members_trained_through_adapters_are_whole_models(tmp_path: Path) -> None:
    base = ModelConfig.model_validate({"lora": {"r": 4}})
    config = EnsembleConfig(members=2, batch_size=8, base_model=base)
    train_ensemble(config, base, PAIRS, PAIRS[:4], 0, tmp_path / "e", print, LocalStrategy())
    assert is_plain(tmp_path / "e" / "member_0")
    load_ensemble(config, tmp_path / "e", "cpu")


@pytest.mark.parametrize("quantize", [None, "nf4"])
@pytest.mark.parametrize(
    "lora", [{"dora": True}, {"modules_to_save": ["norm", "embed_tokens"]}, {"target_modules": ["q_proj"]}]
)
def test_what_adapters_trained_is_what_is_saved(tmp_path: Path, lora: dict[str, Any], quantize: str | None) -> None:
    if quantize:
        pytest.importorskip("bitsandbytes")
    torch.manual_seed(0)
    shape = {**ENCODER, "hidden_size": 64, "vocab_size": len(load_policy(ModelConfig()).tokenizer)}
    LlamaForCausalLM(LlamaConfig(**shape, tie_word_embeddings=False)).save_pretrained(tmp_path / "base")
    load_policy(ModelConfig()).tokenizer.save_pretrained(tmp_path / "base")
    settings = {"path": str(tmp_path / "base"), "quantize": quantize, "lora": {"r": 4, **lora}}
    policy = load_policy(ModelConfig.model_validate(settings))
    net = fresh_net(policy, 1, 0, "none", copy_trunk=False).eval()
    with torch.no_grad():
        for parameter in net.parameters():
            if parameter.requires_grad:
                parameter += 0.1 * torch.randn(parameter.shape)
    save_classifier(net, policy.tokenizer, tmp_path / "saved", view=View())
    ids = [[5, 6, 7, 8] * 6]
    with torch.inference_mode():
        want, got = net(ids), load_classifier(str(tmp_path / "saved"))[0](ids)
        assert torch.allclose(got, want, atol=1e-4)
    save_trunk(net, tmp_path / "trunk", net.state_dict())
    trunk = AutoModel.from_pretrained(tmp_path / "trunk").eval()
    with torch.inference_mode():
        assert torch.allclose(RewardNet(trunk, net.head)(ids), want, atol=1e-4)


def test_an_ensemble_of_a_run_on_4_bits_trains_whole_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("bitsandbytes")
    monkeypatch.setenv("RLHF_CACHE", str(tmp_path))
    model = ModelConfig.model_validate({"quantize": "nf4", "lora": {"r": 4}})
    assert [m.quantize for m, _ in EnsembleConfig().memory_models(SimpleNamespace(model=model))] == [None]
    registry = Registry(disabled=())
    trained: dict[str, Any] = {"reward": {"name": "ensemble", "members": 2, "batch_size": 8, "max_pairs": 16}}
    data = {"dataset": {"name": "pocket/assistant", "limit": 32}, "model": {"quantize": "nf4", "lora": {"r": 4}}}
    config = validate(registry, {"trainer": {"name": "grpo"}, **trained, **data})
    ctx = BuildContext(config=config, registry=registry, seed=0)
    load_or_train(config.reward, ctx.with_(datasets=Datasets(config.dataset, ctx)))
    (member,) = tmp_path.rglob("member_0")
    assert is_plain(member)


@pytest.mark.parametrize("part", ["lora", "frozen"])
def test_two_kinds_of_adapters_are_refused_before_anything_is_loaded(command: Callable[..., Any], part: str) -> None:
    code, err = command(
        "train",
        "--algo",
        "reward_model",
        "--set",
        "model.lora.r=4",
        "--set",
        f"trainer.train_trunk={part}",
        "--dry-run",
    )
    assert code == 2
    assert f"model.lora and trainer.train_trunk={part} exclude each other" in err
    code, err = command(
        "train",
        "--algo",
        "grpo",
        "--reward",
        "ensemble",
        "--set",
        f"reward.sharing={part}",
        "--set",
        "reward.base_model.lora.r=4",
        "--dry-run",
    )
    assert code == 2
    assert "drop base_model.lora" in err


def classifier(kind: str, folder: Path, **options: Any) -> PreTrainedModel:
    """A small classifier of another architecture with the pocket model's tokenizer."""
    tokenizer = load_policy(ModelConfig()).tokenizer
    torch.manual_seed(0)
    model = AutoModelForSequenceClassification.from_config(
        AutoConfig.for_model(
            kind,
            vocab_size=len(tokenizer),
            num_labels=1,
            pad_token_id=tokenizer.pad_token_id,
            bos_token_id=None,
            eos_token_id=None,
            **options,
        )
    )
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return model


ENCODER = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("bert", ENCODER),
        ("distilbert", {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 64}),
        ("modernbert", {**ENCODER, "global_attn_every_n_layers": 2, "cls_token_id": None, "sep_token_id": None}),
    ],
)
def test_a_classifier_that_pools_otherwise_is_refused(tmp_path: Path, kind: str, options: dict[str, Any]) -> None:
    classifier(kind, tmp_path, **options)
    with pytest.raises(ModelError, match="does not score by a linear head on the last token"):
        load_classifier(str(tmp_path))


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("gpt2", {"n_embd": 32, "n_layer": 2, "n_head": 4}),
        ("qwen2", {**ENCODER, "num_key_value_heads": 2}),
        ("gemma2", {**ENCODER, "num_key_value_heads": 2, "head_dim": 8}),
    ],
)
def test_decoders_of_other_families_score_as_in_transformers(
    tmp_path: Path, kind: str, options: dict[str, Any]
) -> None:
    model = classifier(kind, tmp_path, **options).eval()
    net, _ = load_classifier(str(tmp_path))
    ids = AutoTokenizer.from_pretrained(tmp_path).encode("It is a cat.")
    with torch.inference_mode():
        expected = model(input_ids=torch.tensor([ids])).logits[0, 0]
        assert float(net([ids, [5, 6, 7, 8] * 6])[0, 0]) == pytest.approx(float(expected), abs=1e-5)
