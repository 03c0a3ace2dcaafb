"""bfloat16 where it is fast, float32 where it counts."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file

from rlhf_core.cli.train import train as train_command
from rlhf_core.config import run as run_config
from rlhf_core.config.load import validate
from rlhf_core.data.jsonl import read_jsonl
from rlhf_core.models import precision
from rlhf_core.models.config import ModelConfig
from rlhf_core.models.layers.trunk_and_head import compute_dtype
from rlhf_core.models.load import load_policy
from rlhf_core.models.precision import set_precision, slow_bfloat16
from rlhf_core.plugins.registry import Registry
from rlhf_core.runs.launch.run import set_up_torch
from rlhf_core.training.forward import completion_logprobs, structure
from rlhf_core.types.errors import ConfigError
from rlhf_plugin_native.sampling import sampling_forwards
from rlhf_plugin_preflight.device.casts import Casts, compare_casts
from rlhf_plugin_preflight.device.report import Comparison

from .conftest import ONLINE, Train

PROMPTS = [(9, 8, 7, 6), (9, 8, 7, 6), (20, 30)]
COMPLETIONS = [(40, 50, 60), (70,), (80, 90)]


def products(model: Any) -> set[torch.dtype]:
    """Number types that the trunk's first linear layer puts out."""
    seen: set[torch.dtype] = set()
    layer = model.model.layers[0].self_attn.q_proj
    handle = layer.register_forward_hook(lambda _module, _inputs, out: seen.add(out.dtype))
    completion_logprobs(model, PROMPTS, COMPLETIONS)
    handle.remove()
    return seen


def test_trunk_in_bfloat16_and_the_rest_in_float32() -> None:
    model = load_policy(ModelConfig()).model
    exact = completion_logprobs(model, PROMPTS, COMPLETIONS)
    set_precision(model, "bf16")
    mixed = completion_logprobs(model, PROMPTS, COMPLETIONS, entropy=True)
    assert products(model) == {torch.bfloat16}
    assert mixed.hidden_NH is not None
    assert {mixed.logprobs_BT.dtype, mixed.hidden_NH.dtype} == {torch.float32}
    gap = float((mixed.logprobs_BT - exact.logprobs_BT).abs().max().detach())
    assert 0 < gap < 0.2
    mixed.logprobs_BT.sum().backward()
    assert {p.grad.dtype for p in model.parameters() if p.grad is not None} == {torch.float32}
    assert structure(model).pack, "rounding is no reason to pad"


def test_a_copy_computes_with_its_own_weights() -> None:
    model = load_policy(ModelConfig()).model
    set_precision(model, "bf16")
    other = copy.deepcopy(model)
    before = completion_logprobs(other, PROMPTS, COMPLETIONS).logprobs_BT
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(0.5)
    assert compute_dtype(other) == torch.bfloat16
    assert torch.equal(before, completion_logprobs(other, PROMPTS, COMPLETIONS).logprobs_BT)


@pytest.mark.parametrize("supported", [False, True])
def test_a_processor_without_bfloat16_is_named_before_hours_pass(
    supported: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: supported)
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    asked = {"model": {"dtype": "float32"}, "reward": {"base_model": {"dtype": "bfloat16"}, "dtype": ["bfloat16"]}}
    said = slow_bfloat16(asked | {"trainer": {"precision": "bf16"}})
    assert slow_bfloat16({"model": {"dtype": "float32"}}) == ""
    assert ("reward.base_model.dtype=bfloat16, trainer.precision=bf16: this processor" in said) is not supported
    set_up_torch(
        validate(Registry(disabled=()), {"trainer": {"name": "grpo", "precision": "bf16"}, "reward": "verifier"})
    )
    assert ("trainer.precision=bf16: this processor" in caplog.text) is not supported


def test_a_torch_without_onednn_is_not_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    monkeypatch.setattr(torch.ops, "mkldnn", object())
    assert slow_bfloat16({"model": {"dtype": "bfloat16"}}) == ""


@pytest.mark.slow
def test_a_run_samples_and_learns_in_the_same_precision(train: Train) -> None:
    change = {
        "trainer": {
            "steps": 2,
            "rollout_batch_size": 16,
            "eval_samples": 0,
            "precision": "bf16",
            "kl": {"coefficient": 0.01},
        }
    }
    summary = train(ONLINE, change=change)
    rows = [r for r in read_jsonl(train.folder / "run" / "metrics.jsonl") if "drift/mean_abs" in r]
    assert rows
    assert all(r["drift/mean_abs"] < 0.02 for r in rows)
    assert "drift_warnings" not in summary["dropped"]
    weights = load_file(str(Path(train.folder) / "run" / "final" / "model.safetensors"))
    assert {t.dtype for t in weights.values()} == {torch.float32}


def test_two_ways_to_bfloat16_at_once_are_refused(train: Train) -> None:
    with pytest.raises(ConfigError, match=r"precision bf16 cannot be combined with model\.dtype bfloat16"):
        train(ONLINE, change={"trainer": {"precision": "bf16"}, "model": {"dtype": "bfloat16"}})


GRPO = "grpo --reward exact --dataset pocket/arithmetic"


def planned(*more: str, algo: str = GRPO) -> str:
    """The precision in the plan of a dry run."""
    words = f"--algo {algo} --dry-run --json".split()
    done = CliRunner().invoke(train_command, [*words, *more], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return json.loads(done.output)["config"]["trainer"]["precision"]


@pytest.mark.slow
def test_auto_is_bfloat16_where_the_device_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert planned() == "fp32", "a CPU's numbers stay"
    monkeypatch.setattr(run_config, "cuda_has_bfloat16", lambda: True)
    assert planned() == "bf16"
    for settings in ("model.dtype=bfloat16", "strategy.device=cpu", "trainer.precision=fp32"):
        more = ("--set", "strategy=ddp") if settings.startswith("strategy") else ()
        assert planned(*more, "--set", settings) == "fp32"
    assert planned("--set", "trainer.precision=bf16") == "bf16"


@pytest.mark.slow
@pytest.mark.parametrize("algo", ["sft", "dpo", "kto", "reward_model", "prm", "orm"])
def test_auto_means_the_same_where_a_run_learns_from_data(algo: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_config, "cuda_has_bfloat16", lambda: True)
    assert planned(algo=algo) == "bf16"


def test_auto_is_float32_where_a_run_learns_from_data_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert planned(algo="sft") == "fp32"
    monkeypatch.setattr(run_config, "cuda_has_bfloat16", lambda: True)
    assert planned("--set", "model.dtype=bfloat16", algo="sft") == "fp32"


def test_a_run_keeps_what_its_plan_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_config, "cuda_has_bfloat16", lambda: True)
    registry = Registry(disabled=())
    asked = {"trainer": {"name": "grpo"}, "reward": "exact", "dataset": "pocket/arithmetic"}
    assert validate(registry, asked).with_precision().trainer.precision == "bf16"
    kept = validate(registry, asked | {"trainer": {"name": "grpo", "precision": "fp32"}})  # as plans of before have it
    assert kept.with_precision() is kept


@pytest.mark.parametrize(("there", "native"), [(True, True), (True, False), (False, True)])
def test_a_card_is_asked_for_instructions_not_for_emulation(
    there: bool, native: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_config, "version", lambda _: "2.13.0+cu130")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: there)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: native or including_emulation)
    assert run_config.cuda_has_bfloat16() is (there and native)


@pytest.mark.slow
def test_an_automatic_precision_reaches_the_model(train: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    small = {"steps": 1, "rollout_batch_size": 4, "group_size": 2, "train_batch_size": 4, "eval_samples": 0}
    seen: list[str] = []
    real = precision.set_precision
    monkeypatch.setattr(precision, "set_precision", lambda model, chosen: (seen.append(chosen), real(model, chosen)))
    train(ONLINE, change={"trainer": small})
    monkeypatch.setattr(run_config, "cuda_has_bfloat16", lambda: True)
    train(ONLINE, change={"trainer": small})
    assert seen == ["fp32", "bf16"]


def test_a_checkpointed_update_keeps_no_casts_of_layers_that_are_done(monkeypatch: pytest.MonkeyPatch) -> None:
    def row() -> Comparison:
        return next(compare_casts("pocket", torch.device("cpu")))

    assert row().verdict == "agrees"
    assert not row().detail.startswith("0 MB")
    cached = torch.autocast
    monkeypatch.setattr(torch, "autocast", lambda *args, cache_enabled: cached(*args, cache_enabled=True))
    assert row().verdict == "differs"
    monkeypatch.setattr(torch, "autocast", lambda *args, cache_enabled: cached(*args, enabled=False))
    assert row().verdict == "differs", "none was seen"


def test_decoding_casts_each_weight_once() -> None:
    model = load_policy(ModelConfig()).model
    set_precision(model, "bf16")
    with sampling_forwards(model), torch.no_grad(), Casts(model) as casts:
        for _ in range(3):
            model.model(torch.arange(12)[None])
    assert casts.count == 7 * len(model.model.layers)
