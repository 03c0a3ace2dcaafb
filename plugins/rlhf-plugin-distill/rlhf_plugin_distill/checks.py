"""What is looked at before a model is loaded; imports no torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rlhf_core.config import BuildContext, ConfigError
from rlhf_core.models import ModelConfig, ModelError, load_tokenizer, resolve_model
from rlhf_plugin_distill.server import TEXTS, TeacherServer
from rlhf_plugin_distill.teacher_config import TeacherSettings


def check_teacher(settings: TeacherSettings, ctx: BuildContext) -> None:
    """A teacher is there, reads the student's tokens, and gives as much as is asked."""
    temperature = getattr(ctx.config.loss, "temperature", 1.0)
    settings.require()
    if settings.url and temperature != 1:
        raise ConfigError(
            f"loss.temperature {temperature:g} cannot be combined with trainer.teacher.url",
            why="a server's log-probabilities are at temperature 1",
            fix="leave loss.temperature out, or name a folder: --set trainer.teacher=FOLDER",
        )
    if settings.tokenizer == "other" and (agent := ctx.config.agent) is not None and agent.name != "single_turn":
        raise ConfigError(
            f"trainer.teacher.tokenizer=other cannot be combined with agent '{agent.name}'",
            why="a completion of one turn is aligned, not an episode of several",
            fix="--set agent=single_turn, or a teacher with the student's tokenizer",
        )
    alone = not settings.path or tokenizer_alone(settings)
    if not resolve_model(ctx.config.model.path).local or not (alone or resolve_model(settings.path).local):
        return  # of the hub: looked at once it is loaded
    tokenizer = load_tokenizer(ctx.config.model)
    if settings.top_k >= len(tokenizer):
        raise ConfigError(
            f"trainer.teacher.top_k {settings.top_k} is not less than the vocabulary of {len(tokenizer)} tokens",
            fix="--set trainer.teacher.top_k=0 compares all, or give fewer",
        )
    if settings.path:
        tokenizer = teacher_tokenizer(settings)
        check_tokenizer(settings, tokenizer, ctx)
    if not settings.url:
        return
    server = TeacherServer(settings)
    try:
        server.check(tokenizer)
    finally:
        server.close()


def tokenizer_alone(settings: TeacherSettings) -> bool:
    """Whether ``path`` is a folder without weights, which a server has."""
    folder = Path(settings.path).expanduser()
    return bool(settings.url) and folder.is_dir() and not any(folder.glob("*.safetensors"))


def teacher_tokenizer(settings: TeacherSettings) -> Any:
    """The tokenizer at ``path``.

    Raises:
        ModelError: there is none.
    """
    if not tokenizer_alone(settings):
        return load_tokenizer(ModelConfig(path=settings.path))
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(Path(settings.path).expanduser())
    except Exception as error:  # a tokenizer file can fail in as many ways as there are tokenizers
        raise ModelError(
            f"trainer.teacher.path: '{settings.path}' holds no tokenizer that can be read",
            why=f"{type(error).__name__}: {error}",
            fix="save that of the server's model: tokenizer.save_pretrained(folder)",
        ) from error


def check_tokenizer(settings: TeacherSettings, tokenizer: Any, ctx: BuildContext) -> None:
    """The teacher's tokens are the student's or, of another tokenizer, say what they were made of."""
    if settings.tokenizer == "same":
        check_same_vocabulary(settings.path, tokenizer, ctx)
        return
    for text in TEXTS:
        if (said := tokenizer.decode(tokenizer.encode(text, add_special_tokens=False))) != text:
            raise ModelError(
                f"the tokenizer of teacher '{settings.path}' does not give back what it reads",
                why=f"{text!r} becomes {said!r}: its tokens cannot be aligned with the student's",
                fix="take another teacher, or let it write texts (rlhf generate) and learn those: --algo sft",
            )


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
        fix="take one of the student's family, let it write texts (rlhf generate) for --algo sft, or align both: "
        "--set trainer.teacher.tokenizer=other",
    )
