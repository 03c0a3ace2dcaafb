"""What is sharded, and gathered, as one: every decoder layer, and the root with all that is left."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import torch


def decoder_layers(module: torch.nn.Module) -> list[torch.nn.Module]:
    """Every layer of every transformer in a module (policy and critic, say), outermost ones only.

    transformers' models name the classes of modules that are not to be split; those in a list are the layers. Embedding
    and head are left to the root: the head runs on chunks of tokens, whose number differs between ranks. So is a layer
    that shares a weight with another module: a weight is gathered with one unit only.
    """
    classes: set[str] = set()
    owners: Counter[int] = Counter()
    for part in module.modules():
        classes |= set(getattr(part, "_no_split_modules", None) or ())
        owners.update(id(p) for p in part.parameters(recurse=False))
    return [layer for layer in _outermost(module, classes) if not _shares(layer, owners)]


def _outermost(module: torch.nn.Module, classes: set[str]) -> Iterator[torch.nn.Module]:
    listed = isinstance(module, torch.nn.ModuleList)
    for child in module.children():
        if listed and type(child).__name__ in classes and next(child.parameters(), None) is not None:
            yield child
        else:
            yield from _outermost(child, classes)


def _shares(layer: torch.nn.Module, owners: Counter[int]) -> bool:
    """Whether one of its weights belongs to a module outside of it, too."""
    inside = Counter(id(p) for part in layer.modules() for p in part.parameters(recurse=False))
    return any(owners[place] != count for place, count in inside.items())
