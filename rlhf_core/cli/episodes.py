"""Completions and episodes outside a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from rlhf_core.cli.common import say

if TYPE_CHECKING:
    from rlhf_core.models.config import ModelConfig
    from rlhf_core.models.load import LoadedModel
    from rlhf_core.models.prompt_format import Formatter
    from rlhf_core.plugins.component import ComponentConfig
    from rlhf_core.plugins.registry import Registry
    from rlhf_core.types.rollouts import Prompt, PromptGroup, Rollout, SamplingParams

SHORTEN = "lower --max-tokens, or shorten the prompt"


class Sampler(NamedTuple):
    """A model on the device that there is, and an engine that samples from it."""

    policy: LoadedModel
    engine: Any

    def sample(
        self, prompts: Sequence[Prompt], sampling: SamplingParams, n: int, seed: int, prompt_format: str = "auto"
    ) -> list[Rollout]:
        """``n`` completions per prompt, prompt by prompt.

        Raises:
            ConfigError: a prompt and its completion do not fit the model's context.
        """
        from rlhf_core.models.prompt_format import Formatter
        from rlhf_core.training.generation import SingleTurnAgent

        formatter = Formatter(self.policy.tokenizer, prompt_format)
        groups = _groups(self.policy, formatter, prompts, n, sampling.max_tokens, SHORTEN)
        return SingleTurnAgent().play(groups, _seeds(seed, groups), self.engine, sampling, 0)


def load_sampler(registry: Registry, model: ModelConfig) -> Sampler:
    """A model, and an engine that samples from it: ``policy, engine = load_sampler(registry, model)``.

    Raises:
        ModelError: the model cannot be loaded.
    """
    import torch

    from rlhf_core.cli.common import context_of
    from rlhf_core.models.layers.matmul import use_matmul_backend
    from rlhf_core.models.load import load_policy

    use_matmul_backend("auto")
    policy = load_policy(model)
    policy.model.to("cuda" if torch.cuda.is_available() else "cpu")
    return Sampler(policy, registry.config("rollout", "native").build(context_of(registry, policy=policy)))


def play_prompts(
    policy: LoadedModel,
    model: ModelConfig,
    prompts: Sequence[Prompt],
    sampling: SamplingParams,
    n: int,
    seed: int,
    registry: Registry | None = None,
    environment: ComponentConfig | None = None,
    agent: ComponentConfig | None = None,
) -> list[Rollout]:
    """``n`` rollouts per prompt, prompt by prompt: single completions, or episodes of an agent."""
    import torch

    from rlhf_core.cli.common import context_of, open_registry
    from rlhf_core.models.prompt_format import Formatter
    from rlhf_core.training.generation import SingleTurnAgent

    policy.model.to("cuda" if torch.cuda.is_available() else "cpu")
    formatter = Formatter(policy.tokenizer, model.prompt_format, model.tool_format)
    room, fix = (sampling.max_tokens, SHORTEN) if agent is None else (1, "offer fewer tools")
    groups = _groups(policy, formatter, prompts, n, room, fix)
    registry = open_registry() if registry is None else registry
    ctx = context_of(registry, seed=seed, model=model, policy=policy, environment=environment)
    engine = registry.config("rollout", "native").build(ctx)
    if agent is None:
        return SingleTurnAgent().play(groups, _seeds(seed, groups), engine, sampling, 0)
    with ctx.open("agent", agent) as player:
        return player.play(groups, _seeds(seed, groups), engine, sampling, 0)


def _groups(
    policy: LoadedModel, formatter: Formatter, prompts: Sequence[Prompt], n: int, room: int, fix: str
) -> list[PromptGroup]:
    from rlhf_core.types.errors import ConfigError
    from rlhf_core.types.rollouts import PromptGroup

    groups = [PromptGroup(prompt, formatter.encode_prompt(prompt), n) for prompt in prompts]
    for group in groups:
        if len(group.token_ids) + room > policy.context:
            raise ConfigError(
                f"prompt '{group.prompt.id}' has {len(group.token_ids)} tokens; with {room} more it exceeds the "
                f"model's context of {policy.context}",
                fix=fix,
            )
    return groups


def _seeds(seed: int, groups: Sequence[PromptGroup]) -> list[list[int]]:
    from rlhf_core.training.generation import request_seed

    return [[request_seed(seed, "generate", at, i) for i in range(g.group_size)] for at, g in enumerate(groups)]


def print_turn(turn: Mapping[str, Any], margin: str = "        ") -> None:
    """A turn of an episode; what the policy read, and is not trained on, is greyed."""
    from rlhf_core.types.messages import message_text

    start, end = turn["span"]
    facts = [f"{end - start} tokens", *([turn["status"]] if "status" in turn else ())]
    facts += [f"score {turn['score']:.4g}"] if "score" in turn else []
    facts += [f"{turn['seconds']:.3g} s"] if turn.get("seconds") else []
    text = f"{turn['role']} ({', '.join(facts)}): {message_text(turn['message'])}"
    say("\n".join(margin + line for line in text.splitlines()), dim=turn["role"] != "assistant")
