"""Episodes outside a run: a model plays in an environment that a command names."""

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
        """By name, with settings as ``--set`` takes them.

        Args:
            name: of an environment.
            settings: ``environment.KEY=VALUE`` or ``agent.KEY=VALUE``.

        Raises:
            PluginError: there is no such environment.
            ConfigError: no such setting, or tools that cannot be offered.
        """
        from rlhf_core.cli.components import context_of, open_registry
        from rlhf_core.config.load import parse_settings
        from rlhf_core.types.errors import ConfigError, did_you_mean

        given = parse_settings(settings)
        for key in given:
            if key not in ("environment", "agent"):
                near = did_you_mean(key, ("environment", "agent"))
                raise ConfigError(f"no section '{key}' here", fix=near or "environment.KEY=VALUE or agent.KEY=VALUE")
        for section, default in (("environment", name), ("agent", "multi_turn")):
            chosen = given.get(section, {})
            other = chosen if isinstance(chosen, str) else chosen.get("name", default)
            if other != default:
                fix = f"--env {other}" if section == "environment" else "leave it out"
                raise ConfigError(
                    f"{section} '{other}' cannot be chosen by --set here", why=f"'{default}' is played", fix=fix
                )
        registry = open_registry()
        environment = registry.config("environment", name, given.get("environment"))
        agent = registry.config("agent", "multi_turn", given.get("agent"))
        environment.preflight(context_of(registry))
        return cls(registry, environment, agent)

    def offer(self, prompts: Sequence[Prompt]) -> list[Prompt]:
        """The prompts with the environment's tools; one that brings its own keeps them.

        Raises:
            DatasetError: the environment cannot play a prompt, such as one with tools that it does not have.
        """
        self.environment.check_prompts(prompts, lambda name: f"prompt '{name}'")
        return [replace(prompt, tools=prompt.tools or tuple(self.environment.offered())) for prompt in prompts]

    def play(
        self,
        policy: LoadedModel,
        model: ModelConfig,
        prompts: Sequence[Prompt],
        sampling: SamplingParams,
        n: int,
        seed: int,
    ) -> list[Rollout]:
        """``n`` episodes per prompt, prompt by prompt.

        Raises:
            ConfigError: a prompt and its episode do not fit the model's context.
            ModelError: the chat template ignores tools.
            PluginError: the environment cannot be built, or returned something else than its protocol says.
        """
        import torch

        from rlhf_core.cli.components import context_of
        from rlhf_core.models.prompt_format import Formatter
        from rlhf_core.training.generation import request_seed
        from rlhf_core.types.errors import ConfigError
        from rlhf_core.types.rollouts import PromptGroup

        policy.model.to("cuda" if torch.cuda.is_available() else "cpu")
        formatter = Formatter(policy.tokenizer, model.prompt_format, model.tool_format)
        groups = [PromptGroup(prompt, formatter.encode_prompt(prompt), n) for prompt in prompts]
        for group in groups:
            if len(group.token_ids) >= policy.context:
                raise ConfigError(
                    f"prompt '{group.prompt.id}' with its tools has {len(group.token_ids)} tokens, the model's context "
                    f"{policy.context}",
                    fix="shorten the prompt, or offer fewer tools",
                )
        seeds = [[request_seed(seed, "generate", at, i) for i in range(n)] for at in range(len(groups))]
        ctx = context_of(self.registry, seed=seed, model=model, policy=policy)
        ctx = ctx.with_(config=ctx.config.model_copy(update={"environment": self.environment}))
        engine = self.registry.config("rollout", "native").build(ctx)
        with ctx.open("agent", self.agent) as agent:
            return agent.play(groups, seeds, engine, sampling, 0)
