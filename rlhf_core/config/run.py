"""The whole configuration of one run."""

from __future__ import annotations

from collections.abc import Iterator, Set
from importlib.metadata import PackageNotFoundError, version
from typing import Any, ClassVar, Literal, Self

from pydantic import BaseModel, Field

from rlhf_core.data.settings import DatasetSettings
from rlhf_core.models.config import ModelConfig
from rlhf_core.plugins.component import ComponentConfig, Config
from rlhf_core.plugins.registry import KIND_OF_FIELD
from rlhf_core.plugins.slots import component


def precision_of(run: Any) -> Literal["fp32", "bf16", "fp16"]:
    """What a run's model computes in: its trainer's setting, ``auto`` resolved; ``fp32`` without one."""
    chosen: Any = getattr(run.trainer, "precision", "fp32")
    return resolved(run) if chosen == "auto" else chosen


def resolved(run: Any) -> Literal["fp32", "bf16"]:
    """``auto``, of this run on this machine."""
    on_cpu = getattr(run.strategy, "device", "auto") == "cpu"
    return "bf16" if run.model.dtype == "float32" and not on_cpu and cuda_has_bfloat16() else "fp32"


def cuda_has_bfloat16() -> bool:
    """Whether a CUDA device has instructions for bfloat16; no torch is imported that was built without CUDA."""
    try:
        if version("torch").endswith("+cpu"):
            return False
    except PackageNotFoundError:  # installed otherwise than by a package
        pass
    import torch

    return torch.cuda.is_available() and torch.cuda.is_bf16_supported(including_emulation=False)


class RunConfig(Config):
    """One run. ``rlhf config schema`` prints every field with its meaning."""

    not_inputs: ClassVar[Set[str]] = frozenset({"trackers", "strategy", "environment", "agent"})

    seed: int = Field(0, ge=0, lt=2**64)
    """Decides prompt order, every completion's randomness, and initial heads."""
    model: ModelConfig = ModelConfig()
    """The policy (or the trunk of a reward model)."""
    dataset: DatasetSettings
    """What is trained on; ``--dataset NAME`` or a file."""
    trainer: component("trainer")  # pyright: ignore[reportInvalidTypeForm]
    """The algorithm; ``--algo NAME``."""
    loss: component("loss") | None = None  # pyright: ignore[reportInvalidTypeForm]
    """Of the policy; None leaves the algorithm its own."""
    advantage: component("advantage") | None = None  # pyright: ignore[reportInvalidTypeForm]
    """How scores become advantages; None leaves the algorithm its own."""
    reward: component("reward") | None = None  # pyright: ignore[reportInvalidTypeForm]
    """What scores completions; ``--reward NAME``."""
    rollout: component("rollout") | None = None  # pyright: ignore[reportInvalidTypeForm]
    """The engine that samples; None takes the native one."""
    agent: component("agent") | None = None  # pyright: ignore[reportInvalidTypeForm]
    """Who plays an episode; None samples one turn."""
    environment: component("environment") | None = None  # pyright: ignore[reportInvalidTypeForm]
    """What the agent plays in; ``--env NAME``."""
    strategy: component("strategy") | None = None  # pyright: ignore[reportInvalidTypeForm]
    """How the ranks share the work; None takes one process, or DDP where there are several."""
    trackers: tuple[component("tracker"), ...] = ()  # pyright: ignore[reportInvalidTypeForm]
    """Besides the JSONL files, which are always written."""
    monitors: tuple[component("monitor"), ...] = ()  # pyright: ignore[reportInvalidTypeForm]
    """What watches the run, warns, and may stop it."""
    benchmarks: tuple[component("benchmark"), ...] = ()  # pyright: ignore[reportInvalidTypeForm]
    """Suites that the policy is evaluated on whenever it is evaluated on held-out prompts (on-policy runs)."""
    threads: int | None = Field(None, ge=1, le=1024)
    """CPU threads per operation and process; None leaves torch's choice, or half of it where rollouts are sampled ahead
    on the CPU, beside the learner."""
    matmul: Literal["auto", "torch", "onednn"] = "auto"
    """Who multiplies float32 matrices on the CPU; ``auto`` takes oneDNN where it is faster (AVX-512, not Intel)."""
    deterministic: bool = True
    """Use torch's deterministic algorithms, so that the same seed gives the same run."""

    @property
    def samples_itself(self) -> bool:
        """Whether the trainer samples what it learns from."""
        return hasattr(self.trainer, "rollout_batch_size")

    def with_precision(self) -> Self:
        """The run with ``auto`` replaced: bfloat16 on a CUDA device that computes in it, where weights are float32. A
        resumed run keeps what its plan says, wherever it goes on.
        """
        if getattr(self.trainer, "precision", None) != "auto":
            return self
        return self.model_copy(update={"trainer": self.trainer.model_copy(update={"precision": resolved(self)})})

    def components(self) -> Iterator[tuple[str, ComponentConfig]]:
        """Yield (kind, config) for every component inside the configuration."""
        yield from _components(self, "")


def _components(value: Any, kind: str) -> Iterator[tuple[str, ComponentConfig]]:
    if isinstance(value, ComponentConfig) and kind:
        yield kind, value
    if isinstance(value, BaseModel):
        for name in type(value).model_fields:
            yield from _components(getattr(value, name), KIND_OF_FIELD.get(name, ""))
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from _components(item, kind)
    elif isinstance(value, dict):
        for item in value.values():
            yield from _components(item, kind)
