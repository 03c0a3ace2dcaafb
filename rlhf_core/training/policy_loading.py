"""The policy of a run that learns from data, loaded as its strategy wants it."""

from __future__ import annotations

from rlhf_core.config.precision import precision_of
from rlhf_core.models.load import LoadedModel, load_policy
from rlhf_core.models.precision import set_precision
from rlhf_core.models.slices import has_no_weights
from rlhf_core.plugins.context import BuildContext
from rlhf_core.plugins.strategy_protocols import ShardedLoading


def load_trained_policy(ctx: BuildContext, *, whole: bool = False) -> LoadedModel:
    """Load the model that the run trains, on the strategy's device; it computes in the run's ``trainer.precision``.

    With a strategy that shards it before it has weights
    (:class:`rlhf_core.plugins.strategy_protocols.ShardedLoading`) its
    parameters have none yet, if they lie in a local folder as the model has them: each rank reads its part once
    :func:`rlhf_core.training.optimizer.prepare_to_learn` has prepared the module. Until then no forward can run.
    The module's ``forward(samples, compute)`` must then return ``compute(module, samples)``, in which
    :class:`~rlhf_core.training.offline.trainer.OfflineTrainer` tries the model.

    Args:
        ctx: configuration and strategy.
        whole: every rank needs all weights before.

    Raises:
        ModelError: see :func:`rlhf_core.models.load.load_policy`.
    """
    device = ctx.strategy.device
    policy = load_policy(ctx.config.model, weights=whole or not isinstance(ctx.strategy, ShardedLoading))
    if not has_no_weights(policy.model):
        policy.model.to(device)
    set_precision(policy.model, precision_of(ctx.config))
    return policy
