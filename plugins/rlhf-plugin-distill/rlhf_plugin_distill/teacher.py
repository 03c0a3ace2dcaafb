"""Teachers: a model in this process, or a server; and what a teacher reads in place of the student's prompt."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from rlhf_core.config import BuildContext
from rlhf_core.data import DatasetError, Prompt, message_text
from rlhf_core.models import Formatter, ModelConfig, load_policy
from rlhf_plugin_distill.checks import check_same_vocabulary
from rlhf_plugin_distill.config import TeacherSettings
from rlhf_plugin_distill.module import DistillSample, FullTeacher, Pieces, TopKTeacher, outputs


class LocalTeacher:
    """A frozen model, whole on each rank's device."""

    def __init__(self, settings: TeacherSettings, ctx: BuildContext) -> None:
        loaded = load_policy(ModelConfig(path=settings.path, dtype=ctx.config.model.dtype))
        self.model = loaded.model.to(ctx.strategy.device).requires_grad_(False)
        self.context, self.top_k = loaded.context, settings.top_k
        check_same_vocabulary(settings.path, loaded.tokenizer, ctx)

    def asked(self, samples: Sequence[DistillSample]) -> list[DistillSample]:
        """The samples as they are: the model is run beside the student."""
        return list(samples)

    @torch.no_grad()
    def outputs(self, samples: Sequence[DistillSample], wanted_N: torch.Tensor, paths: Mapping[str, Any]) -> FullTeacher:
        """At the tokens of a micro-batch that count."""
        return FullTeacher(outputs(self.model, teacher_pieces(samples), wanted_N, paths), self.top_k)


def teacher_pieces(samples: Sequence[DistillSample]) -> Pieces:
    """What the teacher is fed: the student's tokens after a prompt of its own, if it has one."""
    rows = [s if s.teacher_prompt is None else replace(s, prompt_ids=s.teacher_prompt) for s in samples]
    return [piece for row in rows for piece in row.pieces]


def open_teacher(settings: TeacherSettings, ctx: BuildContext) -> Any:
    """The run's teacher; a fault of it is found before the student is loaded."""
    return LocalTeacher(settings, ctx)
