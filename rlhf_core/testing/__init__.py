"""Conformance kit: one call checks every property that a kind of component promises.

Example:
    from rlhf_core.testing import check_loss

    def test_conforms():
        check_loss(MyLossConfig())

A property that does not hold raises ``AssertionError``: which component, which property, what was seen, what to change.
"""

from rlhf_core.testing.advantage import check_advantage
from rlhf_core.testing.agent import check_agent
from rlhf_core.testing.benchmark import check_benchmark
from rlhf_core.testing.command import check_command
from rlhf_core.testing.config import check_config
from rlhf_core.testing.dataset import check_dataset
from rlhf_core.testing.environment import check_environment, check_tool
from rlhf_core.testing.hooks import check_hooks
from rlhf_core.testing.judge import check_judge
from rlhf_core.testing.loss import check_loss
from rlhf_core.testing.monitor import check_monitor
from rlhf_core.testing.policies import policy_context
from rlhf_core.testing.rollout import check_rollout
from rlhf_core.testing.samples import make_context, make_rollouts, make_samples
from rlhf_core.testing.scoring import check_reward, check_verifier
from rlhf_core.testing.strategy import check_strategy
from rlhf_core.testing.strategy_ranks import check_strategy_on_ranks
from rlhf_core.testing.study import check_study
from rlhf_core.testing.tracker import check_tracker
from rlhf_core.testing.trainer import check_trainer

__all__ = [
    "check_advantage",
    "check_agent",
    "check_benchmark",
    "check_command",
    "check_config",
    "check_dataset",
    "check_environment",
    "check_hooks",
    "check_judge",
    "check_loss",
    "check_monitor",
    "check_reward",
    "check_rollout",
    "check_strategy",
    "check_strategy_on_ranks",
    "check_study",
    "check_tool",
    "check_tracker",
    "check_trainer",
    "check_verifier",
    "make_context",
    "make_rollouts",
    "make_samples",
    "policy_context",
]
