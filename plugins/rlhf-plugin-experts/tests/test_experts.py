"""Mixtures of experts: what is trained, the load-balancing loss, and the sampler's choices in the update."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers.models.qwen3_moe.modeling_qwen3_moe import load_balancing_loss_func

from rlhf_core.config import ConfigError
from rlhf_core.losses import LossOutput
from rlhf_core.models import ModelConfig, ModelError, load_policy
from rlhf_core.rollouts import RolloutRequest, SamplingParams
from rlhf_core.training import completion_logprobs
from rlhf_plugin_experts.balance import BalanceTerm
from rlhf_plugin_experts.routers import find_routers
from rlhf_plugin_experts.watch import RouterWatch
from rlhf_plugin_native.engine import NativeEngine
from tests.families.built import build
from tests.trainers.conftest import OFFLINE, ONLINE, Train, with_trainer

PATHS = [(packed, share) for packed in (True, False) for share in (True, False)]
FAMILIES = ("qwen3_moe", "mixtral", "olmoe", "deepseek_v3")
PROMPTS = [(1, 2, 3), (1, 2, 3), (4, 5, 6, 7, 8)]
COMPLETIONS = [(9,), (10, 11, 12, 13), (14, 15)]


def watched(base: Any, **options: bool) -> RouterWatch:
    watch = RouterWatch(base, find_routers(base), **{"strict": True, "replay": False, **options})
    base.__dict__["watch_rows"] = watch
    return watch


def spread(model: Any) -> None:
    """Routers that prefer some experts."""
    torch.manual_seed(2)
    with torch.no_grad():
        for router in find_routers(model):
            router.weight.normal_(std=0.5)


def balance(model: Any, rows: list[int], packed: bool, share: bool) -> tuple[float, torch.Tensor]:
    """The loss of some sequences, added up by hand, and the gradient of the routers."""
    watch = watched(model)
    term = BalanceTerm(watch, 1.0)
    model.zero_grad()
    prompts, completions = [PROMPTS[n] for n in rows], [COMPLETIONS[n] for n in rows]
    completion_logprobs(model, prompts, completions, packed=packed, shared_prefix=share)
    value = term(LossOutput(torch.zeros(len(rows)), {}), None).loss.sum()
    value.backward()
    return value.item(), torch.cat([r.weight.grad.flatten() for r in find_routers(model)])


@pytest.mark.parametrize("family", FAMILIES)
def test_no_micro_batch_packing_or_padding_changes_the_balance_loss(family: str) -> None:
    model = build(family)
    spread(model)
    parts = [balance(build_like(model, family), [n], False, False) for n in range(3)]
    want, gradient = sum(value for value, _ in parts), torch.stack([g for _, g in parts]).sum(0)
    assert gradient.abs().max() > 1e-4
    for packed, share in PATHS:
        got, other = balance(build_like(model, family), [0, 1, 2], packed, share)
        assert got == pytest.approx(want, rel=1e-5)
        assert torch.allclose(other, gradient, atol=1e-6), (packed, share)


def build_like(model: Any, family: str, **extra: Any) -> Any:
    """A copy without hooks."""
    copied = build(family, **extra)
    copied.load_state_dict(model.state_dict())
    return copied


def test_of_one_sequence_and_layer_it_is_that_of_transformers() -> None:
    model = build("qwen3_moe", num_hidden_layers=1)
    spread(model)
    got, _ = balance(build_like(model, "qwen3_moe", num_hidden_layers=1), [1], True, True)
    ids = torch.tensor([[*PROMPTS[1], *COMPLETIONS[1][:-1]]])
    logits = model(input_ids=ids, output_router_logits=True).router_logits
    assert got == pytest.approx(load_balancing_loss_func(logits, 4, 2).item() / 2, rel=1e-6)


def test_gradient_checkpointing_changes_nothing(saved: Callable[..., Path]) -> None:
    folder = saved("qwen3_moe")
    got = [
        balance(load_policy(ModelConfig(path=str(folder), gradient_checkpointing=on)).model, [0, 1, 2], True, True)
        for on in (False, True)
    ]
    assert got[0][0] == pytest.approx(got[1][0], rel=1e-6)
    assert torch.allclose(got[0][1], got[1][1], atol=1e-7)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("packed", "share"), PATHS)
def test_the_update_takes_the_experts_that_the_sampler_took(
    family: str, packed: bool, share: bool, tokenizer: Any
) -> None:
    model = build(family)
    spread(model)
    watch = watched(model, replay=True)
    engine = NativeEngine(model, tokenizer, 128, max_concurrent=4)
    prompts = [(1, 2, 3), (4, 5, 6, 7, 8, 9, 10), (11,)]
    requests = [RolloutRequest(f"p{n}", prompts[n // 3], n % 3, n) for n in range(9)]
    rollouts = engine.generate(requests, SamplingParams(max_tokens=9), 0)
    for router in find_routers(model):  # the trainer's is rounded
        router.register_forward_pre_hook(lambda _, args: tuple((8 * a).round() / 8 for a in args))

    def trained(forget: bool) -> tuple[float, list[torch.Tensor]]:
        if forget:
            watch.replays = False
        logprobs_BT = completion_logprobs(
            model,
            [r.prompt_ids for r in rollouts],
            [r.completion_ids for r in rollouts],
            packed=packed,
            shared_prefix=share,
        ).logprobs_BT
        sampled = [torch.tensor(r.logprobs_T) for r in rollouts]
        gaps = [float((row_T[: len(own_T)] - own_T).abs().max()) for own_T, row_T in zip(sampled, logprobs_BT)]
        return max(gaps), [routed.chosen_NK for routed in watch.take()[1]]

    replayed, chosen = trained(False)
    own, other = trained(True)
    assert watch.replayed[0] == watch.replayed[1] > 0
    assert any(not torch.equal(a.sort().values, b.sort().values) for a, b in zip(chosen, other))
    assert replayed < own


@pytest.mark.parametrize("family", FAMILIES)
def test_logprobs_are_the_same_where_rounding_decides(family: str, tokenizer: Any) -> None:
    """All experts are as likely but for the last bits, which the trainer has otherwise."""
    model = build(family)
    routers = find_routers(model)
    with torch.no_grad():
        for router in routers:
            router.weight.normal_(std=1e-7)
    watch = watched(model, replay=True)
    requests = [RolloutRequest(f"p{n}", (1, 2, 3 + n), 0, n) for n in range(4)]
    rollouts = NativeEngine(model, tokenizer, 128).generate(requests, SamplingParams(max_tokens=9), 0)
    with torch.no_grad():
        for router in routers:
            router.weight.mul_(-1)

    def gap() -> float:
        out = completion_logprobs(model, [r.prompt_ids for r in rollouts], [r.completion_ids for r in rollouts])
        want = torch.cat([torch.as_tensor(r.logprobs_T) for r in rollouts])
        return float((out.logprobs_BT[out.mask_BT] - want).abs().max())

    replayed = gap()
    watch.replays = False
    assert replayed < 5e-6
    assert gap() > 20 * replayed


def run(train: Train, base: Mapping[str, Any], folder: Path, **experts: Any) -> list[dict[str, Any]]:
    model = {"path": str(folder), "prompt_format": "raw", **experts}
    train({**base, "model": model}, run=f"run{len(list(train.folder.iterdir()))}")
    newest = max(train.folder.glob("run*"), key=lambda p: p.stat().st_mtime_ns)
    rows = [json.loads(line) for line in (newest / "metrics.jsonl").read_text().splitlines()]
    return [row for row in rows if "grad_norm" in row]


GRPO = with_trainer(
    ONLINE, steps=2, eval_samples=0, sampling={"max_tokens": 8}, drop_constant_groups=False, entropy_coefficient=0.1
)
SFT = with_trainer(OFFLINE, max_steps=1, eval_samples=0, sample_prompts=0)

DPO = with_trainer(SFT, name="dpo")
REWARD_MODEL = {**SFT, "trainer": {"name": "reward_model", "max_steps": 1}}


@pytest.mark.parametrize("base", [GRPO, SFT], ids=["grpo", "sft"])
def test_a_run_balances_measures_and_replays(
    base: Mapping[str, Any], saved: Callable[..., Path], tmp_path: Path
) -> None:
    folder, train = saved("qwen3_moe"), Train(tmp_path)
    online = base is GRPO
    experts = {"train_router": True, "balance_loss": 1.0, "replay": online}
    one = run(train, with_trainer(base, micro_batch_size=1), folder, experts=experts)[0]
    all_at_once = run(train, with_trainer(base, micro_batch_size=8), folder, experts=experts)[0]
    frozen = run(train, base, folder)[0]
    loads = [one[f"experts/load_{i}"] for i in range(4)]
    assert sum(loads) == pytest.approx(1.0)
    assert one["experts/entropy"] <= 1.3863
    for name in ("grad_norm", "loss", "experts/balance_loss", "experts/load_0", "experts/entropy"):
        assert one[name] == pytest.approx(all_at_once[name], rel=1e-4), name
    assert one["experts/balance_loss"] > 0.99
    assert one["loss"] == pytest.approx(frozen["loss"] + one["experts/balance_loss"], abs=0.05)
    assert not online or one["experts/replayed"] == 1.0
    assert "experts/replayed" not in frozen


def test_a_schedule_leaves_the_balance_loss_where_it_is(saved: Callable[..., Path], tmp_path: Path) -> None:
    folder, train = saved("qwen3_moe"), Train(tmp_path)
    constant = [{"setting": "trainer.entropy_coefficient", "from": 0.1, "to": 0.1, "end": 2}]
    experts = {"train_router": True, "balance_loss": 1.0}
    want = run(train, GRPO, folder, experts=experts)
    got = run(train, with_trainer(GRPO, schedules=constant), folder, experts=experts)
    assert [row["grad_norm"] for row in got] == [row["grad_norm"] for row in want]


def test_routers_are_frozen_unless_asked(saved: Callable[..., Path], tmp_path: Path) -> None:
    folder, train = saved("mixtral"), Train(tmp_path)
    before = load_policy(ModelConfig(path=str(folder))).model.state_dict()
    for wanted in (False, True):
        run(train, with_trainer(SFT, optimizer={"learning_rate": 1e-2}), folder, experts={"train_router": wanted})
        newest = max(tmp_path.glob("run*"), key=lambda p: p.stat().st_mtime_ns)
        after = load_policy(ModelConfig(path=str(newest / "final"))).model.state_dict()
        changed = {name for name in before if not torch.equal(before[name], after[name])}
        assert any("experts" in name for name in changed)
        assert any(".gate." in name for name in changed) == wanted


@pytest.mark.parametrize(
    ("family", "base", "model", "message"),
    [
        ("llama", SFT, {"experts": {"train_router": True}}, "LlamaForCausalLM has no router"),
        (
            "mixtral",
            REWARD_MODEL,
            {"experts": {"train_router": True, "balance_loss": 0.1}},
            "this run trains no policy",
        ),
        ("mixtral", SFT, {"experts": {"balance_loss": 0.1}}, "balance_loss needs routers that are trained"),
        ("mixtral", SFT, {"experts": {"replay": True}}, "does not sample with the native engine"),
        ("mixtral", SFT, {"experts": {"train_router": True}, "lora": {}}, "needs an adapter of the router"),
        (
            "mixtral",
            with_trainer(GRPO, rollouts={"max_staleness": 1}),
            {"experts": {"replay": True}},
            "rollouts that are sampled ahead",
        ),
    ],
)
def test_what_cannot_be_is_refused(
    family: str, base: Mapping[str, Any], model: Any, message: str, saved: Callable[..., Path], tmp_path: Path
) -> None:
    with pytest.raises((ConfigError, ModelError), match=message):
        run(Train(tmp_path), base, saved(family), **model)


def test_a_pair_is_balanced_by_the_mean_of_both_sides(saved: Callable[..., Path], tmp_path: Path) -> None:
    folder, train = saved("qwen3_moe", max_position_embeddings=256), Train(tmp_path)
    experts = {"train_router": True, "balance_loss": 1.0}
    plain = run(train, DPO, folder, experts={"train_router": True})[0]
    one, all_at_once = (
        run(train, with_trainer(DPO, micro_batch_size=size), folder, experts=experts)[0] for size in (1, 4)
    )
    assert one["grad_norm"] == pytest.approx(all_at_once["grad_norm"], rel=1e-4)
    assert one["loss"] == pytest.approx(plain["loss"] + one["experts/balance_loss"], rel=1e-4)


def test_an_adapter_of_the_router_is_balanced(saved: Callable[..., Path], tmp_path: Path) -> None:
    lora = {"r": 4, "target_modules": ["gate", "q_proj"]}
    experts = {"train_router": True, "balance_loss": 0.1}
    rows = run(Train(tmp_path), SFT, saved("mixtral"), experts=experts, lora=lora)
    assert rows[0]["experts/balance_loss"] > 0.99
