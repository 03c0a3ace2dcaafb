"""The real vLLM in this process; runs where the toolkit is installed in vLLM's environment."""

from __future__ import annotations

import copy
import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file

from rlhf_core.config import BuildContext, RlhfError
from rlhf_core.models import LoadedModel, ModelConfig, load_policy
from rlhf_core.models.config import LoraSettings
from rlhf_core.rollouts import RolloutRequest, SamplingParams
from rlhf_plugin_native.engine import NativeEngine
from rlhf_plugin_vllm.colocated import ColocatedEngine
from rlhf_plugin_vllm.colocated_config import ColocatedConfig
from rlhf_testing import check_rollout, policy_context
from tests.families.cells import save

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(2400),
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed beside the toolkit"),
]
SAMPLING = SamplingParams(max_tokens=24, temperature=0.7)
ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "TORCH_COMPILE_DISABLE": "1"
}  # fmt: skip
CONFIG = ColocatedConfig(arguments={"enforce_eager": True, "max_num_seqs": 32}, environment=ENVIRONMENT)


def requests_of(ctx: BuildContext, prompts: int = 4, seeds: int = 4) -> list[RolloutRequest]:
    encode = ctx.policy.tokenizer.encode
    texts = [f"What is {n} + {2 * n}?" + " Say why." * (n % 3) for n in range(prompts)]
    return [
        RolloutRequest(f"p{n}", tuple(encode(t)), s, 100 * n + s) for n, t in enumerate(texts) for s in range(seeds)
    ]


def moved(model: Any, seed: int, scale: float = 0.03) -> dict[str, torch.Tensor]:
    """Trained weights, each moved by about 3 %, the embedding included."""
    draw = torch.Generator().manual_seed(seed)
    rows = {n: p.detach() for n, p in model.named_parameters() if p.requires_grad}
    return {n: p * (1 + scale * torch.randn(p.shape, generator=draw)) + scale * 0.1 for n, p in rows.items()}


def trainer_gap(model: Any, weights: Any, rollouts: Any, temperature: float = 0.7) -> float:
    """Largest difference of a logprob from the forward of transformers."""
    gaps = []
    for r in rollouts:
        ids = torch.tensor([[*r.prompt_ids, *r.completion_ids]])
        with torch.no_grad():
            output = torch.func.functional_call(model, weights, (ids,))
        logits_TV = output.logits[0, len(r.prompt_ids) - 1 : -1] / temperature
        own_T = torch.log_softmax(logits_TV, -1).gather(-1, ids[0, len(r.prompt_ids) :, None])[:, 0]
        gaps.append(float((own_T - torch.tensor(r.logprobs_T)).abs().max()))
    return max(gaps)


@pytest.fixture(scope="module")
def ctx() -> BuildContext:
    return policy_context()


@pytest.fixture(scope="module")
def engine(ctx: BuildContext) -> Iterator[ColocatedEngine]:
    built = ColocatedEngine(CONFIG, ctx)
    built.update_weights(0, dict(ctx.policy.model.named_parameters()))
    yield built
    built.close()


def test_completions_are_the_seeds_own_with_the_trainers_logprobs(ctx: BuildContext, engine: ColocatedEngine) -> None:
    engine.update_weights(0, dict(ctx.policy.model.named_parameters()))
    requests, before = requests_of(ctx), torch.random.get_rng_state()
    whole = engine.generate(requests, SAMPLING, 0)
    assert trainer_gap(ctx.policy.model, {}, whole) < 1e-4
    assert len({r.completion_ids for r in whole[:4]}) > 1
    for n in range(0, len(requests), 3):
        assert engine.generate([requests[n]], SAMPLING, 0)[0].completion_ids == whole[n].completion_ids
    assert torch.equal(before, torch.random.get_rng_state()), "the process's random numbers are the trainer's"
    greedy = SamplingParams(max_tokens=24, temperature=0.0)
    native = NativeEngine(ctx.policy.model, ctx.policy.tokenizer, ctx.policy.context)
    for got, want in zip(engine.generate(requests[::4], greedy, 0), native.generate(requests[::4], greedy, 0)):
        assert (got.completion_ids, got.finish_reason, got.text) == (want.completion_ids, want.finish_reason, want.text)


def test_every_version_arrives_whole(ctx: BuildContext, engine: ColocatedEngine) -> None:
    for version in (1, 2):
        weights = moved(ctx.policy.model, version)
        engine.update_weights(version, weights)
        assert trainer_gap(ctx.policy.model, weights, engine.generate(requests_of(ctx), SAMPLING, version)) < 1e-4
    assert engine._report["vllm"]["canary_largest"] < 1e-4
    with pytest.raises(RlhfError, match="was asked for version 1 of the policy and given version 2"):
        engine.generate(requests_of(ctx), SAMPLING, 1)


def test_vllms_own_reload_keeps_a_tied_head_and_the_canary_sees_it(
    ctx: BuildContext, engine: ColocatedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rlhf_plugin_vllm.worker._repack_heads", lambda model: 0)
    with pytest.raises(RlhfError, match="has other weights than version 7"):
        engine.update_weights(7, moved(ctx.policy.model, 7))
    with pytest.raises(RlhfError, match="given none"):
        engine.generate(requests_of(ctx), SAMPLING, 7)


def test_after_an_update_that_failed_half_way_nothing_is_sampled(ctx: BuildContext, engine: ColocatedEngine) -> None:
    weights = moved(ctx.policy.model, 8)
    weights.pop("model.norm.weight")
    with pytest.raises(RlhfError, match=r"did not take version 8(.|\n)*no weights for"):
        engine.update_weights(8, weights)
    with pytest.raises(RlhfError, match="given none"):
        engine.generate(requests_of(ctx), SAMPLING, 8)


def test_vllm_for_cpus_does_not_sleep_and_says_so(engine: ColocatedEngine) -> None:
    if engine.vllm.platform != "cpu":
        pytest.skip("vLLM is not one for CPUs")
    assert engine.release_memory() is False
    assert engine._report["vllm"]["sleep"] == "not there on cpu"


def test_the_engine_conforms(engine: ColocatedEngine) -> None:
    engine.close()  # one in a process at a time
    check_rollout(CONFIG)


def test_under_lora_the_adapter_is_sent(ctx: BuildContext, engine: ColocatedEngine) -> None:
    engine.close()
    model = get_peft_model(copy.deepcopy(ctx.policy.model), LoraConfig(r=4, target_modules=["q_proj", "v_proj"]))
    policy = LoadedModel(model, ctx.policy.tokenizer, ctx.policy.source, ctx.policy.context)
    built = ColocatedEngine(CONFIG, ctx.with_(policy=policy))
    try:
        for version in (0, 1):
            weights = moved(model, version, 0.3)
            built.update_weights(version, weights)
            assert trainer_gap(model, weights, built.generate(requests_of(ctx), SAMPLING, version)) < 1e-4
        size = sum(t.numel() * t.element_size() for t in weights.values())
        assert size <= built._report["vllm"]["sync_bytes"] < size + 8192
    finally:
        built.close()


@pytest.mark.long
def test_a_base_of_4_bits_is_held_as_the_numbers_that_the_trainer_computes_with(tmp_path: Path) -> None:
    pytest.importorskip("bitsandbytes")
    policy = load_policy(ModelConfig(path=str(save("qwen3", tmp_path)), quantize="nf4", lora=LoraSettings(r=4)))
    built = ColocatedEngine(CONFIG, policy_context().with_(policy=policy))
    try:
        for version in (0, 1):
            weights = moved(policy.model, version, 0.3)
            built.update_weights(version, weights)
            requests = [RolloutRequest(f"p{n}", (1, 2, 3 + n), 0, n) for n in range(4)]
            assert trainer_gap(policy.model, weights, built.generate(requests, SAMPLING, version)) < 1e-4
    finally:
        built.close()


def train(run: Path, *more: str, ranks: int = 1) -> dict[str, torch.Tensor]:
    """The weights after two steps of grpo, each after a sync that the canary found to be whole."""
    settings = ["rollout.name=vllm_colocated", "trainer.steps=2", "trainer.eval_samples=2", "trainer.group_size=4"]
    settings += ["trainer.rollout_batch_size=16", "trainer.sampling.temperature=0.7", "threads=1", *more]
    settings += ["rollout.arguments.enforce_eager=true", "rollout.arguments.max_num_seqs=32"]
    settings += [f"rollout.environment.{name}='{value}'" for name, value in ENVIRONMENT.items()]
    words = ["--algo", "grpo", "--reward", "verifier", "--dataset", "pocket/arithmetic", "--nproc", str(ranks)]
    words += [word for setting in settings for word in ("--set", setting)]
    command = [sys.executable, "-m", "rlhf_core.cli.main", "train", *words, "--run-dir", str(run)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=1000)
    assert result.returncode == 0, result.stdout + result.stderr
    row = json.loads((run / "summary.json").read_text())["reports"]["vllm"]
    assert row["syncs"] == 3
    assert row["canary_largest"] < 1e-4
    return load_file(run / "final" / "model.safetensors")


def largest_gap(one: dict[str, torch.Tensor], two: dict[str, torch.Tensor]) -> float:
    return max(float((one[name] - two[name]).abs().max()) for name in one)


@pytest.mark.long
@pytest.mark.parametrize("lora", [[], ["model.lora.r=4"]], ids=["full", "lora"])
def test_grpo_trains_with_it_to_the_same_weights_each_time(tmp_path: Path, lora: list[str]) -> None:
    assert largest_gap(train(tmp_path / "a", *lora), train(tmp_path / "b", *lora)) == 0


@pytest.mark.long
def test_two_ranks_with_a_vllm_each_train_as_one_process_does(tmp_path: Path) -> None:
    alone, ddp = train(tmp_path / "alone"), train(tmp_path / "ddp", ranks=2)
    assert largest_gap(alone, ddp) < 1e-4, "of a learning rate of 1.5e-4: Adam makes rounding of small gradients large"
    norms = [gradient_norms(tmp_path / name) for name in ("alone", "ddp")]
    assert norms[1] == pytest.approx(norms[0], rel=1e-5)
    lora = [train(tmp_path / f"lora-{n}", "model.lora.r=4", ranks=n) for n in (1, 2)]
    assert largest_gap(*lora) < 1e-4


@pytest.mark.long
@pytest.mark.parametrize(
    ("needs", "settings"),
    [
        ("rlhf_plugin_fsdp", ["strategy=fsdp"]),
        ("deepspeed", ["strategy=deepspeed", "strategy.stage=2"]),
        ("deepspeed", ["strategy=deepspeed", "strategy.stage=3"]),
    ],
    ids=["fsdp", "zero2", "zero3"],
)
@pytest.mark.parametrize("lora", [[], ["model.lora.r=4"]], ids=["full", "lora"])
def test_two_ranks_that_shard_the_policy_train_as_two_whole_ones_do(
    tmp_path: Path, needs: str, settings: list[str], lora: list[str]
) -> None:
    if importlib.util.find_spec(needs) is None:
        pytest.skip(f"{needs} is not installed beside vLLM")
    ddp, sharded = train(tmp_path / "ddp", *lora, ranks=2), train(tmp_path / "sharded", *settings, *lora, ranks=2)
    assert largest_gap(ddp, sharded) < 1e-6
    norms = [gradient_norms(tmp_path / name) for name in ("ddp", "sharded")]
    assert norms[1] == pytest.approx(norms[0], rel=1e-5)


def gradient_norms(run: Path) -> list[float]:
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [row["grad_norm"] for row in rows if row.get("grad_norm") is not None]
