"""Which prompts come next, tokenized."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rlhf_core.data.order import PromptOrder
from rlhf_core.types.errors import EngineUnavailable
from rlhf_core.types.rollouts import Prompt, PromptGroup


class PromptLoader:
    """Prompts in the order of training; what was taken and not trained on comes first.

    Args:
        order: chooses the prompts; its position is part of the checkpoint.
        encode: prompt -> token ids, exactly as the policy is fed.
        group_size: completions per prompt.
    """

    def __init__(self, order: PromptOrder, encode: Callable[[Prompt], tuple[int, ...]], group_size: int) -> None:
        self.order, self.encode, self.group_size = order, encode, group_size
        self.returned: list[Prompt] = []
        """Prompts that were taken and not trained on; they come next."""

    def take(self, count: int) -> list[PromptGroup]:
        """The next prompts, all different; the position is part of the checkpoint."""
        first: dict[str, Prompt] = {}
        rest: list[Prompt] = []
        for prompt in self.returned:
            if len(first) < count and prompt.id not in first:
                first[prompt.id] = prompt
            else:
                rest.append(prompt)
        chosen, self.returned = list(first.values()), rest
        return self.groups([*chosen, *self.order.take(count - len(chosen), chosen)], self.group_size)

    def put_back(self, groups: Sequence[PromptGroup]) -> None:
        """Let these prompts come next, before any other, in this order."""
        self.returned = [*(g.prompt for g in groups), *self.returned]

    @contextmanager
    def put_back_if_unsampled(self, groups: Sequence[PromptGroup], *, whole_batch: bool = True) -> Iterator[None]:
        """Undo the taking of prompts where the engine is gone, unless others of the batch have been scored already."""
        try:
            yield
        except EngineUnavailable as error:
            if whole_batch:
                self.put_back(groups)
                error.prompts_put_back = True
            raise

    def groups(self, prompts: Sequence[Prompt], group_size: int) -> list[PromptGroup]:
        """Tokenize prompts."""
        return [PromptGroup(p, self.encode(p), group_size) for p in prompts]

    def by_name(self) -> dict[tuple[str, str], Prompt]:
        """(Source, id) -> prompt, of every prompt of the run."""
        return {(source, p.id): p for source, walk in self.order.walks.items() for p in walk.prompts}

    def returned_names(self) -> list[list[str]]:
        """[Source, id] of each prompt that was put back."""
        return [[prompt.source, prompt.id] for prompt in self.returned]

    def put_back_named(self, names: Sequence[Sequence[str]]) -> None:
        """Let these prompts come next, and no others that were put back."""
        prompts = self.by_name()
        self.returned = [prompts[source, prompt_id] for source, prompt_id in names]
