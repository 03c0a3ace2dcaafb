"""Completions and episodes outside a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import click

if TYPE_CHECKING:
    from rlhf_core.models.config import ModelConfig
    from rlhf_core.models.load import LoadedModel
    from rlhf_core.models.prompt_format import Formatter
    from rlhf_core.plugins.protocols import Agent
    from rlhf_core.plugins.registry import Registry
    from rlhf_core.types.rollouts import Prompt, PromptGroup, Rollout, SamplingParams

SHORTEN = "lower --max-tokens, or shorten the prompt"
OFFER_FEWER = "shorten the prompt, or offer fewer tools"


class Sampler(NamedTuple):
    """A model on the device that there is, and an engine that samples from it."""

    policy: LoadedModel
    engine: Any

    def sample(
        self,
        prompts: Sequence[Prompt],
        sampling: SamplingParams,
        n: int,
        seed: int,
        formatter: Formatter | None = None,
        agent: Agent | None = None,
    ) -> list[Rollout]:
        """``n`` rollouts per prompt, prompt by prompt: single completions, or episodes of an agent.

        Raises:
            ConfigError: a prompt and its completion do not fit the model's context.
        """
        from rlhf_core.training.generation import SingleTurnAgent, request_seed

        room, fix = (sampling.max_tokens, SHORTEN) if agent is None else (1, OFFER_FEWER)
        groups = self.groups(prompts, n, room, fix, formatter)
        seeds = [[request_seed(seed, "generate", at, i) for i in range(n)] for at in range(len(groups))]
        return self.play(SingleTurnAgent() if agent is None else agent, groups, seeds, sampling)

    def groups(
        self,
        prompts: Sequence[Prompt],
        n: int,
        room: int = 1,
        fix: str = OFFER_FEWER,
        formatter: Formatter | None = None,
    ) -> list[PromptGroup]:
        """Encoded prompts with ``n`` rollouts each.

        Raises:
            ConfigError: a prompt leaves less than ``room`` tokens of the model's context.
        """
        from rlhf_core.models.prompt_format import Formatter
        from rlhf_core.types.errors import ConfigError
        from rlhf_core.types.rollouts import PromptGroup

        formatter = formatter or Formatter(self.policy.tokenizer, "auto")
        groups = [PromptGroup(prompt, formatter.encode_prompt(prompt), n) for prompt in prompts]
        for group in groups:
            if len(group.token_ids) + room > self.policy.context:
                raise ConfigError(
                    f"prompt '{group.prompt.id}' has {len(group.token_ids)} tokens; with {room} more it exceeds the "
                    f"model's context of {self.policy.context}",
                    fix=fix,
                )
        return groups

    def play(
        self, agent: Agent, groups: Sequence[PromptGroup], seeds: Sequence[Sequence[int]], sampling: SamplingParams
    ) -> list[Rollout]:
        """A rollout for each seed, group by group, checked as in a run."""
        from rlhf_core.training.generation import RolloutGenerator

        return RolloutGenerator(agent, self.engine).sample(groups, sampling, 0, seeds=seeds)


def load_sampler(registry: Registry, model: ModelConfig, engine: str = "native", /, **settings: Any) -> Sampler:
    """A model, and an engine that samples from it: ``policy, engine = load_sampler(registry, model)``.

    Args:
        registry: where the engine is looked up.
        model: what is loaded.
        engine: a rollout engine, or the address of a vLLM server. One that keeps its own weights is given the model's
            as version 0, and is to be closed.
        settings: of the engine.

    Raises:
        ModelError: the model cannot be loaded.
        ConfigError: the engine cannot be used.
    """
    from rlhf_core.cli.common import context_of
    from rlhf_core.models.layers.matmul import use_matmul_backend
    from rlhf_core.models.load import load_policy
    from rlhf_core.types.errors import ConfigError

    if "name" in settings:
        raise ConfigError("the engine is not chosen by its settings", fix=f"--engine {settings['name']}")
    server = {"urls": [engine]} if "://" in engine else {}
    chosen = registry.config("rollout", "vllm" if server else engine, {**settings, **server})
    chosen.preflight(ctx := context_of(registry, model=model))
    use_matmul_backend("auto")
    policy = load_policy(model)
    ctx = ctx.with_(policy=policy)
    if engine == "native":
        policy.run_on(ctx.device)
    built = chosen.build(ctx)
    trained = {name: p.detach() for name, p in policy.model.named_parameters() if p.requires_grad}
    getattr(built, "update_weights", lambda *_: None)(0, trained)
    return Sampler(policy, built)


def print_turn(turn: Mapping[str, Any], margin: str = "        ") -> None:
    """A turn of an episode; what the policy read, and is not trained on, is greyed."""
    from rlhf_core.types.messages import message_text

    start, end = turn["span"]
    facts = [f"{end - start} tokens", *([turn["status"]] if "status" in turn else ())]
    facts += [f"score {turn['score']:.4g}"] if "score" in turn else []
    facts += [f"{turn['seconds']:.3g} s"] if turn.get("seconds") else []
    text = f"{turn['role']} ({', '.join(facts)}): {message_text(turn['message'])}"
    click.secho("\n".join(margin + line for line in text.splitlines()), dim=turn["role"] != "assistant")
