"""Plans come from the run's own operations, and agree with live tensors."""

from __future__ import annotations

import copy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from rlhf_core.cli.options import open_plugins, resolve_options
from rlhf_core.models.config import LoraSettings, ModelConfig
from rlhf_core.models.layers import chunked_head
from rlhf_core.models.load import load_policy
from rlhf_core.models.precision import set_precision
from rlhf_core.models.sources import Source
from rlhf_core.plugins.context import BuildContext
from rlhf_core.rollouts import RolloutRequest, SamplingParams
from rlhf_core.types.errors import ConfigError, ModelError
from rlhf_plugin_native.decode_step import WORTH_TOKENS
from rlhf_plugin_native.engine import NativeEngine
from rlhf_plugin_preflight.memory import check
from rlhf_plugin_preflight.memory import footprint as footprint_module
from rlhf_plugin_preflight.memory.advice import accepted_by_strategy, changes
from rlhf_plugin_preflight.memory.amounts import ranks_here
from rlhf_plugin_preflight.memory.backward import AFTER, FIRST, HEAD, LAST, OTHER, ROOT, SECOND
from rlhf_plugin_preflight.memory.check import check_memory, surely_fits
from rlhf_plugin_preflight.memory.footprint import footprint
from rlhf_plugin_preflight.memory.live import LiveBytes
from rlhf_plugin_preflight.memory.sizes import Row, sizes_of
from rlhf_plugin_preflight.memory.unknown import Unknown, without_values
from rlhf_plugin_preflight.memory.update import rehearse
from rlhf_plugin_preflight.memory.weightless import Described, describe, meta_model

SMALL = ("trainer.micro_batch_size=2", "trainer.batch_size=4", "trainer.sample_prompts=0", "dataset.limit=40")


def context(algo: str, *settings: str, **names: str) -> BuildContext:
    registry, _ = open_plugins()
    run = resolve_options(registry, (), settings, {"algo": algo, "model": "pocket", **names}).config
    return BuildContext(config=run, registry=registry, seed=0)


def test_a_tensor_counts_once_and_until_its_last_view_is_gone() -> None:
    with LiveBytes() as live:
        whole = torch.zeros(1000)
        live.name("kept", [whole])
        view = whole[:10] + 0 * whole[:10].sum()
        view = whole.view(10, 100)
        assert live.now["kept"] == 4000
        del whole
        assert live.now["kept"] == 4000
        del view
        assert live.now["kept"] == 0
        torch.zeros(5000)
        torch.zeros(10)
    assert 20_000 <= live.peak < 25_000


def test_lora_of_rank_16_on_q_k_v_o_of_7b_has_16_8_million_parameters() -> None:
    lora = LoraSettings(r=16, target_modules=("q_proj", "k_proj", "v_proj", "o_proj"))
    with without_values():
        parameters = list(meta_model(ModelConfig(path="llama-2-7b", lora=lora)).model.parameters())
    assert sum(p.numel() for p in parameters if p.requires_grad) == 16_777_216
    assert sum(p.numel() for p in parameters if not p.requires_grad) == 6_738_415_616


def test_a_shape_has_no_memory() -> None:
    with LiveBytes() as live:
        shape = torch.empty(1000, device="meta")
        live.name("weights", [shape])
    assert (live.peak, live.total) == (0, 0)


@pytest.mark.slow
@pytest.mark.parametrize("algo", ["sft", "dpo"])
def test_an_update_without_weights_holds_what_a_real_one_holds(algo: str) -> None:
    ctx = context(algo, *SMALL)
    policy = load_policy(ctx.config.model)
    sizes = sizes_of(ctx.config, ctx, policy.context)
    real = rehearse(ctx.with_(policy=policy), sizes, Unknown())
    with without_values() as unknown:
        planned = rehearse(ctx.with_(policy=meta_model(ctx.config.model)), sizes, unknown)
    assert sum(planned.parts.values()) == pytest.approx(sum(real.parts.values()), rel=0.01)
    assert planned.parts["optimizer"] == pytest.approx(2 * planned.trained, rel=1e-3)
    assert list(planned.stages) == list(real.stages) == [HEAD, FIRST, SECOND, LAST, AFTER, ROOT]
    for name, stage in planned.stages.items():
        assert stage.activations == pytest.approx(real.stages[name].activations, rel=0.01), name
    layers, root = planned.units * planned.layer, planned.stages[ROOT].undivided.gradients
    assert (planned.units, root) == (4, 2 * planned.root)
    assert layers + planned.root == planned.trained
    assert planned.stages[LAST].activations < planned.stages[FIRST].activations


def test_a_copy_of_a_tensor_without_values_is_its_views_memory() -> None:
    """The critic begins as a copy of the policy's trunk; its weights are no activations when they are used."""
    with without_values():
        trunk = meta_model(ModelConfig(path="pocket")).model.model
        copied = copy.deepcopy(trunk)
        assert {type(p) for p in copied.parameters()} == {type(p) for p in trunk.parameters()}
        assert all(p.requires_grad and isinstance(p, torch.nn.Parameter) for p in copied.parameters())
        weight = copied.layers[0].mlp.up_proj.weight
        with LiveBytes() as live:
            live.name("critic", [weight])
            view = weight.t()
            assert live.total == live.now["critic"] == 4 * weight.numel()
        assert view.untyped_storage() is weight.untyped_storage()
        tied = torch.nn.ModuleList([trunk.embed_tokens, trunk.embed_tokens])
        first, second = copy.deepcopy(tied)
        assert first.weight is second.weight


@pytest.mark.slow
def test_the_backward_goes_through_the_critic_first() -> None:
    """Its gradients, and what it kept, are gone or complete when the policy's head begins."""
    names = {"reward": "exact", "dataset": "pocket/arithmetic"}
    small = ("trainer.rollout_batch_size=8", "trainer.train_batch_size=8", "trainer.micro_batch_size=8")
    update = footprint(context("ppo", *small, "trainer.eval_samples=0", **names), on_cpu=True).update
    assert (update.units, update.first_units) == (8, 4)
    head, other = update.stages[HEAD], update.stages[OTHER]
    assert other.activations < 0.7 * head.activations
    assert other.whole.gradients == pytest.approx(update.critic, rel=0.01)
    root_of_critic = update.root / 2
    assert other.undivided.gradients == pytest.approx(root_of_critic, rel=0.01)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_sampling_is_planned_with_the_casts_that_it_keeps(precision: str) -> None:
    """Of all weights: autocast keeps them for the next token."""
    small = (
        "trainer.rollout_batch_size=2",
        "trainer.group_size=2",
        "trainer.micro_batch_size=2",
        "rollout.max_concurrent=1",
    )
    more = (f"trainer.sampling.max_tokens={WORTH_TOKENS - 1}", f"trainer.precision={precision}")
    planned = footprint(context("grpo", *small, *more), on_cpu=True, prompt=8)
    policy = load_policy(ModelConfig(path="pocket"))
    set_precision(policy.model, "bf16" if precision == "bf16" else "fp32")
    engine = NativeEngine(policy.model, policy.tokenizer, policy.context)
    request, sampling = RolloutRequest("p", tuple(range(6, 14)), 0, 1), SamplingParams(max_tokens=WORTH_TOKENS - 1)
    with LiveBytes() as live:
        live.name("weights", [*policy.model.parameters(), *policy.model.buffers()])
        live.begin()
        engine.generate([request], sampling, 0)
    assert planned.sampling is not None
    assert sum(planned.sampling.parts.values()) == pytest.approx(live.at_peak["activations"], rel=0.1)


@pytest.mark.slow
def test_checkpointing_keeps_fewer_activations() -> None:
    def activations(*more: str) -> int:
        return footprint(context("sft", *SMALL, *more), on_cpu=True).update.parts["activations"]

    plain, layers = activations(), activations("model.gradient_checkpointing=true")
    assert layers < 0.7 * plain
    assert layers < activations("model.gradient_checkpointing=selective") < 0.9 * plain


@pytest.mark.long
@pytest.mark.slow
def test_two_shallow_models_tell_what_a_deep_one_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    ctx = context("grpo", "trainer.rollout_batch_size=8", "trainer.micro_batch_size=4", "trainer.eval_samples=0")
    ctx = ctx.with_(config=ctx.config.model_copy(update={"reward": None}))
    whole = footprint(ctx, on_cpu=True)
    monkeypatch.setattr(footprint_module, "DEPTHS", (2, 3))
    continued = footprint(ctx, on_cpu=True)
    assert continued.model == whole.model
    assert sum(continued.update.parts.values()) == pytest.approx(sum(whole.update.parts.values()), rel=0.02)
    assert (continued.update.units, continued.update.root) == (whole.update.units, whole.update.root)
    for name, stage in continued.update.stages.items():
        assert stage.activations == pytest.approx(whole.update.stages[name].activations, rel=0.02), name
    assert continued.sampling is not None
    assert whole.sampling is not None
    assert continued.sampling.decoding["KV cache"] == whole.sampling.decoding["KV cache"]
    assert continued.sampling.copying == whole.sampling.copying


@pytest.mark.slow
def test_a_card_takes_the_head_in_few_chunks_as_large_as_the_hidden_states(monkeypatch: pytest.MonkeyPatch) -> None:
    products: list[int] = []

    def counted(hidden_CH: torch.Tensor, *rest: Any) -> torch.Tensor:
        products.append(hidden_CH.shape[0])
        return centred_logits(hidden_CH, *rest)

    centred_logits = chunked_head._centred_logits
    monkeypatch.setattr(chunked_head, "_centred_logits", counted)
    ctx = context("grpo", "trainer.sampling.max_tokens=8192", model="qwen3-0.6b")
    update = footprint(ctx, on_cpu=False, prompt=512, device=80 << 30).update
    assert update.stages
    assert max(products) * 151_936 <= sum(Row(512, (8192,) * 8)[1]) * 1024, "logits of a chunk are no larger"
    assert max(products) > 400
    assert len(products) < 700, "with chunks of 55 rows there were 4,800"


@pytest.mark.slow
def test_a_run_that_cannot_fit_is_refused_unless_forced(monkeypatch: pytest.MonkeyPatch) -> None:
    ctx = context("sft", *SMALL[1:], "trainer.micro_batch_size=1", "model.gradient_checkpointing=true")
    monkeypatch.setattr("rlhf_plugin_preflight.memory.amounts.available_ram", lambda: 20_000_000)
    monkeypatch.setattr("rlhf_plugin_preflight.memory.report.available_ram", lambda: 20_000_000)
    with pytest.raises(ConfigError, match=r"cannot fit: it holds 22 MB") as refused:
        check_memory(ctx, force=False)
    assert "--set model.lora.r=16" in str(refused.value)
    assert "--force" in str(refused.value)
    check_memory(ctx, force=True)


@pytest.mark.slow
def test_a_run_that_every_rank_would_have_to_load_whole_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """With adapters a rank of stage 3 holds a fraction of the model once it is divided, and the model before, where its
    weights cannot be read by parts."""
    small = context("sft", *SMALL[1:], "trainer.micro_batch_size=1", "model.lora.r=1")
    free = 8 * 5_400_000  # of 8 ranks, 5.5 MB of weights each
    monkeypatch.setattr("rlhf_plugin_preflight.memory.amounts.available_ram", lambda: free)
    monkeypatch.setattr("rlhf_plugin_preflight.memory.report.available_ram", lambda: free)

    def preflight(ctx: Any) -> None:
        if ctx.config.model.dtype != "float32":
            raise ConfigError("steps float32 alone")

    monkeypatch.setattr("rlhf_plugin_preflight.memory.footprint.lies_by_parts", lambda config, text: False)
    strategy = SimpleNamespace(name="deepspeed", device="cpu", planned_as="zero3", bucket=1, preflight=preflight)
    ctx = small.with_(world_size=8, config=small.config.model_copy(update={"strategy": strategy}))
    with pytest.raises(ConfigError, match="cannot fit: it holds") as refused:
        check_memory(ctx, force=False)
    assert "every rank loads all of it before it is divided" in str(refused.value)
    assert "by parts" in str(refused.value)
    accepted = accepted_by_strategy(ctx)
    assert {c.setting for c in changes(ctx.config) if not accepted(c.make(ctx.config))} == {"model.dtype=bfloat16"}


GRPO = {"reward": "exact", "dataset": "pocket/arithmetic"}
SHORT = (
    "trainer.rollout_batch_size=8", "trainer.micro_batch_size=1", "trainer.kl.track=false", "rollout.max_concurrent=1",
    "trainer.sampling.max_tokens=8", "dataset.limit=20",
)  # fmt: skip


def on_cards(monkeypatch: pytest.MonkeyPatch, card: int, main: int = 1 << 40) -> None:
    """Cards, and main memory, with so many bytes free."""
    monkeypatch.setattr(check, "surely_fits", lambda ctx, limit: False)
    monkeypatch.setattr("rlhf_plugin_preflight.memory.report.device_of", lambda run, ranks: ("cuda", card))
    monkeypatch.setattr("rlhf_plugin_preflight.memory.footprint.device_memory", lambda on_cpu: card)
    monkeypatch.setattr("rlhf_plugin_preflight.memory.amounts.available_ram", lambda: main)


def sharded(ctx: BuildContext, ranks: int, **settings: Any) -> BuildContext:
    """With a strategy as FSDP's configuration is, which refuses nothing."""
    strategy = SimpleNamespace(name="fsdp", device="auto", preflight=lambda ctx: None, **settings)
    return ctx.with_(world_size=ranks, config=ctx.config.model_copy(update={"strategy": strategy}))


@pytest.mark.slow
def test_a_run_whose_sampling_gathers_more_than_a_card_has_is_refused(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """64 ranks hold a 64th of weights, gradients and moments in an update; to sample each has the model whole."""
    on_cards(monkeypatch, 5_400_000)
    ctx = sharded(context("grpo", *SHORT, "model.gradient_checkpointing=true", **GRPO), 64)
    with pytest.raises(ConfigError, match=r"cannot fit: it holds 5\.8") as refused:
        check_memory(ctx, force=False)
    assert refused.value.exit_code == 2
    assert "to sample, all weights are on every rank" in str(refused.value)
    assert "gathered units 5.49 MB" in str(refused.value)
    assert "--set model.dtype=bfloat16" in str(refused.value)
    assert "--force" in str(refused.value)
    check_memory(ctx, force=True)
    assert "may need" in caplog.text


@pytest.mark.slow
def test_what_is_offloaded_must_fit_into_main_memory(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """20 bytes of a parameter beside the device: weight, gradient, two moments, and a reference's weight."""
    whole = 1_372_960 * (4 + 4 + 8)
    few = (*SMALL[1:], "trainer.micro_batch_size=1", "model.gradient_checkpointing=true")
    ctx = sharded(context("sft", *few), 8, offload=True)
    on_cards(monkeypatch, 1 << 40, main=int(whole * 1.01))
    check_memory(ctx, force=False)
    on_cards(monkeypatch, 1 << 40, main=int(whole * 0.99))
    with pytest.raises(ConfigError, match=r"needs 22 MB of main memory, and 21\.7 MB are free") as refused:
        check_memory(ctx, force=False)
    assert refused.value.exit_code == 2
    assert "on each of 8 ranks of this machine weights 686 kB" in str(refused.value)
    assert "--set model.lora.r=16" in str(refused.value)
    assert "strategy.offload" in str(refused.value)
    check_memory(ctx, force=True)
    assert "what is offloaded needs" in caplog.text
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")  # two machines
    check_memory(ctx, force=False)


def test_ranks_of_this_machine_are_those_that_the_launcher_says() -> None:
    assert ranks_here(8, {}) == 8
    assert ranks_here(8, {"LOCAL_WORLD_SIZE": "2", "RANK": "0"}) == 2
    assert ranks_here(8, {"SLURM_STEP_TASKS_PER_NODE": "4(x2)", "RANK": "0"}) == 4
    assert ranks_here(8, {"SLURM_STEP_TASKS_PER_NODE": "1"}) == 8  # a batch script's own


def test_what_only_long_completions_would_fill_is_not_refused(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("rlhf_plugin_preflight.memory.amounts.available_ram", lambda: 24_000_000)
    monkeypatch.setattr("rlhf_plugin_preflight.memory.report.available_ram", lambda: 24_000_000)
    check_memory(context("sft", *SMALL), force=False)
    assert "may need" in caplog.text


@pytest.mark.parametrize("algo", ["sft", "dpo", "grpo", "ppo", "reward_model"])
def test_recipes_of_the_pocket_model_are_let_through_without_a_plan(algo: str) -> None:
    names: dict[str, Any] = (
        {} if algo in ("sft", "dpo", "reward_model") else {"reward": "exact", "dataset": "pocket/arithmetic"}
    )
    assert surely_fits(context(algo, **names), 6 << 30)


def test_what_cannot_be_planned_is_let_through(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*args: Any, **kwargs: Any) -> Any:
        raise ModelError("no rehearsal of this model")

    monkeypatch.setattr("rlhf_plugin_preflight.memory.amounts.available_ram", lambda: 1 << 20)
    monkeypatch.setattr("rlhf_plugin_preflight.memory.footprint.footprint", fails)
    with caplog.at_level("INFO", "rlhf"):
        check_memory(context("sft", *SMALL), force=False)
    assert "could not be planned: ModelError: no rehearsal of this model" in caplog.text


def test_what_is_resized_without_an_operation_is_counted() -> None:
    """FSDP frees gathered weights so."""
    with LiveBytes() as live:
        gathered = torch.zeros(1000)
        live.name("gathered", [gathered])
        gathered.untyped_storage().resize_(0)
        live.resized(gathered.untyped_storage())
        assert live.now["gathered"] == 0
        gathered.untyped_storage().resize_(8000)
        live.resized(gathered.untyped_storage())
        assert (live.now["gathered"], live.peak) == (8000, 8000)


def test_a_divided_tensor_counts_as_the_part_that_is_here() -> None:
    class Half(torch.Tensor):
        """As DTensor: it looks whole, and holds a part."""

        @staticmethod
        def __new__(cls, part: torch.Tensor) -> Any:
            return torch.Tensor._make_wrapper_subclass(cls, (2 * len(part),))  # type: ignore[attr-defined]  # pyright: ignore

        def __init__(self, part: torch.Tensor) -> None:
            self.part, self.mesh = part, "two ranks"

        @classmethod
        def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            raise NotImplementedError(func)

        def __tensor_flatten__(self) -> tuple[list[str], None]:
            return ["part", "mesh"], None

        @classmethod
        def __tensor_unflatten__(cls, inner: Any, meta: Any, size: Any, stride: Any) -> Any:
            return cls(inner["part"])

    divided = Half(torch.zeros(1000))
    live = LiveBytes()
    live.name("weights", [divided])
    live.name("weights", [divided])
    assert live.now["weights"] == 4000


def test_an_adapter_has_no_weights_to_read_by_parts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    run = context("sft").config
    with without_values():
        model = meta_model(run.model)
        assert footprint_module.measure_model(run.model, model).by_parts
        found = describe(run.model)
        source = Source(found.source.path, adapter=str(tmp_path))
        monkeypatch.setattr(
            "rlhf_plugin_preflight.memory.weightless.describe", lambda _: Described(found.config, source)
        )
        assert not footprint_module.measure_model(run.model, model).by_parts
        monkeypatch.setattr("rlhf_plugin_preflight.memory.weightless.describe", lambda _: found)
        monkeypatch.setattr(model.model.config, "quantization_config", {"quant_method": "bitsandbytes"}, raising=False)
        assert not footprint_module.measure_model(run.model, model).by_parts
