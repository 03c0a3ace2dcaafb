"""The critic: a linear head on a trunk of its own, or on the policy's.

Suffixes: ``_N`` completion tokens of all rows, flat, ``_H`` hidden size.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, Literal

import torch

from rlhf_core.config import BuildContext
from rlhf_core.models import LoadedModel, ModelError, load_policy, on_device, pad_rows, split_lm_head
from rlhf_plugin_ppo.config import CriticSettings

Ids = Sequence[Sequence[int]]


class Critic(torch.nn.Module):
    """``V(prompt, tokens so far) = w h + b``, h the hidden state that predicts the next token; the head starts at
    zero."""

    def __init__(self, hidden: int, dtype: torch.dtype, trunk: Any = None, stop_gradient: bool = False) -> None:
        super().__init__()
        self.trunk, self.stop_gradient = trunk, stop_gradient
        self.weight_H = torch.nn.Parameter(torch.zeros(hidden, dtype=dtype))
        self.bias = torch.nn.Parameter(torch.zeros(1, dtype=dtype))

    def forward(self, prompts: Ids, completions: Ids, hidden_NH: torch.Tensor | None = None) -> torch.Tensor:
        """Values ``[N]``, float32, of the states before each completion token, row after row."""
        if self.trunk is not None:
            hidden_NH = self._hidden(prompts, completions)
        assert hidden_NH is not None, "a shared critic needs the policy's hidden states"
        if self.stop_gradient:
            hidden_NH = hidden_NH.detach()
        return hidden_NH.float() @ self.weight_H.float() + self.bias.float()

    def _hidden(self, prompts: Ids, completions: Ids) -> torch.Tensor:
        rows = [[*p, *c[:-1]] for p, c in zip(prompts, completions, strict=True)]
        ids_BL, _ = pad_rows(rows, self.bias.device)
        mask = causal_mask(self.trunk.config, ids_BL)
        hidden_BLH = self.trunk(input_ids=ids_BL, attention_mask=mask, use_cache=False).last_hidden_state
        # one selection: a slice for each row would get a gradient as large as all rows
        positions = [(b, len(p) - 1 + t) for b, (p, c) in enumerate(zip(prompts, completions)) for t in range(len(c))]
        row_N, position_N = on_device(positions, ids_BL.device).reshape(-1, 2).unbind(1)
        return hidden_BLH[row_N, position_N]


def causal_mask(config: Any, ids_BL: torch.Tensor) -> torch.Tensor | None:
    """What each position sees, on a card: without it transformers reads the positions to find out, and so waits for the
    card in every micro-batch. None on a CPU, and where layers see less or attention is not torch's."""
    text, length = config.get_text_config(), ids_BL.shape[1]
    full = not getattr(text, "sliding_window", None) and text._attn_implementation in ("sdpa", "rlhf_packed")
    if ids_BL.device.type == "cpu" or not full:
        return None
    return torch.ones((1, 1, length, length), dtype=torch.bool, device=ids_BL.device).tril()


def make_critic(settings: CriticSettings, ctx: BuildContext) -> Critic:
    """Build the critic of a run on the policy's device; with LoRA a critic of its own has its own adapters."""
    policy: LoadedModel = ctx.policy
    device = next(policy.model.parameters()).device
    if device.type == "meta":  # its weights are read once it is sharded; a head starts at zero, here
        device = torch.device("cpu")
    if settings.kind == "shared":
        parts = split_lm_head(policy.model, linear=True)
        if parts is None:
            raise ModelError(
                f"model '{policy.source}' has no hidden states that a shared critic could use",
                fix="--set advantage.critic.kind=separate",
            )
        trunk = parts.trunk
        with torch.device(device):
            return Critic(width(trunk), dtype_of(trunk), stop_gradient=settings.stop_gradient)
    if settings.path is None:
        trunk = copy.deepcopy(trunk_of(policy))
    else:
        start = load_critic_model(settings.path, ctx)
        dtypes: dict[Any, Literal["bf16", "fp16"]] = {torch.bfloat16: "bf16", torch.float16: "fp16"}
        start.run_on(device, dtypes.get(vars(trunk_of(policy)).get("compute_dtype"), "fp32"))
        trunk = trunk_of(start)
    with torch.device(device):
        return Critic(width(trunk), dtype_of(trunk), trunk)


def load_critic_model(path: str, ctx: BuildContext) -> LoadedModel:
    loaded = load_policy(ctx.config.model.model_copy(update={"path": path, "revision": None}))
    if loaded.tokenizer.get_vocab() != ctx.policy.tokenizer.get_vocab():
        raise ModelError(
            f"critic '{path}' reads other tokens than policy '{ctx.policy.source}'",
            why="their tokenizers' vocabularies differ, and the critic reads the policy's token ids",
            fix="choose a critic of the policy's family, or leave out advantage.critic.path",
        )
    if loaded.context < ctx.policy.context:
        raise ModelError(
            f"critic '{path}' reads at most {loaded.context} tokens, but policy '{ctx.policy.source}' "
            f"writes up to {ctx.policy.context}",
            why="the critic judges whole completions",
            fix=f"--set model.max_context={loaded.context}, or choose a critic with a longer context",
        )
    return loaded


def trunk_of(loaded: LoadedModel) -> Any:
    """The transformer under a causal language model, adapters included."""
    parts = split_lm_head(loaded.model)
    if parts is None:
        raise ModelError(
            f"model '{loaded.source}' has no separate trunk and head",
            fix="--set advantage.critic.path=... of a model that has",
        )
    return parts.trunk


def width(trunk: Any) -> int:
    return int(trunk.config.get_text_config().hidden_size)


def dtype_of(trunk: Any) -> torch.dtype:
    return next(trunk.parameters()).dtype
