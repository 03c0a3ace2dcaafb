"""One micro-batch without files, server or alignment, for `rlhf memory plan`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from rlhf_core.config import BuildContext
from rlhf_core.training import PolicyModule, TrainingSample
from rlhf_plugin_distill.module import DistillModule, DistillSample
from rlhf_plugin_distill.spans import Span
from rlhf_plugin_distill.teacher import (
    LocalOtherTokenizer,
    LocalTeacher,
    ServedOtherTokenizer,
    ServedTeacher,
    distill_sample,
)
from rlhf_plugin_distill.teacher_config import TeacherSettings

TEACHER_LAYERS = 2
"""Decoder layers that are run of a teacher: without gradients each takes the memory of the one before."""


def distill_rehearsal(
    settings: TeacherSettings, ctx: BuildContext, sizes: Sequence[tuple[int, Sequence[int]]], policy: PolicyModule
) -> tuple[DistillModule, Sequence[DistillSample]]:
    """Module and samples as the trainers have them, for sizes (tokens of the prompt, tokens of each completion). A
    teacher of another tokenizer is taken to need as many tokens, one for one."""
    from rlhf_plugin_preflight.memory.sizes import Row
    from rlhf_plugin_preflight.memory.update import token_samples
    from rlhf_plugin_preflight.memory.weightless import meta_model

    assert ctx.config.loss is not None
    other = settings.tokenizer == "other"
    served, local = (ServedOtherTokenizer, LocalOtherTokenizer) if other else (ServedTeacher, LocalTeacher)
    teacher: Any = object.__new__(served if settings.url else local)  # as its __init__ leaves it
    teacher.top_k = settings.top_k
    module: Any = DistillModule(policy, teacher, ctx.config.loss.build(ctx))
    module.frozen = list[Any]()
    for config in settings.local_models(ctx.config.model):
        teacher.model = meta_model(config, TEACHER_LAYERS).model.requires_grad_(False)
        module.frozen += [*teacher.model.parameters(), *teacher.model.buffers()]
    rows = [Row(prompt, tuple(counts)) for prompt, counts in sizes]
    return module, [_teacher_sample(sample, settings.top_k) for sample in token_samples(rows)]


def _teacher_sample(sample: TrainingSample, top_k: int) -> DistillSample:
    """With what a teacher of any kind needs or has said."""
    count = len(sample.completion_ids)
    return replace(
        distill_sample(sample, sample.prompt_ids),
        teacher_ids_TK=np.zeros((count, top_k), np.int64),
        teacher_logprobs_TK=np.zeros((count, top_k + 1), np.float32),
        teacher_completion=sample.completion_ids,
        teacher_logprobs_M=(-1.0,) * count,
        spans=tuple(Span(n, n + 1, n, n + 1) for n in range(count)),
    )
