"""Settings of the strategy, and what they cannot be."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar, Literal

from pydantic import Field

from rlhf_core.config import BuildContext, ComponentConfig, ConfigError
from rlhf_core.rl import OnlineTrainerConfig

Dtype = Literal["float32", "bfloat16"]


class FsdpConfig(ComponentConfig):
    """Weights, gradients and moments divided among ranks, layer by layer (FSDP2)."""

    name: str = "fsdp"
    component: ClassVar[str] = "rlhf_plugin_fsdp.strategy:Fsdp.from_config"
    shard_size: int | None = Field(None, ge=1)
    """Ranks that a weight is divided among; None takes all. Fewer make replicas (HSDP)."""
    param_dtype: Dtype = "float32"
    """In which decoder layers are gathered and computed; what is stored and stepped stays as it was loaded."""
    reduce_dtype: Dtype = "float32"
    """In which gradients are added over ranks."""
    offload: bool = False
    """Shards, gradients and moments lie in the host's memory between uses."""
    reshard_after_forward: bool = True
    """False keeps a layer whole until its backward."""
    sync_every_micro_batch: bool = True
    """False keeps whole gradients until the last micro-batch."""
    sequence_parallel: int = Field(1, ge=1)
    """Ranks that compute each micro-batch together, every rank a slice of its tokens (Ulysses), for sequences that one
    rank cannot hold. It divides the number of ranks and the heads of attention."""
    tensor_parallel: int = Field(1, ge=1)
    """Neighbouring ranks that divide the weights of each decoder layer and compute it together. It divides the number
    of ranks, and the heads of attention and of keys and values."""
    timeout_s: float = Field(600.0, gt=0)
    """Deadline of every collective operation, seconds."""
    device: Literal["auto", "cpu", "cuda"] = "auto"

    def rehearsed(self, model: Any) -> AbstractContextManager[None]:
        """Context in which one process computes, and of divided weights holds, what a rank of a group does, for a
        memory plan; ``model`` has no values.

        Raises:
            ConfigError: the model's weights cannot be divided so.
        """
        if self.tensor_parallel > 1:
            from rlhf_plugin_fsdp.tensor_parallel import parts_of_a_rank

            return parts_of_a_rank(model, self.tensor_parallel)
        from rlhf_plugin_fsdp.ulysses import Rehearsal

        return Rehearsal(self.sequence_parallel).dividing(model) if self.sequence_parallel > 1 else nullcontext()

    def preflight(self, ctx: BuildContext) -> None:
        """Refuse what cannot be laid out on these ranks, and runs that shards were not compared for."""
        check_run(ctx.config)
        if self.shard_size is not None and ctx.world_size % self.shard_size:
            raise ConfigError(
                f"strategy.shard_size {self.shard_size} does not divide {ctx.world_size} ranks",
                why="every replica of the model has as many ranks",
                fix="leave it out, or take the number of ranks of a node",
            )
        precision = getattr(ctx.config.trainer, "precision", "fp32")
        if precision == "fp16":
            raise ConfigError(
                "strategy fsdp with trainer.precision=fp16",
                why="scaled losses were not compared on shards",
                fix="--set trainer.precision=bf16, or --set strategy=ddp",
            )
        if self.param_dtype == "bfloat16" and precision != "bf16":
            raise ConfigError(
                f"strategy.param_dtype bfloat16 with trainer.precision {precision}",
                why="layers would have weights of another type than what they are given",
                fix="--set trainer.precision=bf16, or leave out strategy.param_dtype",
            )
        if ctx.config.model.quantize is not None and (self.offload or self.param_dtype != "float32"):
            raise ConfigError(
                f"strategy.{'offload' if self.offload else 'param_dtype'} with model.quantize",
                why="weights of 4 bits are not divided: they stay where they are used, and as they are",
                fix="leave it out",
            )
        for name in ("tensor_parallel", "sequence_parallel"):
            if (size := getattr(self, name)) > 1:
                from rlhf_plugin_fsdp.divisible import check_divisible

                check_divisible(ctx, name, size)
        if self.offload:
            import torch

            if self.device == "cpu" or not torch.cuda.is_available():
                raise ConfigError(
                    "strategy.offload without CUDA",
                    why="weights lie in the host's memory already",
                    fix="leave it out",
                )


OFFLINE = ("sft", "dpo", "kto", "iterative_dpo", "reward_model", "prm", "orm", "rubric_model")
"""Besides every algorithm of the core's own on-policy trainer (grpo and its variants, ppo)."""
NETS = ("reward_model", "prm", "orm", "rubric_model")
"""Those of them that train a transformer under a head of their own, which is float32."""


def check_run(run: Any) -> None:
    """Refuse a run whose result on shards nobody compared, or that would fail at its end."""
    trainer = run.trainer
    if not isinstance(trainer, OnlineTrainerConfig) and trainer.name not in OFFLINE:
        raise ConfigError(
            f"strategy fsdp does not train {trainer.name}",
            why=f"on shards only {', '.join(OFFLINE)}, ppo, grpo and its variants were compared with one process",
            fix="--set strategy=ddp",
        )
    critic = getattr(getattr(run, "advantage", None), "has_critic", False)
    compared = trainer.name == "sft" or (isinstance(trainer, OnlineTrainerConfig) and not critic)
    if run.model.quantize is not None and not compared:
        raise ConfigError(
            f"strategy fsdp does not train {trainer.name} with model.quantize {run.model.quantize}",
            why="on a base of 4 bits only sft, grpo and its variants were compared with one process",
            fix="--set strategy=ddp, or leave model.quantize out",
        )
    if trainer.optimizer.cuts == "none":
        raise ConfigError(
            f"strategy fsdp cannot shard optimizer {trainer.optimizer.name}",
            why="it steps whole weights",
            fix="--set trainer.optimizer.name=adamw, or --set strategy=ddp",
        )
    full = getattr(trainer, "train_trunk", "full") == "full" and run.model.lora is None
    if run.model.dtype != "float32" and trainer.name in NETS and full:
        raise ConfigError(
            f"strategy fsdp with model.dtype={run.model.dtype} and {trainer.name}, all weights",
            why="its float32 head is in one FSDP unit with the embedding, and FSDP2 needs one dtype per unit",
            fix="--set model.dtype=float32, --set trainer.train_trunk=lora, or --set strategy=ddp",
        )
