"""Settings of the optimizers, and what they cannot be used with."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, ClassVar, Literal, Self

from pydantic import Field, model_validator

from rlhf_core.config import BuildContext, ConfigError
from rlhf_core.training import OptimizerSettings

if TYPE_CHECKING:
    import torch

Cuts = Literal["none", "tensors", "elements"]


class AdafactorConfig(OptimizerSettings):
    """Of a matrix one second moment per row and column (Shazeer and Stern 2018); torch's.

    ``learning_rate`` is relative to a weight's root mean square: 1e-3 to 1e-2 where AdamW takes 1e-5.
    """

    name: str = "adafactor"
    component: ClassVar[str] = "rlhf_plugin_optimizers.optimizers:adafactor"
    cuts: ClassVar[Cuts] = "none"
    moments: ClassVar[float] = 0.0
    eps: float = Field(default=1e-3, gt=0, allow_inf_nan=False)
    """Least root mean square that a weight counts with."""
    beta2_decay: float = Field(default=-0.8, le=0)
    """The second moment's decay in update t is ``1 - t ** beta2_decay``."""
    clip_threshold: float = Field(default=1.0, gt=0)
    """Largest root mean square of an update before the learning rate."""

    @model_validator(mode="after")
    def _no_betas(self) -> Self:
        if self.betas != type(self).model_fields["betas"].default:
            raise ConfigError("betas has no effect with adafactor", why="it has no momentum", fix="leave it out")
        return self


class MuonConfig(OptimizerSettings):
    """Momentum of hidden matrices, made orthogonal (Jordan et al. 2024); AdamW for the rest; torch's.

    Hidden are weights of linear layers but the output head. Updates have the size of AdamW's (Liu et al. 2025), so that
    learning rates carry over. ``betas`` and ``eps`` are AdamW's.
    """

    name: str = "muon"
    component: ClassVar[str] = "rlhf_plugin_optimizers.optimizers:MuonAndAdamW"
    cuts: ClassVar[Cuts] = "none"
    moments: ClassVar[float] = 1.0
    momentum: float = Field(default=0.95, ge=0, lt=1)
    nesterov: bool = True
    ns_steps: int = Field(default=5, ge=1)
    """Newton-Schulz iterations."""

    def parts(self, module: torch.nn.Module) -> Mapping[str, str]:
        """As AdamW's, with ``hidden`` matrices apart."""
        from rlhf_plugin_optimizers.optimizers import hidden_matrices

        hidden = hidden_matrices(module)
        return {name: "hidden" if name in hidden else part for name, part in super().parts(module).items()}


class ScheduleFreeConfig(OptimizerSettings):
    """AdamW whose weights are averaged instead of a falling learning rate (Defazio et al. 2024).

    The final model and its evaluation have the average; evaluations before have the weights that are trained.
    """

    name: str = "schedule_free"
    component: ClassVar[str] = "rlhf_plugin_optimizers.optimizers:schedule_free"
    cuts: ClassVar[Cuts] = "tensors"

    @model_validator(mode="after")
    def _constant(self) -> Self:
        if not self.schedule.startswith("constant"):
            raise ConfigError(
                f"schedule_free cannot have schedule {self.schedule}",
                why="it averages weights instead",
                fix="--set trainer.optimizer.schedule=constant",
            )
        return self

    def preflight(self, ctx: BuildContext) -> None:
        """Refuse a policy that samples what it learns from, and a missing package."""
        needs(self.name, "schedulefree")
        if ctx.config.samples_itself:
            raise ConfigError(
                f"optimizer schedule_free cannot train with algorithm '{ctx.config.trainer.name}'",
                why="the final model has averaged weights, which never sampled",
                fix="--set trainer.optimizer.name=adamw",
            )


class AdamW8bitConfig(OptimizerSettings):
    """AdamW with moments of 8 bits, in blocks of 256 (Dettmers et al. 2022); bitsandbytes'.

    Tensors of fewer than 4096 elements have moments of 32 bits.
    """

    name: str = "adamw_8bit"
    component: ClassVar[str] = "rlhf_plugin_optimizers.optimizers:adamw_8bit"
    cuts: ClassVar[Cuts] = "none"
    moments: ClassVar[float] = 0.5

    def preflight(self, ctx: BuildContext) -> None:
        """Refuse a missing package."""
        needs(self.name, "bitsandbytes")


class PagedAdamWConfig(OptimizerSettings):
    """AdamW whose moments a full GPU moves to the host's memory (Dettmers et al. 2023); bitsandbytes'."""

    name: str = "paged_adamw"
    component: ClassVar[str] = "rlhf_plugin_optimizers.optimizers:paged_adamw"
    cuts: ClassVar[Cuts] = "none"

    def preflight(self, ctx: BuildContext) -> None:
        """Refuse a missing package, and a run on the CPU, where bitsandbytes pages nothing."""
        needs(self.name, "bitsandbytes")
        import torch

        if getattr(ctx.config.strategy, "device", "auto") == "cpu" or not torch.cuda.is_available():
            raise ConfigError(
                "optimizer paged_adamw without CUDA",
                why="its moments lie in the host's memory already",
                fix="--set trainer.optimizer.name=adamw",
            )


def needs(optimizer: str, package: str) -> None:
    """Refuse an optimizer whose package is not installed."""
    if find_spec(package) is None:
        raise ConfigError(
            f"optimizer {optimizer} needs {package}",
            why="it is not installed",
            fix=f"pip install 'rlhf-plugin-optimizers[{package}]'",
        )
