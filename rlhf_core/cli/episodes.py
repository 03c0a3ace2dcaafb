"""Completions and episodes outside a run: a model samples, or plays in an environment that a command names."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rlhf_core.models.config import ModelConfig
    from rlhf_core.models.load import LoadedModel
    from rlhf_core.plugins.component import ComponentConfig
    from rlhf_core.plugins.registry import Registry
    from rlhf_core.types.rollouts import Prompt, Rollout, SamplingParams


@dataclass(frozen=True)
class Stage:
    """An environment and the agent that plays in it; both have been checked, nothing has been started."""

    registry: Registry
    environment: Any
    agent: ComponentConfig

    @classmethod
    def chosen(cls, name: str, settings: Iterable[str] = ()) -> Stage:
        """By name, with settings as ``--set`` takes them."""
        from rlhf_core.cli.common import context_of, open_registry
        from rlhf_core.config.load import parse_settings
        from rlhf_core.types.errors import ConfigError, did_you_mean

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

    def offer(self, prompts: Sequence[Prompt]) -> list[Prompt]:
        """The prompts with the environment's tools; one that brings its own keeps them."""
        self.environment.check_prompts(prompts, lambda name: f"prompt '{name}'")
        return [replace(prompt, tools=prompt.tools or tuple(self.environment.offered())) for prompt in prompts]


def play_prompts(
    policy: LoadedModel,
    model: ModelConfig,
    prompts: Sequence[Prompt],
    sampling: SamplingParams,
    n: int,
    seed: int,
    stage: Stage | None = None,
) -> list[Rollout]:
    """``n`` rollouts per prompt, prompt by prompt: single completions, or episodes on a stage."""
    import torch

    from rlhf_core.cli.common import context_of, open_registry
    from rlhf_core.models.prompt_format import Formatter
    from rlhf_core.training.generation import SingleTurnAgent, request_seed
    from rlhf_core.types.errors import ConfigError
    from rlhf_core.types.rollouts import PromptGroup

    policy.model.to("cuda" if torch.cuda.is_available() else "cpu")
    formatter = Formatter(policy.tokenizer, model.prompt_format, model.tool_format)
    groups = [PromptGroup(prompt, formatter.encode_prompt(prompt), n) for prompt in prompts]
    room = sampling.max_tokens if stage is None else 1
    for group in groups:
        if len(group.token_ids) + room > policy.context:
            raise ConfigError(
                f"prompt '{group.prompt.id}' has {len(group.token_ids)} tokens; with {room} more it exceeds the "
                f"model's context of {policy.context}",
                fix="lower --max-tokens, or shorten the prompt" if stage is None else "offer fewer tools",
            )
    seeds = [[request_seed(seed, "generate", at, i) for i in range(n)] for at in range(len(groups))]
    registry = open_registry() if stage is None else stage.registry
    environment = None if stage is None else stage.environment
    ctx = context_of(registry, seed=seed, model=model, policy=policy, environment=environment)
    engine = registry.config("rollout", "native").build(ctx)
    if stage is None:
        return SingleTurnAgent().play(groups, seeds, engine, sampling, 0)
    with ctx.open("agent", stage.agent) as agent:
        return agent.play(groups, seeds, engine, sampling, 0)


def sample_completions(
    policy: LoadedModel, prompts: Sequence[Prompt], sampling: SamplingParams, n: int, seed: int, prompt_format: str
) -> list[Rollout]:
    """``n`` rollouts per prompt, prompt by prompt.

    Raises:
        ConfigError: a prompt and its completion do not fit the model's context.
    """
    from rlhf_core.models.config import ModelConfig

    config = ModelConfig.model_validate({"prompt_format": prompt_format})
    return play_prompts(policy, config, prompts, sampling, n, seed)
