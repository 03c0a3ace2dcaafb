"""Trials of a run's model: do optimised forwards compute what the plain one does? A wrong gradient learns silently."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from rlhf_core.distributed.group import borrow_dummy_sample
from rlhf_core.models.last_token import can_pack
from rlhf_core.models.layers.chunked_head import selected_logprobs
from rlhf_core.models.layers.segments import repeatable_gradients
from rlhf_core.models.layers.trunk_and_head import compute_dtype, padded_logits, split_lm_head
from rlhf_core.models.load import check_causal
from rlhf_core.plugins.strategy_protocols import ShardedForward, Strategy
from rlhf_core.training.forward import ForwardOptions, allowed, completion_logprobs, structure
from rlhf_core.training.micro_batches import NoGradForward
from rlhf_core.types.errors import ModelError

if TYPE_CHECKING:
    from rlhf_core.training.policy_module import PolicyModule
    from rlhf_core.training.rollout_batch import TrainingSample


R = TypeVar("R")


def probe_on_shards(strategy: Strategy, prepared: torch.nn.Module, tried: Callable[[Any], R]) -> R:
    """What ``tried(module)``, which makes as many forwards on every rank, returns inside of one without gradient."""
    no_grad = NoGradForward(strategy, prepared)
    return no_grad.rows([None], lambda samples: [[0]], lambda module, _: [tried(module)])[0]


def try_transformer(strategy: Strategy, prepared: torch.nn.Module, path: str) -> None:
    """Refuse an encoder, and try which kernels the model allows, before anything is measured or trained."""

    def tried(module: Any) -> None:
        model = outermost_transformer(module)
        check_causal(model, path)
        if split_lm_head(model) is None:
            can_pack(model)
        else:
            structure(model)

    probe_on_shards(strategy, prepared, tried)


def outermost_transformer(module: torch.nn.Module) -> Any:
    """The first transformers model in a module, under peft's wrapper."""
    from transformers import PreTrainedModel

    return next(part for part in module.modules() if isinstance(part, PreTrainedModel))


def probe_forward_options(
    strategy: Strategy, prepared: torch.nn.Module, path: str, *, packing_required: bool
) -> ForwardOptions:
    """What the settings want and a model allows that was loaded without weights; all ranks call it."""

    def tried(module: Any) -> ForwardOptions:
        model = module.model
        check_causal(model, path)
        if not structure(model).split:
            raise ModelError(
                f"'{path}' cannot be trained on shards by this trainer",
                why="its logits are not its head applied to its trunk's hidden states; it may cap or scale them",
                fix="--set strategy=ddp",
            )
        return allowed(model, module.options, packing_required=packing_required)

    return probe_on_shards(strategy, prepared, tried)


log = logging.getLogger("rlhf.models")
COMPARED = 4
"""Samples compared: two of each of two prompts."""
NATS = {torch.float32: 1e-3, torch.bfloat16: 0.3, torch.float16: 0.05}
"""Largest difference of a logprob that rounding explains, by the number type of the forward."""
GRADIENT = {torch.float32: 1e-3, torch.bfloat16: 0.3, torch.float16: 0.05}
"""The same for the gradient: norm of the difference over its norm."""
ROUNDING = {torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float16: 1e-3}
"""Where a policy is certain, the gradient of its logprobs is what large terms leave that cancel, and their rounding
stays: a difference of this share of their norm is not reported. Measured: 3.5e-7 in float32."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One optimisation that changed the result."""

    name: str
    nats: float
    gradient: float
    """Difference over the gradient's norm, or over the least in which rounding would not show; 0: not compared."""


@dataclass(frozen=True, slots=True)
class Result:
    """What one path computed."""

    logprobs_N: torch.Tensor
    gradient: list[torch.Tensor]


def choose_samples(samples: Sequence[TrainingSample]) -> list[TrainingSample]:
    """Shortest and longest completion of each of two prompts: sharing, padding and neighbours all show."""
    prompts: dict[tuple[int, ...], list[TrainingSample]] = {}
    for sample in samples:
        if sample.completion_ids and not sample.contexts:
            prompts.setdefault(sample.prompt_ids, []).append(sample)
    rows = [sorted(group, key=lambda i: len(i.completion_ids)) for group in list(prompts.values())[: COMPARED // 2]]
    return [item for row in rows for item in (row[:1] if len(row) == 1 else [row[0], row[-1]])]


def forward_check(
    model: torch.nn.Module,
    samples: Sequence[TrainingSample],
    temperature: float,
    options: ForwardOptions,
    dtype: torch.dtype = torch.float32,
    gradient: bool = True,
    any_rank: Callable[[bool], bool] = bool,
) -> list[Finding]:
    """The optimisations that differ from the plain forward; ``any_rank`` says whether something is so on any rank."""
    if not samples or not options.names:
        return []
    plain = compute(model, samples, temperature, None, gradient)
    optimised = compute(model, samples, temperature, options, gradient)
    norm = _norm(plain.gradient)
    differs = not within_rounding(compare("all together", plain, optimised, norm), dtype)
    if not any_rank(differs):
        return []
    if gradient:
        norm = max(norm, ROUNDING[dtype] / GRADIENT[dtype] * _norm(_cancelling_terms(model, samples, temperature)))
    together = compare("all together", plain, optimised, norm)
    if gradient and within_rounding(together, dtype):
        return []
    alone = [
        compare(name, plain, compute(model, samples, temperature, options.alone(name), gradient), norm)
        for name in options.names
    ]
    if not differs:
        return []
    wrong = [finding for finding in alone if not within_rounding(finding, dtype)]
    return wrong or [Finding(name, together.nats, together.gradient) for name in options.names]


def within_rounding(finding: Finding, dtype: torch.dtype) -> bool:
    """Whether rounding in this number type explains a difference."""
    return finding.nats <= NATS[dtype] and finding.gradient <= GRADIENT[dtype]


def compare(name: str, plain: Result, other: Result, norm: float | None = None) -> Finding:
    """How far two paths are apart; ``norm`` is that of the plain gradient, unless given."""
    norm = _norm(plain.gradient) if norm is None else norm
    nats = float((plain.logprobs_N - other.logprobs_N).abs().max())
    gap = _norm([a - b for a, b in zip(plain.gradient, other.gradient)])
    return Finding(name, nats, gap / norm if norm else math.inf if gap else 0.0)


def _norm(gradient: Sequence[torch.Tensor]) -> float:
    return sum(float(g.float().pow(2).sum()) for g in gradient) ** 0.5


def _cancelling_terms(
    model: torch.nn.Module, samples: Sequence[TrainingSample], temperature: float
) -> list[torch.Tensor]:
    """Gradient of the tokens' logits without their normalisation: as large as what cancels in that of logprobs."""
    targets_N = torch.tensor([t for i in samples for t in i.completion_ids])
    with torch.enable_grad():
        logits_NV = padded_logits(model, [i.prompt_ids for i in samples], [i.completion_ids for i in samples])
        logits_N = logits_NV.gather(-1, targets_N.to(logits_NV.device)[:, None])[:, 0].float() / temperature
        return _gradient(model, logits_N)


def compute(
    model: torch.nn.Module,
    samples: Sequence[TrainingSample],
    temperature: float,
    options: ForwardOptions | None,
    gradient: bool,
) -> Result:
    """Logprobs and their :func:`_gradient`; None is the model's own forward."""
    prompts, completions = [i.prompt_ids for i in samples], [i.completion_ids for i in samples]
    with torch.set_grad_enabled(gradient):
        if options is None:
            targets_N = [t for c in completions for t in c]
            logits_NV = padded_logits(model, prompts, completions)
            logprobs_N = selected_logprobs(logits_NV, torch.tensor(targets_N, device=logits_NV.device), temperature)
        else:
            out = completion_logprobs(model, prompts, completions, temperature=temperature, **options.as_arguments)
            logprobs_N = out.logprobs_BT[out.mask_BT]
        if not gradient:
            return Result(logprobs_N, [])
        return Result(logprobs_N.detach(), _gradient(model, logprobs_N))


def _gradient(model: torch.nn.Module, values_N: torch.Tensor) -> list[torch.Tensor]:
    """Gradient of a sum that weighs every token differently."""
    weights_N = torch.cos(torch.arange(len(values_N), device=values_N.device))
    learning = [p for p in model.parameters() if p.requires_grad]
    with repeatable_gradients(values_N.device):
        grads = torch.autograd.grad((values_N * weights_N).sum(), learning, allow_unused=True)
    return [torch.zeros_like(p) if g is None else g for p, g in zip(learning, grads)]


class ForwardCheck:
    """Compares forwards once a run; all ranks switch off what differs on any. On shards only logprobs are compared."""

    def __init__(
        self, module: PolicyModule, strategy: Strategy, prepared: torch.nn.Module, counts: Counter[str], *, done: bool
    ) -> None:
        self.module, self.strategy, self.prepared = module, strategy, prepared
        self.counts, self.done = counts, done

    def __call__(self, samples: Sequence[TrainingSample]) -> None:
        """Compare on a few of this rank's samples; all ranks call it together."""
        if self.done:
            return
        options, chosen = self.module.options, choose_samples(samples)
        if isinstance(self.strategy, ShardedForward):
            findings = self._on_shards(chosen)
        else:
            with self.strategy.gathered(self.prepared):
                findings = self._compared(chosen, gradient=not self.strategy.sharded)
        by_name = {f.name: f for rank in self.strategy.gather_objects(findings) for f in rank}
        if self.strategy.rank == 0:
            warn(list(by_name.values()))
        self.counts.update({f"switched_off_{name}": 1 for name in by_name})
        self.module.options = options.without(*by_name)
        self.done = True

    def _compared(
        self, chosen: Sequence[TrainingSample], *, gradient: bool, any_rank: Callable[[bool], bool] = bool
    ) -> list[Finding]:
        module, model = self.module, self.module.model
        dtype = compute_dtype(model)
        return forward_check(model, chosen, module.temperature, module.options, dtype, gradient, any_rank)

    def _on_shards(self, chosen: list[TrainingSample]) -> list[Finding]:
        """All ranks make as many forwards; one without samples is lent those of another."""
        present = self.strategy.gather_objects(bool(chosen))
        chosen = borrow_dummy_sample(self.strategy, chosen or None, present) or []

        def on_any_rank(condition: bool) -> bool:
            return self.strategy.max_over_ranks(int(condition)) > 0

        def tried(_: object) -> list[Finding]:
            return self._compared(chosen, gradient=False, any_rank=on_any_rank)

        return probe_on_shards(self.strategy, self.prepared, tried)


def warn(findings: Sequence[Finding]) -> None:
    """Say what was switched off."""
    for finding in findings:
        log.warning(
            "forward check: trainer.%s changes this model's results (logprobs by up to %.2g nats, gradient by %.2g of "
            "its norm) and is switched off for this run. The run goes on with the plain computation; a bug report with "
            "the model's name would help",
            finding.name,
            finding.nats,
            finding.gradient,
        )
