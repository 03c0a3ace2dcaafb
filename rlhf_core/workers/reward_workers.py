"""Any reward in killable worker processes, one completion at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rlhf_core.types.rollouts import Sample, Score
from rlhf_core.workers.pool import VerifierPool

if TYPE_CHECKING:
    from rlhf_core.plugins.component import ComponentConfig
    from rlhf_core.plugins.context import BuildContext

START_TIMEOUT_S = 300.0
"""For a worker to import and build the reward."""


class RewardWorkers:
    """Calls a reward in processes that are killed when late; what was lost has status ``timeout`` or ``error``.

    Args:
        config: the reward's. Each worker builds it anew, with a context that has no run, policy or data.
        ctx: the run's.
        workers: processes.
        timeout_s: seconds for one completion.

    Raises:
        PluginError: the reward cannot be built in a worker; says why.
        DeadlineExceeded: a worker is not ready in time.
    """

    def __init__(self, config: ComponentConfig, ctx: BuildContext, workers: int, timeout_s: float) -> None:
        registry = ctx.registry
        spec: dict[str, Any] = {
            "component": registry.selected("reward", config).describe(),
            "config": config.model_dump(mode="json"),
            "secrets": list(getattr(config, "secrets", ())),
            "only_core": registry.only_core,
            "disabled": sorted(registry.disabled),
            "memory_mb": None,
            "run_dir": None if ctx.run_dir is None else str(ctx.run_dir),
        }
        self.pool = VerifierPool(spec, workers=workers, timeout_s=timeout_s, start_timeout_s=START_TIMEOUT_S)

    def score(self, samples: Sequence[Sample]) -> list[Score]:
        """One score per sample, in order."""
        return self.pool.verify(samples)

    def close(self) -> None:
        """End the worker processes."""
        self.pool.close()


class OneByOne:
    """In the worker: a reward that is asked as a verifier is.

    Args:
        reward: keeps no state, for each worker would have its own and no checkpoint would hold it.
    """

    def __init__(self, reward: Any) -> None:
        self.reward = reward

    def verify(self, sample: Sample) -> Score:
        """The score of one completion."""
        (score,) = self.reward.score([sample])
        return score
