"""The cheapest change with which a run fits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from rlhf_core.config import UserError
from rlhf_plugin_preflight.dry_run.look import keeps_reference
from rlhf_plugin_preflight.memory.engine import accepted_by_engine, says_memory
from rlhf_plugin_preflight.memory.plan import MemoryPlan

if TYPE_CHECKING:
    from rlhf_core.config import BuildContext, RunConfig
    from rlhf_plugin_preflight.memory.footprint import Footprint

Replan = Callable[["RunConfig"], MemoryPlan]


SELECTIVE = "model.gradient_checkpointing=selective"
OFFLOAD = "model.gradient_checkpointing=offload"
NO_SAMPLES = "trainer.sample_prompts=0"


class Change(NamedTuple):
    setting: str
    cost: str
    make: Callable[[Any], Any]


class Advice(NamedTuple):
    """Settings with which the run fits, and its peak with them; ``fits`` is False for all of them together."""

    changes: Sequence[Change]
    peak: int
    fits: bool


def changes(run: RunConfig) -> Iterator[Change]:
    """What can be changed, the cheapest first: what costs time, then what changes what is learned."""
    trainer: Any = run.trainer
    if getattr(trainer, "sample_prompts", 0) and run.reward is None:
        yield Change(NO_SAMPLES, "no samples of the policy, so no metric kl", lambda r: _trainer(r, sample_prompts=0))
    size = int(trainer.micro_batch_size)
    while size > 1:
        size //= 2
        yield Change(f"trainer.micro_batch_size={size}", "more, smaller forwards; the same update", _micro_batch(size))
    if getattr(trainer, "kl", None) is not None and keeps_reference(run) and not getattr(trainer.kl, "coefficient", 0):
        yield Change(
            "trainer.kl.track=false", "no metric kl", lambda r: _trainer(r, kl=_with(r.trainer.kl, track=False))
        )
    elif getattr(trainer, "track_kl", False) and keeps_reference(run):
        yield Change("trainer.track_kl=false", "no metric kl", lambda r: _trainer(r, track_kl=False))
    engine: Any = run.rollout
    if says_memory(run):
        for setting, cost, config in getattr(engine, "memory_changes", tuple)():
            yield Change(setting, cost, _engine(config))
    elif run.samples_itself and hasattr(engine, "max_concurrent"):
        for most in (64, 16, 4, 1):
            if most < min(engine.max_concurrent, trainer.rollout_batch_size):
                yield Change(f"rollout.max_concurrent={most}", "slower sampling", _concurrent(most))
    if keeps_reference(run) and getattr(trainer, "reference", None) is None:
        cost = "the reference moves from main memory to the card in each step"
        yield Change("trainer.reference.kind=offload", cost, _offload)
    if not run.model.gradient_checkpointing:
        cost = "norms and activation functions are computed twice; the same gradient"
        yield Change(SELECTIVE, cost, lambda r: _model(r, gradient_checkpointing="selective"))
    if run.model.gradient_checkpointing in (False, "selective"):
        cost = "a slower update, the same gradient"
        yield Change("model.gradient_checkpointing=true", cost, lambda r: _model(r, gradient_checkpointing=True))
    elif run.model.gradient_checkpointing != "offload":
        cost = "what layers are given moves to main memory and back; the same gradient"
        yield Change(OFFLOAD, cost, lambda r: _model(r, gradient_checkpointing="offload"))
    if getattr(trainer, "precision", None) == "fp32" and run.model.dtype == "float32":
        cost = "activations in bfloat16"
        yield Change("trainer.precision=bf16", cost, lambda r: _trainer(r, precision="bf16"))
    if run.model.lora is None:
        cost = "adapters learn, the weights do not"
        yield Change("model.lora.r=16", cost, _lora)
    if run.model.dtype == "float32":
        cost = "weights and moments of 8 bits of precision: small updates are lost"
        yield Change("model.dtype=bfloat16", cost, _bfloat16)


def accepted_by_strategy(ctx: BuildContext) -> Callable[[RunConfig], bool]:
    """Whether the strategy takes a changed configuration; what it refuses of the run already is no fault."""

    def refusal(run: RunConfig) -> str | None:
        try:
            if run.strategy is not None:
                run.strategy.preflight(ctx.with_(config=run))
        except UserError as error:
            return str(error)
        return None

    before = refusal(ctx.config)
    return lambda run: refusal(run) in (None, before)


def accepted(ctx: BuildContext, footprint: Footprint) -> Callable[[RunConfig], bool]:
    """Whether strategy, rollout engine and installed plugins take a changed configuration."""
    by_strategy = accepted_by_strategy(ctx)
    by_engine = accepted_by_engine(footprint.facts) if footprint.facts is not None else by_strategy
    on_cpu = footprint.facts is None or footprint.facts.on_cpu
    refused = {"offload"} if on_cpu else set[str]()
    if all(entry.distribution != "rlhf-plugin-optimizers" for entry in ctx.registry.entries("optimizer")):
        refused.add("selective")
    return lambda run: by_engine(run) and by_strategy(run) and run.model.gradient_checkpointing not in refused


def cheapest(run: RunConfig, limit: int, replan: Replan, accepted: Callable[[RunConfig], bool]) -> Advice:
    """The first change that is enough for ``limit`` bytes, else as many as are together, the cheapest first."""
    every = [change for change in changes(run) if accepted(change.make(run))]
    furthest = list({_key(change): change for change in every}.values())  # of a setting's values the last
    for last in furthest:
        least = replan(last.make(run)).peak
        if least > limit:
            continue
        for change in (c for c in every if _key(c) == _key(last) and c is not last):
            if (peak := replan(change.make(run)).peak) <= limit:
                return Advice([change], peak, True)
        return Advice([last], least, True)
    made: list[Change] = []
    peak = replan(run).peak
    for change in furthest:
        smaller = replan(_with_changes(run, [*made, change])).peak
        if smaller < peak:
            made, peak = [*made, change], smaller
        if peak <= limit:
            return _needed(run, made, limit, replan)
    return Advice(made, peak, False)


def _needed(run: RunConfig, made: Sequence[Change], limit: int, replan: Replan) -> Advice:
    """Without the changes that later ones made unnecessary, the dearest of them left out first."""
    for change in reversed(made[:-1]):
        fewer = [c for c in made if c is not change]
        if replan(_with_changes(run, fewer)).peak <= limit:
            made = fewer
    return Advice(made, replan(_with_changes(run, made)).peak, True)


def _key(change: Change) -> str:
    return change.setting.split("=")[0]


def _with_changes(run: RunConfig, made: Sequence[Change]) -> RunConfig:
    for change in made:
        run = change.make(run)
    return run


def _with(config: Any, **values: Any) -> Any:
    return config.model_copy(update=values)


def _trainer(run: Any, **values: Any) -> Any:
    return _with(run, trainer=_with(run.trainer, **values))


def _model(run: Any, **values: Any) -> Any:
    return _with(run, model=_with(run.model, **values))


def _micro_batch(size: int) -> Callable[[Any], Any]:
    return lambda run: _trainer(run, micro_batch_size=size, gradient_accumulation_steps=None)


def _concurrent(most: int) -> Callable[[Any], Any]:
    return lambda run: _with(run, rollout=_with(run.rollout, max_concurrent=most))


def _offload(run: Any) -> Any:
    from rlhf_core.training.config import ReferencePlacement

    return _trainer(run, reference=ReferencePlacement(kind="offload"))


def _engine(config: Any) -> Callable[[Any], Any]:
    return lambda run: _with(run, rollout=config)


def _lora(run: Any) -> Any:
    from rlhf_core.models import ModelConfig

    return _model(run, lora=ModelConfig.from_settings({"lora": {}}).lora)


def _bfloat16(run: Any) -> Any:
    changed = _model(run, dtype="bfloat16")
    return _trainer(changed, precision="fp32") if hasattr(run.trainer, "precision") else changed
