"""What is sharded, and gathered, as one: every decoder layer, and the root with all that is left."""

from __future__ import annotations

from collections.abc import Iterator

import torch


def decoder_layers(module: torch.nn.Module) -> list[torch.nn.Module]:
    """Every layer of every transformer in a module (policy and critic, say), outermost ones only.

    transformers' models name the classes of layers that are not to be split. Embedding and head are left to the root:
    they may share a weight, and the head runs on chunks of tokens, whose number differs between ranks.
    """
    classes: set[str] = set()
    for part in module.modules():
        classes |= set(getattr(part, "_no_split_modules", None) or ())
    return list(_outermost(module, classes))


def _outermost(module: torch.nn.Module, classes: set[str]) -> Iterator[torch.nn.Module]:
    for child in module.children():
        if type(child).__name__ in classes and next(child.parameters(), None) is not None:
            yield child
        else:
            yield from _outermost(child, classes)
