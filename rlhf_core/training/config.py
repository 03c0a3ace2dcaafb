"""Settings that every trainer's loop has. An algorithm subclasses a trainer's configuration and changes defaults."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import ConfigDict, Field, ModelWrapValidatorHandler, ValidationInfo, model_validator

from rlhf_core.plugins.component import ComponentConfig, Config, DeadlineSettings, import_component
from rlhf_core.plugins.entry_points import scheduler
from rlhf_core.plugins.slots import resolve
from rlhf_core.types.errors import ConfigError

if TYPE_CHECKING:
    import torch

    from rlhf_core.plugins.context import BuildContext
    from rlhf_core.types.rollouts import SamplingParams

Reduction = Literal["token_mean", "sequence_mean", "constant"]
Decay = Annotated[float, Field(ge=0, lt=1)]


class OptimizerSettings(ComponentConfig):
    """AdamW (Loshchilov and Hutter 2019), and the learning rate's schedule, which every optimizer has.

    Another optimizer is a subclass. Its ``component`` is called with the settings and with parameter groups as
    ``torch.optim`` takes them, and returns a ``torch.optim.Optimizer``.
    """

    model_config = ConfigDict(polymorphic_serialization=True)
    component: ClassVar[str] = "rlhf_core.distributed.optimizer:adamw"
    cuts: ClassVar[Literal["none", "tensors", "elements"]] = "elements"
    """How a strategy may divide parameters among ranks: at any element (each one's update depends on no other), as
    torch's ``DTensor``, or not at all."""
    moments: ClassVar[float] = 2.0
    """Numbers kept for each trained one, of its type; about."""

    name: str = "adamw"
    learning_rate: float = Field(default=1e-5, gt=0, allow_inf_nan=False)
    betas: tuple[Decay, Decay] = (0.9, 0.95)
    eps: float = Field(default=1e-8, gt=0, allow_inf_nan=False)
    weight_decay: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """Of matrices."""
    warmup_steps: int = Field(default=0, ge=0)
    """Optimizer updates over which the learning rate rises: the n-th of N has n/N of it, where transformers (TRL, verl)
    gives it (n - 1)/N, and the first update changes nothing."""
    warmup_ratio: float | None = Field(default=None, ge=0, lt=1)
    """Instead of ``warmup_steps``: their share of all updates."""
    schedule: Literal[
        "constant", "constant_with_warmup", "linear", "cosine", "cosine_with_min_lr", "warmup_stable_decay"
    ] = "constant"
    """After the warm-up, as transformers' ``get_scheduler`` has it; ``constant`` may have a warm-up, too."""
    min_lr: float = Field(default=0.0, ge=0)
    """Learning rate at the end of the schedule."""
    decay_ratio: float = Field(default=0.1, gt=0, le=1)
    """Share of all updates at the end over which ``warmup_stable_decay`` falls."""
    max_grad_norm: float = Field(default=1.0, gt=0)

    @model_validator(mode="wrap")
    @classmethod
    def _named(cls, value: Any, handler: ModelWrapValidatorHandler[Self], info: ValidationInfo) -> Self:
        """Settings with the name of another optimizer are its own."""
        if cls is OptimizerSettings and isinstance(value, dict) and value.get("name", "adamw") != "adamw":
            return resolve("optimizer", value, info)
        return handler(value)

    @model_validator(mode="after")
    def _falls(self) -> Self:
        if self.min_lr >= self.learning_rate or (self.min_lr and self.schedule.startswith("constant")):
            raise ConfigError(
                f"min_lr {self.min_lr} cannot be reached from {self.learning_rate} by schedule {self.schedule}",
                fix="lower min_lr, or choose a schedule that falls, such as cosine",
            )
        return self

    def warmup(self, total: int) -> int:
        """Updates of the warm-up among ``total``."""
        return self.warmup_steps if self.warmup_ratio is None else math.ceil(self.warmup_ratio * total)

    def make(self, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
        """The optimizer of parameter groups as ``torch.optim`` takes them; each has its ``weight_decay``."""
        return import_component(type(self))(self, groups)

    def parts(self, module: torch.nn.Module) -> Mapping[str, str]:
        """Parameter name -> what it is to the optimizer. Each part is a group, whose ``part`` it is; one called
        ``vector`` does not decay.
        """
        return {n: "matrix" if p.ndim >= 2 else "vector" for n, p in module.named_parameters()}


class ReferencePlacement(Config):
    """Where a frozen copy of the policy lies, and in which numbers (``rlhf-plugin-schedule``)."""

    kind: Literal["whole", "sharded", "offload", "precomputed"] | None = None
    """``whole`` on every rank, whatever the strategy divides; ``sharded`` over the ranks as the policy's weights;
    ``offload``: whole in main memory, on the device only while it computes; ``precomputed``: no copy once training
    begins, for data whose logprobs can be computed before. None lies as the policy's weights do."""
    dtype: Literal["float32", "bfloat16"] | None = None
    """None is the policy's; bfloat16 halves a copy of float32, and rounds its logprobs."""


class SamplingSettings(Config):
    """How completions are drawn."""

    max_tokens: int = Field(default=64, ge=1)
    min_tokens: int = Field(default=1, ge=0)
    temperature: float = Field(default=1.0, ge=0, allow_inf_nan=False)
    top_p: float = Field(default=1.0, gt=0, le=1)
    top_k: int = Field(default=0, ge=0)
    min_p: float = Field(default=0.0, ge=0, lt=1)
    stop: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _lengths(self) -> SamplingSettings:
        if self.min_tokens > self.max_tokens:
            raise ConfigError(
                f"min_tokens {self.min_tokens} is more than max_tokens {self.max_tokens}",
                fix="lower min_tokens or raise max_tokens",
            )
        return self

    @property
    def truncates(self) -> bool:
        """Whether a draw cannot choose every token."""
        return self.top_p < 1 or self.top_k > 0 or self.min_p > 0

    def params(self, **changes: Any) -> SamplingParams:
        """Return them as the engine's type."""
        from rlhf_core.types.rollouts import SamplingParams

        return SamplingParams(**{**self.model_dump(), **changes})


class LoopSettings(ComponentConfig):
    """What every loop has."""

    companions: ClassVar[Mapping[str, Any]] = {}
    """Field of the run -> component that is used where the user names none."""
    recipes: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    """Model path -> settings for it. They replace class defaults, and the user's settings replace them.
    ``PATH+REWARD``, e.g. ``pocket+ensemble``, adds settings for that reward."""
    feeds: ClassVar[str | None] = None
    """What the trainer feeds its loss; compared with ``Loss.consumes``."""

    optimizer: OptimizerSettings = OptimizerSettings()
    micro_batch_size: int = Field(default=8, ge=1)
    """Sequences per forward and backward; never changes the update."""
    gradient_accumulation_steps: int | None = Field(default=None, ge=1)
    """Says ``micro_batch_size`` by what follows from it: micro-batches per update and process. Give one of the two."""
    reduction: Reduction = "token_mean"
    """How the core turns ``loss_BT`` into a number, over the whole batch of all ranks: ``token_mean`` counts every
    token alike (DAPO), ``sequence_mean`` averages over each completion's tokens first (GRPO as published), ``constant``
    divides by ``reduction_constant`` instead (Dr. GRPO)."""
    reduction_constant: float | None = Field(default=None, gt=0)
    """Tokens per sequence for ``reduction: constant`` (Dr. GRPO's C). None is the most that a completion may have,
    ``sampling.max_tokens``; 64 where nothing is sampled."""
    eval_every: int = Field(default=10, ge=0)
    """Steps between held-out evaluations; 0 evaluates only before and after."""
    eval_samples: int = Field(default=64, ge=0)
    """Held-out rows per evaluation; 0 switches evaluation off."""
    checkpoint_every: int = Field(default=10, ge=0)
    """Steps between checkpoints; 0 keeps only the last step's."""
    keep_checkpoints: int = Field(default=2, ge=1)
    deadlines: DeadlineSettings = DeadlineSettings()
    max_missing_fraction: float = Field(default=0.5, ge=0, le=1)
    """The run fails when more than this share of a step's scores is missing."""
    trace_prompts: int = Field(default=8, ge=0)
    """Prompts per step whose tokens and logprobs are traced in full; texts and scores always are. Offline: examples per
    step whose texts are traced; ids, losses and margins always are."""

    @property
    def constant_length(self) -> float:
        """C of ``reduction: constant`` in tokens."""
        return 64.0 if self.reduction_constant is None else self.reduction_constant

    def sequences_per_update(self) -> int:
        """Examples of one optimizer update over all ranks."""
        raise NotImplementedError(f"{type(self).__name__} does not say how many sequences make an update")

    def micro_batches(self, world_size: int) -> Self:
        """These settings, with the ``micro_batch_size`` that ``gradient_accumulation_steps`` stands for.

        Raises:
            ConfigError: the sequences of an update cannot be cut so.
        """
        steps, total = self.gradient_accumulation_steps, self.sequences_per_update()
        if steps is None:
            return self
        if total % (steps * world_size):
            ranks = f" on each of {world_size} processes" if world_size > 1 else ""
            raise ConfigError(
                f"gradient_accumulation_steps {steps} does not divide the {total} sequences of an update" + ranks,
                fix="use a divisor, or say trainer.micro_batch_size instead",
            )
        return self.model_copy(update={"micro_batch_size": total // (steps * world_size)})


class ModelLoopSettings(LoopSettings):
    """What the on-policy and the offline loop share: they train a language model, or heads on its transformer."""

    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    """``bf16``: the transformer computes in bfloat16 (autocast) wherever it runs, sampling with the native engine
    included; weights, optimizer, output head, log-probabilities, scores and loss stay float32 (``model.dtype``).
    ``fp16``: the same in float16, the loss scaled so that small gradients stay (``rlhf-plugin-optimizers``).
    ``auto`` is ``bf16`` on a CUDA device that has it, where ``model.dtype`` is ``float32``, and ``fp32`` elsewhere; the
    plan says which, and a resumed run keeps it."""

    def check_precision(self, ctx: BuildContext) -> None:
        """Refuse mixed precision of weights that are not float32."""
        if self.precision == "fp16":
            scheduler("scaled", "trainer.precision=fp16")
        if self.precision in ("bf16", "fp16") and ctx.config.model.dtype != "float32":
            raise ConfigError(
                f"trainer.precision {self.precision} cannot be combined with model.dtype {ctx.config.model.dtype}",
                why="mixed precision keeps the weights in float32 and computes in 16 bits",
                fix="leave out model.dtype, or trainer.precision",
            )
