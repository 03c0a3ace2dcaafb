"""Samples, and verifiers in real worker processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from rlhf_core.config import Registry
from rlhf_core.data import Prompt
from rlhf_core.rewards import Sample
from rlhf_plugin_verifiers.reward import VerifierReward
from rlhf_plugin_verifiers.reward_config import VerifierRewardConfig
from rlhf_testing import make_context


@pytest.fixture
def sample() -> Callable[..., Sample]:
    """``sample(completion, answer, **meta)``"""

    def make(completion: str, answer: str | None = None, **meta: object) -> Sample:
        return Sample(Prompt("test/0", ({"role": "user", "content": "?"},), answer, "test", meta), completion)

    return make


@pytest.fixture
def make_verifier() -> Iterator[Callable[..., VerifierReward]]:
    """Build a verifier by name in one real worker process, as a run does."""
    rewards: list[VerifierReward] = []

    def make(name: str, **options: object) -> VerifierReward:
        registry = Registry(disabled=())
        data = {"verifier": name, "workers": 1, **options}
        config = VerifierRewardConfig.model_validate(data, context={"registry": registry})
        rewards.append(config.build(make_context(registry=registry)))
        return rewards[-1]

    yield make
    for reward in rewards:
        reward.close()
