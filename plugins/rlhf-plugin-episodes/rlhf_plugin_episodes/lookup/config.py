"""Settings of the environment `lookup` and of its data set; importing this imports nothing heavy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from pydantic import Field, field_validator

from rlhf_core.config import ComponentConfig, ConfigError
from rlhf_core.data import Tool
from rlhf_plugin_episodes.config import EnvironmentConfig
from rlhf_plugin_episodes.lookup.questions import CALLS, TOOLS


class LookupConfig(EnvironmentConfig):
    """Questions about fictional people, answered by two to six calls of a search and a calculator.

    ``rlhf train --algo grpo --env lookup`` needs no further setting: the model is ``pocket-tools``, the prompts are
    those of data set ``lookup``. An episode's score is 1 if the last number of its last answer is right, else 0.
    """

    name: str = "lookup"
    component: ClassVar[str] = "rlhf_plugin_episodes.lookup.environment:Lookup"
    tool_specs: ClassVar[Sequence[Tool]] = TOOLS
    pure: ClassVar[bool] = True
    companions: ClassVar[Mapping[str, Any]] = {
        "model": {"path": "pocket-tools"},
        "dataset": "lookup",
        "agent": {"name": "multi_turn", "max_turns": 9, "max_turn_tokens": 40},
        "trainer": {"sampling": {"max_tokens": 400}},
    }
    world_seed: int = Field(0, ge=0)
    """Decides the facts; the same as the data set's."""
    step_reward: float = Field(0.0, ge=0, allow_inf_nan=False)
    """Score of a result that the plan of the question leads to, once each, such as 0.1; other results get 0. With 0
    only the last answer is scored."""


class LookupDataConfig(ComponentConfig):
    """Prompts of the environment ``lookup``, with answers, and demonstrations of it: calls, results, answer.

    Nobody who is asked about in a held-out prompt occurs in the others.
    """

    name: str = "lookup"
    component: ClassVar[str] = "rlhf_plugin_episodes.lookup.source:LookupSource"
    downloads: ClassVar[bool] = False
    world_seed: int = Field(0, ge=0)
    """Decides facts and questions."""
    calls: tuple[int, ...] = CALLS
    """How many calls the questions take, 2 to 6; each number equally often."""
    prompts: int = Field(2000, ge=1, le=20000)
    """To train on; a fifth as many are held out."""

    @field_validator("calls")
    @classmethod
    def _known(cls, value: tuple[int, ...]) -> tuple[int, ...]:
        if not value or not set(value) <= set(CALLS):
            raise ConfigError(
                f"dataset lookup: calls {list(value)} are not all of 2 to 6",
                why="its questions take two to six calls",
                fix="for example --set dataset.calls=[2,3]",
            )
        return value

    @classmethod
    def recipe_of(cls, options: Mapping[str, Any]) -> Mapping[str, Any]:
        """Demonstrations are learned turn by turn."""
        return {"trainer": {"learn": "all"}}
