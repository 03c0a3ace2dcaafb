"""Demonstrations to training items."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rlhf_core.config import BuildContext
from rlhf_core.data import Datasets, Message, Tool, message_text
from rlhf_core.models import Formatter, ModelError
from rlhf_core.training import OfflineTrainer, PolicyModule, TrainingSample, load_trained_policy
from rlhf_plugin_sft.config import SftConfig


class SftTask:
    """A policy and the demonstrations it imitates; prompts are read, completions are learned."""

    def __init__(self, config: SftConfig, ctx: BuildContext) -> None:
        self.config, self.ctx = config, ctx
        self.datasets = Datasets(ctx.config.dataset, ctx)
        self.datasets.demonstrations("train")  # bad rows are found before the model is loaded
        self.policy = load_trained_policy(ctx)
        self.formatter = Formatter(self.policy.tokenizer, ctx.config.model.prompt_format)
        self.model = self.policy.model
        self.module = PolicyModule(self.model)

    def items(self, split: str) -> Sequence[TrainingSample]:
        """Tokenize; examples over ``max_length`` or the model's context are dropped and counted."""
        limit = min(self.config.max_length, self.policy.context)
        samples: list[TrainingSample] = []
        sizes: list[tuple[str, str, int]] = []
        cut = all_answers if self.config.learn == "all" else last_answer
        for row in self.datasets.demonstrations(split):
            prompt, completion, learned = cut(self.formatter, row.prompt, row.completion, row.turn, row.tools)
            count = len(completion)
            sizes.append((row.id, row.source, len(prompt) + count))
            if len(prompt) + count <= limit:
                samples.append(
                    TrainingSample(row.id, prompt, completion, np.array(learned), np.ones(count, np.float32))
                )
        self.datasets.check_lengths(
            sizes,
            limit,
            f"max_length {self.config.max_length}, context {self.policy.context}",
            "raise trainer.max_length",
            context=self.policy.context,
        )
        self.ctx.session.counts.update(+Counter({"examples_too_long": len(sizes) - len(samples)}))
        return samples

    def texts(self, item: TrainingSample) -> Mapping[str, str]:
        return {
            "prompt": self.policy.tokenizer.decode(item.prompt_ids),
            "completion": self.policy.tokenizer.decode(item.completion_ids),
        }

    def write_model(self, folder: Path, weights: Mapping[str, Any]) -> None:
        self.policy.save(folder, weights)

    def load_model(self, folder: Path) -> None:
        self.policy.load_weights(folder)

    def write_final(self, folder: Path, weights: Mapping[str, Any]) -> None:
        self.policy.save(folder, weights, merge=True)


def build_trainer(config: SftConfig, ctx: BuildContext) -> OfflineTrainer:
    return OfflineTrainer(config, ctx, SftTask(config, ctx))


class Turns(NamedTuple):
    """A conversation cut where learning may begin."""

    prompt: tuple[int, ...]
    completion: tuple[int, ...]
    learned: tuple[bool, ...]
    """Of each completion token; answers and their end tokens are, what users say and the template's marks are not."""


def last_answer(
    formatter: Formatter, prompt: Sequence[Message], text: str, turn: Message | None = None, tools: Sequence[Tool] = ()
) -> Turns:
    """Learn only the last answer, its calls included; everything before it is read."""
    completion = formatter.encode_reply(prompt, text, turn, tools)
    return Turns(formatter.encode(prompt, tools), completion, (True,) * len(completion))


def all_answers(
    formatter: Formatter, prompt: Sequence[Message], text: str, turn: Message | None = None, tools: Sequence[Tool] = ()
) -> Turns:
    """Learn every answer of the assistant, each as it would be written: after its own prompt, up to its end token."""
    messages = [*prompt, turn or {"role": "assistant", "content": text}]
    answers = [n for n, m in enumerate(messages) if m["role"] == "assistant"]
    if len(answers) == 1:
        return last_answer(formatter, prompt, text, turn, tools)
    if not formatter.chat:
        raise ModelError(
            "learn: all needs a chat template to separate the turns of a conversation",
            why="the prompt format is raw",
            fix="--set trainer.learn=last, or --set model.chat_template=plain",
        )
    first = formatter.encode(messages[: answers[0]], tools)
    ids: list[int] = []
    learned: list[bool] = []
    for answer, following in zip(answers, [*answers[1:], None]):
        more = any(messages[answer].get(key) for key in ("tool_calls", "reasoning"))
        answer_ids = formatter.encode_reply(
            messages[:answer],
            messages[answer]["content"] or "",
            messages[answer] if more else None,
            tools,
            messages[answer + 1 : following] if following is not None else (),
        )
        ids += answer_ids
        learned += [messages[answer].get("weight") != 0] * len(answer_ids)
        if following is not None:
            bridge = formatter.bridge((*first, *ids), messages[:following], tools)
            if bridge.new_segment:
                raise _refused(messages[answer], "the chat template writes it differently once other turns follow")
            ids += bridge.ids
            learned += [False] * len(bridge.ids)
            if (*first, *ids) != formatter.encode(messages[:following], tools):
                raise _refused(messages[answer], "the tokens differ from those of the template's whole text")
    return Turns(first, tuple(ids), tuple(learned))


def _refused(answer: Message, why: str) -> ModelError:
    return ModelError(
        "learn: all cannot put all answers of a conversation into one sequence",
        why=why,
        where=f"answer: {message_text(answer)[:60]!r}",
        fix="--set model.chat_template=keep_thinking, or --set trainer.learn=last, which learns the last answer",
    )
