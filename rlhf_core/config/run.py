"""The whole configuration of one run."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rlhf_core.data.settings import DatasetSettings
from rlhf_core.models.config import ModelConfig
from rlhf_core.plugins.component import Config
from rlhf_core.plugins.slots import component


class RunConfig(Config):
    """One run. ``rlhf config schema`` prints every field with its meaning."""

    seed: int = Field(0, ge=0)
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
    threads: int | None = Field(None, ge=1)
    """CPU threads per operation and process; None leaves torch's choice, or half of it where rollouts are sampled ahead
    on the CPU, beside the learner."""
    matmul: Literal["auto", "torch", "onednn"] = "auto"
    """Who multiplies float32 matrices on the CPU; ``auto`` takes oneDNN where it is faster (AVX-512, not Intel)."""
    deterministic: bool = True
    """Use torch's deterministic algorithms, so that the same seed gives the same run."""
