"""Conformance kit: one call checks every property that a kind of component promises.

Example:
    from rlhf_testing import check_loss

    def test_conforms():
        check_loss(MyLossConfig())

A property that does not hold raises ``AssertionError``: which component, which property, what was seen, what to change.
A check builds the component of its ``config`` with ``ctx``; None makes one outside any run.
"""

from rlhf_testing.advantage import check_advantage
from rlhf_testing.agent import check_agent
from rlhf_testing.algorithm import check_algorithm, make_scored
from rlhf_testing.benchmark import check_benchmark
from rlhf_testing.command import check_command
from rlhf_testing.config import check_config
from rlhf_testing.dataset import check_dataset
from rlhf_testing.environment import check_environment, check_tool
from rlhf_testing.hooks import check_hooks
from rlhf_testing.judge import check_judge
from rlhf_testing.loss import check_loss
from rlhf_testing.monitor import check_monitor
from rlhf_testing.optimizer import check_optimizer
from rlhf_testing.rollout import check_rollout
from rlhf_testing.samples import make_context, make_rollouts, make_samples, policy_context
from rlhf_testing.scoring import check_reward, check_verifier
from rlhf_testing.strategy import check_strategy
from rlhf_testing.strategy_ranks import check_strategy_on_ranks
from rlhf_testing.study import check_study
from rlhf_testing.tracker import check_tracker
from rlhf_testing.trainer import check_trainer

__all__ = [
    "check_advantage",
    "check_agent",
    "check_algorithm",
    "check_benchmark",
    "check_command",
    "check_config",
    "check_dataset",
    "check_environment",
    "check_hooks",
    "check_judge",
    "check_loss",
    "check_monitor",
    "check_optimizer",
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
    "make_scored",
    "policy_context",
]
