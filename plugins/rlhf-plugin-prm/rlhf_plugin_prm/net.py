"""Scores at the ends of steps: a reward network's head, read at several tokens of a conversation.

Suffixes: ``_B`` solutions, ``_T`` steps of each (right-padded grid), ``_N`` the same steps flat, ``_H`` hidden size.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.nn.functional import logsigmoid
from torch.nn.utils.rnn import pad_sequence

from rlhf_core.data import Message, Tool
from rlhf_core.models import Formatter, ModelError, pad_rows
from rlhf_core.models import on_device as tensor_on
from rlhf_plugin_prm.examples import Solution, Target
from rlhf_plugin_prm.loss import StepBatch
from rlhf_plugin_prm.steps import Step, token_positions
from rlhf_plugin_reward.net import RewardNet
from rlhf_plugin_reward.reward import PADDED_TOKENS, by_length, on_device

Ids = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StepItem:
    """A tokenized solution and the places where its head is read."""

    name: str
    ids: Ids
    places_T: tuple[int, ...]
    labels_T: tuple[bool, ...]

    @property
    def tokens(self) -> int:
        return len(self.places_T)


class StepEncoder:
    """Solutions to token ids and places; a step is read at the token with its last character."""

    def __init__(self, tokenizer: Any, max_length: int) -> None:
        if not getattr(tokenizer, "is_fast", False):
            raise ModelError(
                f"{type(tokenizer).__name__} does not say which characters a token holds",
                why="steps are found by characters",
                fix="use a model with a tokenizer.json",
            )
        self.tokenizer, self.formatter, self.max_length = tokenizer, Formatter(tokenizer, "auto"), max_length

    def encode(
        self, prompt: Sequence[Message], text: str, steps: Sequence[Step], tools: Sequence[Tool] = ()
    ) -> tuple[Ids, tuple[int, ...], bool]:
        """(ids up to the last step's end, places of the steps in them, whether the prompt was cut)."""
        if not steps:
            raise ValueError("the completion is blank: there is no step to score")
        question = self.formatter.encode(prompt, tools)
        as_text = {"split_special_tokens": True} if self.formatter.text.names_in(text) else {}
        encoded = self.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, **as_text)
        positions = token_positions(steps, encoded["offset_mapping"])
        answer = tuple(encoded["input_ids"][: positions[-1] + 1])
        if len(answer) > self.max_length:
            raise ValueError(f"its steps have {len(answer)} tokens, and max_length is {self.max_length}")
        prompt_tail = question[max(0, len(question) + len(answer) - self.max_length) :]
        return (*prompt_tail, *answer), tuple(len(prompt_tail) + p for p in positions), len(prompt_tail) < len(question)


def encode_solutions(
    solutions: Sequence[Solution], encoder: StepEncoder, target: Target, until_error: bool, counts: Counter[str]
) -> list[StepItem]:
    """Tokenize solutions; ``counts`` gets those whose prompt was cut, and those that were too long and are left out."""
    items: list[StepItem] = []
    for solution in solutions:
        try:
            ids, where_T, cut = encoder.encode(solution.prompt, solution.text, solution.steps, solution.tools)
        except ValueError:
            counts["solutions_too_long"] += 1
            continue
        counts["solutions_prompt_cut"] += int(cut)
        labels_T = solution.labels
        if target == "outcome":
            where_T, labels_T = where_T[-1:], (solution.outcome,)
        elif until_error and solution.first_error >= 0:
            where_T, labels_T = where_T[: solution.first_error + 1], labels_T[: solution.first_error + 1]
        items.append(StepItem(solution.id, ids, where_T, labels_T))
    return items


def step_logits(net: RewardNet, ids_B: Sequence[Ids], places_B: Sequence[Sequence[int]]) -> torch.Tensor:
    """Scores ``[N]`` at the given places, row after row; ``sigmoid`` of one is the probability of right."""
    device = net.head.weight.device
    ids, mask = pad_rows(ids_B, device)
    with torch.set_grad_enabled(torch.is_grad_enabled() and not net.frozen):
        hidden = net.trunk(input_ids=ids, attention_mask=mask, use_cache=False).last_hidden_state
    rows_N = tensor_on([b for b, places_T in enumerate(places_B) for _ in places_T], device)
    places_N = tensor_on([p for places_T in places_B for p in places_T], device)
    return net.head(hidden[rows_N, places_N].to(net.head.weight.dtype))[:, 0].float()


@torch.inference_mode()
def step_probabilities(
    net: RewardNet, ids: Sequence[Ids], positions: Sequence[Sequence[int]], batch_tokens: int
) -> list[np.ndarray]:
    """Probability that each step is right, one array per solution; batches of similar length."""
    probabilities: dict[int, np.ndarray] = {}
    for rows in by_length(ids, on_device(batch_tokens, PADDED_TOKENS, net.head.weight.device)):
        logits_N = step_logits(net, [ids[i] for i in rows], [positions[i] for i in rows]).double()
        pieces = torch.sigmoid(logits_N).cpu().split([len(positions[i]) for i in rows])
        probabilities |= {i: piece.numpy() for i, piece in zip(rows, pieces)}
    return [probabilities[i] for i in range(len(ids))]


class StepModule(torch.nn.Module):
    """A reward network and the way its steps are scored."""

    def __init__(self, net: RewardNet) -> None:
        super().__init__()
        self.net = net

    def forward(self, items: Sequence[StepItem], compute: Callable[[Any, Sequence[Any]], Any] | None = None) -> Any:
        """Return the batch of a micro-batch; with ``compute``, ``compute(self, items)`` instead."""
        return self.batch(items) if compute is None else compute(self, items)

    def batch(self, items: Sequence[StepItem]) -> StepBatch:
        """Log-probabilities of the labels, ``[B, T]``."""
        logits_N = step_logits(self.net, [i.ids for i in items], [i.places_T for i in items])
        device = logits_N.device
        labels_N = tensor_on([v for i in items for v in i.labels_T], device, None)
        sizes = [i.tokens for i in items]
        mask_BT = torch.arange(max(sizes), device=device)[None] < tensor_on(sizes, device)[:, None]
        logprobs_N = logsigmoid(torch.where(labels_N, logits_N, -logits_N))
        grid_BT, labels_BT = (pad_sequence(list(v_N.split(sizes)), batch_first=True) for v_N in (logprobs_N, labels_N))
        return StepBatch(grid_BT, mask_BT, labels_BT=labels_BT)
