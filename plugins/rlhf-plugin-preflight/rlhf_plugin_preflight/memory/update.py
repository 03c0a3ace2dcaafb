"""One optimizer update without weights: the trainer's own module, loss and learner, counted operation by operation."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.autograd.graph import saved_tensors_hooks

from rlhf_plugin_preflight.memory.backward import Backward, Stage
from rlhf_plugin_preflight.memory.live import OFFLOADED, UNNAMED, LiveBytes, tensor_bytes
from rlhf_plugin_preflight.memory.sizes import Row, Sizes

if TYPE_CHECKING:
    from rlhf_core.config import BuildContext
    from rlhf_plugin_preflight.memory.unknown import Unknown

log = logging.getLogger(__name__)
Parts = dict[str, int]


@dataclass(frozen=True)
class Update:
    parts: Parts
    """At its peak, by what they are for."""
    trained: int
    """Bytes of what is trained: policy and critic."""
    critic: int
    step: int
    """Bytes beyond weights, gradients and moments that the optimizer's step takes, on a CPU."""
    stages: dict[str, Stage] = field(default_factory=dict[str, Stage])
    """The most in each stage of the backward."""
    units: int = 0
    """Decoder layers of policy and critic, through which the backward goes."""
    first_units: int = 0
    """Those of the model through which it goes first."""
    root: int = 0
    """Bytes of what is trained and in no decoder layer."""
    offloaded: int = 0
    """Bytes of what layers are given that wait in main memory (``model.gradient_checkpointing=offload``)."""

    @property
    def layer(self) -> float:
        return (self.trained - self.root) / max(1, self.units)

    def at_peak(self) -> Update:
        """With its parts as they are at the peak of all stages and the step."""
        moments = [(one.whole.activations, one.whole.gradients) for one in self.stages.values()]
        activations, gradients = max([*moments, (self.step, self.trained)], key=sum)
        return replace(self, parts=_tidy({**self.parts, UNNAMED: activations, "gradients": gradients}))


def rehearse(ctx: BuildContext, sizes: Sizes, unknown: Unknown) -> Update:
    """Make an update of the run's trainer with a micro-batch of these sizes, as it is after the first update."""
    from rlhf_core.distributed import LocalStrategy
    from rlhf_core.training import Learner

    trainer: Any = ctx.config.trainer
    ctx = ctx.with_(strategy=LocalStrategy("cpu"))
    module, samples, loss, critic, rate = _parts(ctx, sizes)
    unknown.rows = sum(sum(row.replies) for row in sizes.micro_batch)
    learner = Learner(module, loss, ctx.strategy, trainer, 10, critic, rate, lambda items: [list(range(len(items)))])
    optimizer: Any = getattr(learner.optimizer, "inner", None)  # torch's: the strategy is a local one
    trained = [p for p in module.parameters() if p.requires_grad]
    with LiveBytes() as live:
        live.name("weights", [*module.parameters(), *module.buffers()])
        if critic is not None:
            live.name("critic", [*critic.parameters(), *critic.buffers()])
        live.name("teacher", getattr(module, "frozen", ()))
        backward = Backward(module, live)

        def complete(parameter: torch.nn.Parameter) -> None:
            live.name("gradients", [parameter.grad])
            backward.gradient(parameter)

        hooks = [p.register_post_accumulate_grad_hook(complete) for p in trained]
        for parameter in trained:
            parameter.grad = torch.zeros_like(parameter)
            live.name("gradients", [parameter.grad])
        live.begin()
        before = live.total
        optimizer.step()
        moments = [t for state in optimizer.state.values() for t in state.values() if isinstance(t, torch.Tensor)]
        live.name("optimizer", moments)
        step = live.peak - before - tensor_bytes(moments)
        if sizes.micro_batches == 1:
            optimizer.zero_grad(set_to_none=True)  # else those of the micro-batches before are there
        held = dict(live.now)
        keep_away(module, live)
        with backward.followed(optimizer):
            learner.update_sums(samples)
    for hook in hooks:
        hook.remove()
    tensors = [] if critic is None else [*critic.parameters(), *critic.buffers()]
    count = len(backward.passed)
    return Update(
        held,
        tensor_bytes(trained),
        tensor_bytes(tensors),
        max(0, step),
        backward.stages,
        count,
        count if backward.between is None else backward.between,
        backward.root,
        live.at_most[OFFLOADED],
    ).at_peak()


def keep_away(module: torch.nn.Module, live: LiveBytes) -> None:
    """Let a rehearsal keep what layers would offload apart from activations; nothing here lies on a card."""

    def away(given: torch.Tensor) -> torch.Tensor:
        if not given.is_floating_point():
            return given
        watch, live.watch = live.watch, None  # what is made here is never on the card
        host = given.clone()
        live.name(OFFLOADED, [host])
        live.watch = watch
        return host

    def back(kept: torch.Tensor) -> torch.Tensor:
        return kept.clone() if kept.is_floating_point() else kept

    for part in module.modules():
        if isinstance(getattr(part, "_kept", None), saved_tensors_hooks):
            part._kept = saved_tensors_hooks(away, back)  # pyright: ignore[reportArgumentType]


def _tidy(parts: Parts) -> Parts:
    order = ("weights", "critic", "teacher", "gradients", "optimizer", UNNAMED)
    return {name: parts[name] for name in order if parts.get(name)}


def _parts(ctx: BuildContext, sizes: Sizes) -> tuple[Any, Sequence[Any], Any, Any, float | None]:
    """(Module, samples of one micro-batch, loss, critic, its learning rate); ``module.frozen``: others' weights."""
    from rlhf_core.rl import OnlineTrainerConfig
    from rlhf_core.training import PolicyModule

    run = ctx.config
    loss: Any = _loss(ctx)
    rehearsal = getattr(run.trainer, "rehearsal", None)
    if rehearsal is not None:
        module, samples = rehearsal(ctx, [(row.prompt, row.replies) for row in sizes.micro_batch])
        if isinstance(run.trainer, OnlineTrainerConfig) and isinstance(module, PolicyModule):
            module.options = _options(run.trainer)
        return module, samples, loss, None, None
    if isinstance(run.trainer, OnlineTrainerConfig):
        return _online(ctx, sizes, loss)
    return PolicyModule(ctx.policy.model), token_samples(sizes.micro_batch), loss, None, None


def _loss(ctx: BuildContext) -> Any:
    chosen = ctx.config.loss
    assert chosen is not None, "a trainer's companions name its loss"
    return chosen.build(ctx)


def _options(trainer: Any) -> Any:
    from rlhf_core.training.forward import ForwardOptions

    return ForwardOptions(trainer.share_prefix, trainer.packing != "off", trainer.chunked_head)


def _online(ctx: BuildContext, sizes: Sizes, loss: Any) -> tuple[Any, Sequence[Any], Any, Any, float | None]:
    from rlhf_core.plugins.loss_contract import CheckedLoss
    from rlhf_core.rl.build import policy_terms
    from rlhf_core.training import PolicyModule

    run: Any = ctx.config
    trainer = run.trainer
    module = PolicyModule(ctx.policy.model, trainer.sampling.temperature, _options(trainer))
    own = run.advantage if getattr(run.advantage, "has_critic", False) else None
    with_critic = own or getattr(trainer, "critic_advantage", None)
    estimator: Any = with_critic.build(ctx) if with_critic else None
    loss = CheckedLoss(loss, terms=policy_terms(trainer))
    rate = None
    if estimator is not None:
        loss, rate = estimator.with_value_loss(loss), estimator.learning_rate
        module.critic, module.on_policy_trunk = estimator.critic, estimator.on_policy_trunk
    names = ["behaviour_T"]
    names += ["old_T"] if trainer.updates_per_step > 1 or trainer.importance.old_policy == "behaviour" else []
    names += ["ref_T"] if trainer.kl.track or trainer.kl.coefficient > 0 else []
    names += ["old_values_T", "returns_T"] if module.critic is not None else []
    return module, token_samples(sizes.micro_batch, names), loss, module.critic, rate


def token_samples(rows: Sequence[Row], more: Sequence[str] = ()) -> list[Any]:
    """Training samples of these lengths, the replies to a prompt side by side."""
    from rlhf_core.training import TrainingSample

    samples: list[Any] = []
    for n, row in enumerate(rows):
        prompt = token_ids(row.prompt, n)
        for m, count in enumerate(row.replies):
            arrays: dict[str, Any] = {name: np.zeros(count, np.float32) for name in more}
            ones = np.ones(count, np.float32)
            samples.append(
                TrainingSample(f"{n}#{m}", prompt, token_ids(count, 7 * n + m), np.ones(count, bool), ones, **arrays)
            )
    return samples


def token_ids(count: int, which: int) -> tuple[int, ...]:
    """Tokens of one sequence, none longer than 1024 like another."""
    return tuple((which >> (2 * (n % 5))) & 3 for n in range(count))
