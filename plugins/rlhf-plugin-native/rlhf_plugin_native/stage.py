"""The environment of `rlhf generate --env`, and the agent that plays in it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from rlhf_core.config import ComponentConfig, Registry
    from rlhf_core.data import Prompt
    from rlhf_core.models import LoadedModel, ModelConfig


class Stage(NamedTuple):
    """An environment and the agent that plays in it; both have been checked, nothing has been started."""

    registry: Registry
    environment: Any
    agent: ComponentConfig

    @classmethod
    def chosen(cls, name: str, settings: Iterable[str] = ()) -> Stage:
        """By name, with settings as ``--set`` takes them."""
        from rlhf_core.cli import context_of, open_registry
        from rlhf_core.config import ConfigError, did_you_mean, parse_settings

        sections = parse_settings(settings)
        for key in sections:
            if key not in ("environment", "agent"):
                near = did_you_mean(key, ("environment", "agent"))
                raise ConfigError(f"no section '{key}' here", fix=near or "environment.KEY=VALUE or agent.KEY=VALUE")
        for section, default in (("environment", name), ("agent", "multi_turn")):
            chosen = sections.get(section, {})
            other = chosen if isinstance(chosen, str) else chosen.get("name", default)
            if other != default:
                fix = f"--env {other}" if section == "environment" else "leave it out"
                raise ConfigError(
                    f"{section} '{other}' cannot be chosen by --set here", why=f"'{default}' is played", fix=fix
                )
        registry = open_registry()
        environment = registry.config("environment", name, sections.get("environment"))
        agent = registry.config("agent", "multi_turn", sections.get("agent"))
        environment.preflight(context_of(registry))
        return cls(registry, environment, agent)

    def player(self, model: ModelConfig, policy: LoadedModel, seed: int) -> AbstractContextManager[Any]:
        """The agent, as long as one is inside."""
        from rlhf_core.cli import context_of

        ctx = context_of(self.registry, seed=seed, model=model, policy=policy, environment=self.environment)
        return ctx.open("agent", self.agent)

    def offer(self, prompts: Sequence[Prompt]) -> list[Prompt]:
        """The prompts with the environment's tools; one that brings its own keeps them."""
        self.environment.check_prompts(prompts, lambda name: f"prompt '{name}'")
        return [replace(prompt, tools=prompt.tools or tuple(self.environment.offered())) for prompt in prompts]
