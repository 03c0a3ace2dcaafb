"""Twice the tokens cost twice the work, forward and backward: what kernels touch is counted, not timed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from rlhf_core.models.last_token import can_pack, packed_last
from rlhf_core.models.layers.packing import packed_hidden
from rlhf_core.models.layers.prefix_sharing import shared_hidden
from rlhf_core.models.layers.trunk_and_head import Ids, padded_hidden
from rlhf_core.training.forward import structure
from rlhf_plugin_ppo.critic import Critic


class Touched(TorchDispatchMode):
    """Numbers that operations returned; views return nothing new."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        before = {t.untyped_storage().data_ptr() for t in tree_leaves(args) if isinstance(t, torch.Tensor)}
        for tensor in tree_leaves(out):
            if isinstance(tensor, torch.Tensor) and tensor.untyped_storage().data_ptr() not in before:
                self.numbers += tensor.numel()
        return out


def touched(hidden: Callable[[Ids, Ids], torch.Tensor], prompts: int) -> int:
    """Numbers made by forward and backward over ``prompts`` prompts of 5 tokens with 2 completions of 8 each."""
    asked = [tuple(7 * n % 101 + i for i in range(5)) for n in range(prompts) for _ in range(2)]
    answers = [tuple(3 * n % 97 + i for i in range(8)) for n in range(2 * prompts)]
    with Touched() as seen:
        hidden(asked, answers).sum().backward()
    return seen.numbers


PATHS: dict[str, Callable[[Any], Callable[[Ids, Ids], torch.Tensor]]] = {
    "packed": lambda model: lambda p, c: packed_hidden(model, p, c, share=False),
    "packed, shared prompts": lambda model: lambda p, c: packed_hidden(model, p, c, share=True),
    "last token": lambda model: lambda p, c: packed_last(model.get_decoder(), [(*a, *b) for a, b in zip(p, c)]),
    "padded": lambda model: lambda p, c: padded_hidden(model, p, c),
    "shared prompts": lambda model: lambda p, c: shared_hidden(model, p, c),
    "critic": lambda model: Critic(32, torch.float32, model.get_decoder()),
}


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("model", ["llama", "mistral"], indirect=True)
def test_work_grows_with_the_tokens_and_not_with_their_square(model: Any, path: str) -> None:
    assert structure(model).pack
    assert can_pack(model.get_decoder())
    hidden = PATHS[path](model)
    few, many = touched(hidden, 4), touched(hidden, 32)
    assert many < 8 * few, f"8 times the tokens made {many / few:.1f} times the numbers"
