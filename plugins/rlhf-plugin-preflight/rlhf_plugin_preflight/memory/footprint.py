"""What one process that holds everything needs, found by rehearsing the run without weights."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from rlhf_core.models import ModelConfig, ModelError, model_paths
from rlhf_core.models.layers import chunked_head, trunk_and_head
from rlhf_core.models.precision import set_precision
from rlhf_core.models.save import is_peft
from rlhf_core.models.slices import is_converted
from rlhf_plugin_preflight.dry_run.look import reference_bytes
from rlhf_plugin_preflight.memory.amounts import device_memory
from rlhf_plugin_preflight.memory.backward import Stage
from rlhf_plugin_preflight.memory.engine import EngineFacts, EngineMemory, engine_memory, says_memory
from rlhf_plugin_preflight.memory.four_bits import dequantized_bytes, packed_weights, unpacked_sizes
from rlhf_plugin_preflight.memory.live import tensor_bytes
from rlhf_plugin_preflight.memory.phase import lies_by_parts
from rlhf_plugin_preflight.memory.sampling import Sampling, rehearse_sampling
from rlhf_plugin_preflight.memory.sizes import Sizes, sizes_of
from rlhf_plugin_preflight.memory.unknown import Unknown, without_values
from rlhf_plugin_preflight.memory.update import Update, rehearse
from rlhf_plugin_preflight.memory.weightless import meta_model

if TYPE_CHECKING:
    from rlhf_core.config import BuildContext, RunConfig


@dataclass(frozen=True)
class ModelSize:
    """A model's weights, in bytes unless said otherwise."""

    path: str
    parameters: int
    trained: int
    layers: int
    heads: int
    kv_heads: int
    weights: int
    layer: int
    """The largest decoder layer without what is packed: what a sharding strategy gathers at a time."""
    root: int
    """What is in no decoder layer: embedding, last norm, head."""
    context: int
    merged: int = 0
    """Weights that adapters are added to, of which the final model gets new ones."""
    largest: int = 0
    """The largest weight: what is gathered at a time to be written."""
    largest_merged: int = 0
    """The largest that adapters are added to."""
    by_parts: bool = True
    """Whether a rank can read its part of a weight from the files (:mod:`rlhf_core.models.slices`)."""
    packed: int = 0
    """Weights of 4 bits, which every rank holds whole."""
    converted: bool = False
    """Whether transformers computes weights from each other when it writes them, and needs all at once."""


@dataclass(frozen=True)
class SixteenBits:
    """What is otherwise where FSDP gathers decoder layers in 16 bits (``strategy.param_dtype``), bytes."""

    layer: int
    """The largest decoder layer."""
    saved: int
    """By which all layers are smaller than they are stored."""
    stages: dict[str, Stage]
    """Of the update's backward, without casts of what is in 16 bits already."""
    sampling: Sampling | None


@dataclass(frozen=True)
class Footprint:
    """Bytes in one process that holds everything."""

    model: ModelSize
    sizes: Sizes
    reference: int
    """A frozen copy of the policy."""
    sampler: int
    """Copies to sample from while the policy is trained."""
    rewards: int
    teacher: int
    """Whole on each rank."""
    update: Update
    sampling: Sampling | None
    """None where nothing is sampled, or by an engine with weights of its own."""
    engine: EngineMemory | None = None
    """Of such an engine."""
    facts: EngineFacts | None = None
    """What it depends on."""
    reference_kind: str | None = None
    """``trainer.reference.kind``; None lies as the weights do."""
    sixteen_bits: SixteenBits | None = None
    """Of a run whose strategy gathers so."""
    tensor: int = 1
    """Ranks that divide each decoder layer (``strategy.tensor_parallel``)."""
    part: ModelSize | None = None
    """What one of them has of the model, of which the update is. None: all of it."""

    @property
    def own(self) -> ModelSize:
        """What a rank has of the model before FSDP divides it."""
        return self.part or self.model


DEPTHS = (2, 4)
"""Decoder layers that are rehearsed of a model with more: every layer costs the same (:func:`alike`)."""


def footprint(
    ctx: BuildContext,
    *,
    on_cpu: bool,
    prompt: int | None = None,
    reply: int | None = None,
    device: int | None = None,
    check: Callable[[ModelSize], None] = lambda model: None,
) -> Footprint:
    """Rehearse a run; of a deep model with equal layers two shallow ones, continued along the line through both.
    ``prompt``, ``reply``: tokens instead of the data's; ``device``: bytes of each card, None: this machine's; ``check``
    sees the model first."""
    with _as_in_a_run(ctx.config, on_cpu=on_cpu), without_values() as unknown:
        policy = meta_model(ctx.config.model)
        check(measure_model(ctx.config.model, policy))
        sizes = sizes_of(ctx.config, ctx, policy.context, prompt, reply)
        together = divided_among(ctx.config, "tensor_parallel") * divided_among(ctx.config, "sequence_parallel")
        sizes = replace(sizes, micro_batches=sizes.micro_batches * together)
        facts = _facts(ctx, policy, sizes, device_memory(on_cpu=on_cpu) if device is None else device, on_cpu)
        engine = engine_memory(ctx.config, facts)
        blocks = decoder_layers(policy.model)
        if len(blocks) <= DEPTHS[1] or not alike(blocks):
            return replace(_rehearsed(ctx, policy, sizes, unknown, on_cpu), engine=engine, facts=facts)
        few, more = (_rehearsed(ctx, meta_model(ctx.config.model, depth), sizes, unknown, on_cpu) for depth in DEPTHS)
        whole_model: Footprint = _continued(few, more, (len(blocks) - DEPTHS[0]) / (DEPTHS[1] - DEPTHS[0]))
        size, update = measure_model(ctx.config.model, policy), whole_model.update.at_peak()
        return replace(whole_model, model=size, update=update, engine=engine, facts=facts)


def alike(blocks: Sequence[Any]) -> bool:
    """Whether all decoder layers have weights of the same shapes."""
    shapes = {
        tuple((name, tuple(p.shape), p.requires_grad) for name, p in block.named_parameters()) for block in blocks
    }
    return len(shapes) == 1


def _continued(few: Any, more: Any, times: float) -> Any:
    """The number, or the object of numbers, at ``few + times * (more - few)``."""
    if isinstance(few, bool) or (not isinstance(few, int | dict) and not is_dataclass(few)):
        return more
    if isinstance(few, int):
        return max(0, round(few + times * (more - few)))
    if isinstance(few, dict):
        names: list[str] = list(dict.fromkeys([*few, *more]))
        return {name: _continued(few.get(name, 0), more.get(name, 0), times) for name in names if name in more}
    if isinstance(few, Sizes):
        return more
    return replace(
        more, **{f.name: _continued(getattr(few, f.name), getattr(more, f.name), times) for f in fields(few)}
    )


@contextmanager
def _as_in_a_run(run: RunConfig, *, on_cpu: bool) -> Generator[None, None, None]:
    """torch's settings, as ``runs.launch.process.set_up_torch`` has them: they decide what backward does. And chunks of
    the head as large as on the device."""
    import torch

    small_caches = chunked_head.SMALL_CACHES
    chunked_head.SMALL_CACHES = small_caches if on_cpu else ()
    settings: Any = torch.utils.deterministic
    was, fills = torch.are_deterministic_algorithms_enabled(), settings.fill_uninitialized_memory
    torch.use_deterministic_algorithms(run.deterministic, warn_only=True)
    settings.fill_uninitialized_memory = False
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's of tensors without memory, peft's and transformers' of each other
            yield
    finally:
        chunked_head.SMALL_CACHES = small_caches
        torch.use_deterministic_algorithms(was, warn_only=True)
        settings.fill_uninitialized_memory = fills


def _rehearsed(ctx: BuildContext, policy: Any, sizes: Sizes, unknown: Unknown, on_cpu: bool) -> Footprint:
    run = ctx.config.with_precision()
    set_precision(policy.model, getattr(run.trainer, "precision", "fp32"))
    ctx = ctx.with_(policy=policy)
    size = measure_model(run.model, policy)
    trained = tensor_bytes(p for p in policy.model.parameters() if p.requires_grad)
    tensor = divided_among(run, "tensor_parallel")
    with rehearsed(ctx):
        part, update = measure_model(run.model, policy), rehearse(ctx, sizes, unknown)
    measured = Footprint(
        model=size,
        sizes=sizes,
        reference=reference_bytes(run, size.weights, size.parameters),
        reference_kind=getattr(getattr(run.trainer, "reference", None), "kind", None),
        sampler=2 * trained if _samples_from_a_copy(run) else 0,
        rewards=reward_model_count(ctx),
        teacher=teacher_bytes(run),
        update=update,
        tensor=tensor,
        part=part if tensor > 1 else None,
        sampling=rehearse_sampling(ctx, sizes, on_cpu=on_cpu) if sizes.prompts and not says_memory(run) else None,
    )
    if getattr(run.strategy, "param_dtype", "float32") == "float32":
        return measured
    return replace(measured, sixteen_bits=_in_16_bits(ctx, measured, unknown, on_cpu))


def _in_16_bits(ctx: BuildContext, measured: Footprint, unknown: Unknown, on_cpu: bool) -> SixteenBits:
    """Rehearse again with decoder layers of that type; their stored weights, gradients and moments stay as they are."""
    import torch

    for part in (m for block in decoder_layers(ctx.policy.model) for m in block.modules()):
        for name, weight in list(part.named_parameters(recurse=False)):
            narrow = torch.nn.Parameter(weight.detach().to(torch.bfloat16), requires_grad=weight.requires_grad)
            setattr(part, name, narrow)
    with rehearsed(ctx):
        size, update = measure_model(ctx.config.model, ctx.policy), rehearse(ctx, measured.sizes, unknown)
    sampling = rehearse_sampling(ctx, measured.sizes, on_cpu=on_cpu) if measured.sampling is not None else None
    saved = (measured.part or measured.model).weights - size.weights
    return SixteenBits(size.layer, saved, update.stages, sampling)


def rehearsed(ctx: BuildContext) -> AbstractContextManager[None]:
    """Inside, the policy is what one of the ranks has and computes that divide its layers or its sequences."""
    return getattr(ctx.config.strategy, "rehearsed", nullcontext)(ctx.policy.model)


def divided_among(run: RunConfig, what: Literal["tensor_parallel", "sequence_parallel"]) -> int:
    """Ranks that compute each micro-batch together."""
    return getattr(run.strategy, what, 1)


def _facts(ctx: BuildContext, policy: Any, sizes: Sizes, device: int, on_cpu: bool) -> EngineFacts:
    """What the memory of an engine with weights of its own depends on."""
    run = ctx.config.with_precision()
    mixed = getattr(run.trainer, "precision", "fp32") != "fp32"
    element = 2 if mixed or run.model.dtype == "bfloat16" else 4
    text = trunk_and_head.base_model(policy.model).config.get_text_config()
    heads = int(getattr(text, "num_attention_heads", 1) or 1)
    width = int(getattr(text, "head_dim", None) or text.hidden_size // heads)
    named, sizes_by_name = dict(policy.model.named_parameters()), unpacked_sizes(policy.model)
    folded = bool(run.model.lora and policy.model.peft_config["default"].target_parameters)  # experts' adapters
    trained = [p for name, p in named.items() if (".lora_" not in name if folded else p.requires_grad)]
    return EngineFacts(
        weights=element * sum(size for name, size in sizes_by_name.items() if ".lora_" not in name),
        head=element * int(text.vocab_size) * int(text.hidden_size),
        token=2 * element * width * int(getattr(text, "num_key_value_heads", None) or heads) * text.num_hidden_layers,
        vocabulary=int(text.vocab_size),
        context=policy.context,
        rows=len(sizes.prompts) * sizes.group,
        trained=tensor_bytes(trained),
        largest=max((tensor_bytes([p]) for p in trained), default=0),
        lora=run.model.lora is not None and not folded,
        on_cpu=on_cpu,
        device=device,
        ranks=ctx.world_size,
        unit=element * max(_units(policy.model), default=0),
    )


def _units(model: Any) -> Iterator[int]:
    """Weights of each decoder layer, and of each parameter outside."""
    layers = decoder_layers(model)
    inside = {id(p) for layer in layers for p in layer.parameters()}
    yield from (sum(unpacked_sizes(layer).values()) for layer in layers)
    yield from (p.numel() for p in model.parameters() if id(p) not in inside)


def measure_model(config: ModelConfig, policy: Any) -> ModelSize:
    """Count a model's parameters and the bytes of its parts."""
    parameters = list(policy.model.parameters())
    text = trunk_and_head.base_model(policy.model).config.get_text_config()
    blocks = decoder_layers(policy.model)
    packed = packed_weights(policy.model)
    whole = {id(p) for p in packed}
    divided = [p for p in parameters if id(p) not in whole]
    layer = max((tensor_bytes(p for p in block.parameters() if id(p) not in whole) for block in blocks), default=0)
    inside = sum(tensor_bytes(block.parameters()) for block in blocks)
    weights = tensor_bytes([*parameters, *policy.model.buffers()])
    merged = [dequantized_bytes(m.base_layer) for m in policy.model.modules() if hasattr(m, "get_delta_weight")]
    heads = int(getattr(text, "num_attention_heads", 1) or 1)
    converted = is_converted(policy.model.get_base_model() if is_peft(policy.model) else policy.model)
    return ModelSize(
        path=config.path,
        parameters=sum(p.numel() for p in parameters),
        trained=sum(p.numel() for p in parameters if p.requires_grad),
        layers=len(blocks),
        heads=heads,
        kv_heads=int(getattr(text, "num_key_value_heads", None) or heads),
        weights=weights,
        layer=layer,
        root=weights - inside,
        context=policy.context,
        merged=sum(merged),
        largest=max(tensor_bytes([p]) for p in divided),
        largest_merged=max(merged, default=0),
        by_parts=not converted and lies_by_parts(config, text),
        packed=tensor_bytes(packed),
        converted=converted,
    )


def decoder_layers(model: Any) -> Sequence[Any]:
    import torch

    lists = [m for m in model.modules() if isinstance(m, torch.nn.ModuleList) and len({type(one) for one in m}) == 1]
    return list(max(lists, key=len)) if lists else []


def _samples_from_a_copy(run: Any) -> bool:
    """Whether a run that samples ahead keeps a copy of the policy, and a snapshot on its way to it."""
    from rlhf_core.training.weight_sync import keeps_own_weights

    ahead = run.samples_itself and getattr(run.trainer, "batches_ahead", 0)
    return bool(ahead) and not keeps_own_weights(run.rollout)


def reward_model_count(ctx: BuildContext) -> int:
    """Bytes of the models of rewards and judges, by ``memory_models(run)`` or, without it, every path in their
    settings."""
    total = 0
    for kind, part in ctx.config.components():
        if kind not in ("reward", "judge"):
            continue
        memory_models = getattr(part, "memory_models", None)
        if memory_models is not None:
            models = list(memory_models(ctx.config))
        else:
            settings = part.model_dump(mode="json", exclude={"pairs", "dataset"})
            models = [(ModelConfig(path=path), 1) for path in model_paths(settings)]
        total += sum(count * _trunk_bytes(config) for config, count in models)
    return total


def teacher_bytes(run: RunConfig) -> int:
    """Bytes of the whole models that the trainer keeps beside the policy, by its ``memory_models(run)``."""
    models = getattr(run.trainer, "memory_models", lambda run: ())(run)
    made = ((meta_model(config).model, count) for config, count in models)
    return sum(count * tensor_bytes([*model.parameters(), *model.buffers()]) for model, count in made)


def _trunk_bytes(config: ModelConfig) -> int:
    from rlhf_core.models import split_lm_head

    try:
        model = meta_model(config).model
    except ModelError:
        return 0  # the run itself says what is wrong with it
    parts = split_lm_head(model)
    return tensor_bytes((model if parts is None else parts.trunk).parameters())
