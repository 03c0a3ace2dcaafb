"""``rollout: auto`` is one engine or the other before the run is planned."""

from __future__ import annotations

import logging

import pytest

from rlhf_core.config import ConfigError, Registry
from rlhf_plugin_native.config import NativeRolloutConfig
from rlhf_plugin_vllm import auto_config
from rlhf_plugin_vllm.colocated_config import ColocatedConfig


@pytest.mark.parametrize(
    ("cards", "vllm", "config", "said"),
    [
        (0, True, NativeRolloutConfig(), "native: torch sees no card"),
        (2, False, NativeRolloutConfig(), "native: vLLM is not installed"),
        (1, True, ColocatedConfig(), "vllm_colocated: torch sees a card"),
    ],
)
def test_it_is_vllm_where_a_card_and_vllm_are_there(
    cards: int, vllm: bool, config: object, said: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(auto_config, "cards_here", lambda: cards)
    monkeypatch.setattr(auto_config, "find_spec", lambda _: vllm or None)
    auto_config.chosen.cache_clear()
    registry = Registry()
    with caplog.at_level(logging.WARNING, "rlhf"):
        assert registry.config("rollout", "auto") == config
        registry.config("rollout", "auto")
    assert [record.getMessage() for record in caplog.records] == [
        f"rollout auto takes {said}" + (", and vLLM is installed" if cards == 1 else "")
    ]
    with pytest.raises(ConfigError, match="nothing"):
        registry.config("rollout", "auto", {"nothing": 1})
    auto_config.chosen.cache_clear()
