"""What is looked at before a model is loaded; imports no torch."""

from __future__ import annotations

from typing import Any

from rlhf_core.config import BuildContext
from rlhf_core.models import ModelConfig, ModelError, load_tokenizer, resolve_model
from rlhf_plugin_distill.config import TeacherSettings


def check_teacher(settings: TeacherSettings, ctx: BuildContext) -> None:
    """A local teacher is there and reads the student's tokens."""
    if resolve_model(settings.path).local and resolve_model(ctx.config.model.path).local:
        check_same_vocabulary(settings.path, load_tokenizer(ModelConfig(path=settings.path)), ctx)


def check_same_vocabulary(path: str, tokenizer: Any, ctx: BuildContext) -> None:
    """Refuse a teacher whose ids stand for other texts than the student's."""
    theirs, ours = tokenizer.get_vocab(), load_tokenizer(ctx.config.model).get_vocab()
    if theirs == ours:
        return
    other = sorted(token for token in theirs.keys() | ours.keys() if theirs.get(token) != ours.get(token))
    raise ModelError(
        f"teacher '{path}' has another vocabulary than the student '{ctx.config.model.path}'",
        where=f"{len(other)} of {len(theirs.keys() | ours.keys())} tokens differ, such as {other[0]!r}",
        why="distributions are compared token by token",
        fix="take a teacher of the student's family, or let it write texts (rlhf generate) and learn them with --algo sft",
    )
