"""Teachers: a model in this process, or a server; and what a teacher reads in place of the student's prompt."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from typing import Any

import numpy as np
import torch

from rlhf_core.config import BuildContext
from rlhf_core.data import DatasetError, Message, Prompt, Tool, message_text
from rlhf_core.models import Formatter, LoadedModel, ModelConfig, load_policy, load_tokenizer, on_device
from rlhf_core.training import TrainingSample
from rlhf_plugin_distill.checks import check_tokenizer, teacher_tokenizer
from rlhf_plugin_distill.module import DistillSample, FullTeacher, Pieces, TopKTeacher, chosen_logprobs, outputs
from rlhf_plugin_distill.server import TeacherServer
from rlhf_plugin_distill.spans import SpanTeacher, align, no_logprobs, span_numbers
from rlhf_plugin_distill.teacher_config import TeacherSettings

Samples = Sequence[DistillSample]
Logprobs = Callable[[float], torch.Tensor]
"""Of a temperature: log-probabilities ``[M]``."""


class LocalTeacher:
    """A frozen model, whole on each rank's device."""

    def __init__(self, settings: TeacherSettings, ctx: BuildContext) -> None:
        loaded = load_policy(ModelConfig(path=settings.path, dtype=ctx.config.model.dtype))
        check_tokenizer(settings, loaded.tokenizer, ctx)
        self.model = loaded.model.to(ctx.strategy.device).requires_grad_(False)
        self.context, self.top_k, self.tokenizer = loaded.context, settings.top_k, loaded.tokenizer

    def with_teacher_logprobs(self, samples: Sequence[DistillSample]) -> list[DistillSample]:
        """The samples as they are: the model is run beside the student."""
        return list(samples)

    @torch.no_grad()
    def outputs(self, samples: Samples, wanted_N: torch.Tensor, paths: Mapping[str, Any]) -> FullTeacher:
        """At the tokens of a micro-batch that count."""
        pieces = [piece for s in samples for piece in teacher_pieces(s)]
        return FullTeacher(outputs(self.model, pieces, wanted_N, paths), self.top_k)


class OtherTokenizerTeacher(ABC):
    """Reads its own tokens of each completion."""

    def __init__(self, tokenizer: Any, context: int, ctx: BuildContext) -> None:
        model, self.context = ctx.config.model, context
        self.student = Formatter(load_tokenizer(model), model.prompt_format, model.tool_format)
        self.formatter = Formatter(tokenizer, model.prompt_format, model.tool_format)

    def with_teacher_logprobs(self, samples: Sequence[DistillSample]) -> list[DistillSample]:
        """The samples with the teacher's tokens; what does not fit its context is left out."""
        aligned: list[DistillSample] = []
        for sample in samples:
            assert sample.teacher_prompt is not None, "a teacher of another tokenizer reads its own prompt"
            room = self.context - len(sample.teacher_prompt)
            ids, spans = align(self.student, sample.completion_ids, self.formatter, room)
            aligned.append(replace(sample, teacher_completion=tuple(ids), spans=tuple(spans)))
        return aligned

    def outputs(self, samples: Samples, wanted_N: torch.Tensor, paths: Mapping[str, Any]) -> SpanTeacher:
        """At its own tokens; ``paths`` are the student's, and not taken."""
        lengths = [len(s.teacher_completion) for s in samples]
        numbers = span_numbers([s.spans for s in samples], [s.mask_T for s in samples], lengths, wanted_N.device)
        return SpanTeacher(self.logprobs(samples, wanted_N.device), *numbers)

    @abstractmethod
    def logprobs(self, samples: Samples, device: torch.device) -> Logprobs:
        """Of its own tokens, row after row."""


class LocalOtherTokenizer(OtherTokenizerTeacher):
    """A frozen model, whole on each rank's device."""

    def __init__(self, settings: TeacherSettings, ctx: BuildContext) -> None:
        local = LocalTeacher(settings, ctx)
        super().__init__(local.tokenizer, local.context, ctx)
        self.model = local.model

    @torch.no_grad()
    def logprobs(self, samples: Samples, device: torch.device) -> Logprobs:
        """By a forward pass; the head runs once the temperature is known."""
        rows = [(s.teacher_prompt or (), s.teacher_completion) for s in samples if s.teacher_completion]
        if not rows:
            return no_logprobs
        targets_M = on_device([token for _, completion in rows for token in completion], device)
        made = outputs(self.model, rows, torch.arange(len(targets_M), device=device), {})
        return partial(chosen_logprobs, made, targets_M, self.model.get_input_embeddings().weight.shape[0])


class ServedOtherTokenizer(OtherTokenizerTeacher):
    """A server, asked before each update."""

    def __init__(self, settings: TeacherSettings, ctx: BuildContext) -> None:
        tokenizer = teacher_tokenizer(settings)
        check_tokenizer(settings, tokenizer, ctx)
        self.server = checked_server(settings, tokenizer, ctx)
        super().__init__(tokenizer, self.server.context - 1, ctx)

    def with_teacher_logprobs(self, samples: Samples) -> list[DistillSample]:
        """The samples with the teacher's tokens, and what the server says of each."""
        aligned = super().with_teacher_logprobs(samples)
        asked = [s for s in aligned if s.teacher_completion]
        pieces = [(s.teacher_prompt or (), s.teacher_completion) for s in asked]
        told = dict(zip(map(id, asked), self.server.at_once(self.server.chosen, pieces), strict=True))
        return [replace(s, teacher_logprobs_M=tuple(told.get(id(s), ()))) for s in aligned]

    def logprobs(self, samples: Samples, device: torch.device) -> Logprobs:
        """At temperature 1."""
        logprobs_M = on_device([value for s in samples for value in s.teacher_logprobs_M], device, torch.float32)
        return lambda _: logprobs_M


class ServedTeacher:
    """A server, asked before each update."""

    def __init__(self, settings: TeacherSettings, ctx: BuildContext) -> None:
        self.server = checked_server(settings, load_tokenizer(ctx.config.model), ctx)
        self.context = self.server.context - 1  # a request samples one token more

    def with_teacher_logprobs(self, samples: Sequence[DistillSample]) -> list[DistillSample]:
        """The samples with what the server says of each of their tokens."""
        pieces = [teacher_pieces(s) for s in samples]
        answers = iter(self.server.at_once(self.server.likeliest, [piece for row in pieces for piece in row]))
        told: list[DistillSample] = []
        for sample, row in zip(samples, pieces, strict=True):
            tokens = [token for _ in row for token in next(answers)]
            ids, logprobs = (np.array([token[n] for token in tokens]) for n in range(2))
            told.append(replace(sample, teacher_ids_TK=ids, teacher_logprobs_TK=logprobs.astype(np.float32)))
        return told

    def outputs(self, samples: Samples, wanted_N: torch.Tensor, paths: Mapping[str, Any]) -> TopKTeacher:
        """At the tokens of a micro-batch that count."""
        ids_NK = np.concatenate([s.teacher_ids_TK for s in samples])
        logprobs_NK = np.concatenate([s.teacher_logprobs_TK for s in samples])
        return TopKTeacher(*(on_device(rows, wanted_N.device, None)[wanted_N] for rows in (ids_NK, logprobs_NK)))


Teacher = LocalTeacher | ServedTeacher | OtherTokenizerTeacher


def checked_server(settings: TeacherSettings, tokenizer: Any, ctx: BuildContext) -> TeacherServer:
    """The server of a model with this tokenizer; the run closes it."""
    server = TeacherServer(settings)
    server.check(tokenizer)
    ctx.session.components.attach("the teacher's server", server)
    return server


def open_teacher(settings: TeacherSettings, ctx: BuildContext) -> Teacher:
    """The run's teacher; a fault of it is found before the student is loaded."""
    if settings.tokenizer == "other":
        return (ServedOtherTokenizer if settings.url else LocalOtherTokenizer)(settings, ctx)
    return ServedTeacher(settings, ctx) if settings.url else LocalTeacher(settings, ctx)


def teacher_pieces(sample: DistillSample) -> Pieces:
    """What the teacher is fed: the student's tokens after a prompt of its own, if it has one."""
    prompt = sample.teacher_prompt
    return sample.pieces if prompt is None else replace(sample, prompt_ids=prompt).pieces


def distill_sample(sample: TrainingSample, teacher_prompt: tuple[int, ...] | None) -> DistillSample:
    """A completion that a teacher will judge token by token."""
    values = {field.name: getattr(sample, field.name) for field in fields(TrainingSample)}
    return DistillSample(**values, teacher_prompt=teacher_prompt)


class TeacherPrompts:
    """Writes ``teacher.context`` around a prompt's last turn."""

    def __init__(self, settings: TeacherSettings, policy: LoadedModel, ctx: BuildContext, teacher: Teacher) -> None:
        self.template, self.limit = settings.context, teacher.context
        if isinstance(teacher, OtherTokenizerTeacher):
            self.template, self.formatter = self.template or "{prompt}", teacher.formatter
            return
        model = ctx.config.model
        self.formatter = Formatter(policy.tokenizer, model.prompt_format, model.tool_format)

    def of_rollout(self, prompt: Prompt, info: Mapping[str, Any], room: int) -> tuple[int, ...] | None:
        """Of a completion of ``room`` tokens; ``info`` is the rollout's."""
        feedback = {key: info[key] for key in ("feedback",) if key in info}
        columns = {**prompt.meta, "answer": prompt.answer, **feedback}
        return self(prompt.id, prompt.messages, prompt.tools, columns, room)

    def __call__(
        self, name: str, messages: Sequence[Message], tools: Sequence[Tool], columns: Mapping[str, Any], room: int
    ) -> tuple[int, ...] | None:
        """Token ids, or None where the teacher reads the student's prompt.

        Args:
            room: tokens that follow.

        Raises:
            DatasetError: the row has no such column, or the teacher's context is too short.
        """
        if not self.template:
            return None
        values = {"feedback": "", **columns, "prompt": message_text(messages[-1])}
        missing = [key for key in re.findall(r"\{(\w+)\}", self.template) if values.get(key) is None]
        if missing:
            raise DatasetError(
                f"trainer.teacher.context asks for {{{missing[0]}}}, which this row does not have",
                where=name,
                why=f"it has {', '.join(sorted(key for key, value in values.items() if value is not None))}",
                fix="add the column, or change trainer.teacher.context",
            )
        text = re.sub(r"\{(\w+)\}", lambda match: str(values[match[1]]), self.template)
        ids = self.formatter.encode([*messages[:-1], {**messages[-1], "content": text}], tools)
        if len(ids) + room > self.limit:
            raise DatasetError(
                f"the teacher's prompt of {len(ids)} tokens and {room} more do not fit its {self.limit}",
                where=name,
                fix="shorten the row or trainer.teacher.context, lower trainer.sampling.max_tokens, or take a teacher "
                "with a longer context",
            )
        return ids
