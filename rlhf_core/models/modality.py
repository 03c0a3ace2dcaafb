"""Policies whose tokens are not text. Their folder holds ``modality.json``, ``{"modality": NAME}``; NAME is an entry
point of group ``rlhf.modality``, a function from the folder to a :class:`Modality`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol, cast, runtime_checkable

from rlhf_core.plugins.entry_points import brought_by, entries_of, load_entry
from rlhf_core.types.errors import ModelError, did_you_mean
from rlhf_core.types.rollouts import Media, Message

MODALITY_FILE = "modality.json"
GROUP = "rlhf.modality"
_ATTRIBUTE = "rlhf_modality"


class Modality(Protocol):
    """What stands between a policy's tokens and the world."""

    def prompt_text(self, messages: Sequence[Message]) -> str:
        """What the tokenizer is given for a conversation."""
        ...

    def media(self, completion_ids: Sequence[int]) -> tuple[Media, ...]:
        """What a completion is besides text, written to files whose names depend on the tokens alone."""
        ...

    def save(self, folder: Path) -> None:
        """Write ``modality.json`` and what belongs to it, so that a trained model's folder is whole."""
        ...


@runtime_checkable
class OwnTokens(Protocol):
    """What a modality may have besides, where its tokens are not what the tokenizer makes of a text."""

    def prompt_ids(self, messages: Sequence[Message]) -> Sequence[int]:
        """Token ids of a conversation; ``prompt_text`` is not asked then."""
        ...

    def completion_text(self, ids: Sequence[int]) -> str:
        """A completion as text, without the token that ends it."""
        ...

    def completion_ids(self, text: str) -> Sequence[int]:
        """The token ids of what ``completion_text`` wrote, the end token not included."""
        ...


def modality_of(tokenizer: Any) -> Modality | None:
    """The modality of a loaded policy's tokenizer; None for text."""
    return cast("Modality | None", getattr(tokenizer, _ATTRIBUTE, None))


def attach_modality(tokenizer: Any, folder: Path) -> None:
    """Let a tokenizer carry the modality of its model's folder, if that has one."""
    file = folder / MODALITY_FILE
    if not file.is_file():
        return
    try:
        name = json.loads(file.read_text())["modality"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ModelError(f"'{file}' cannot be read", why=str(error), fix="copy the model's folder again") from error
    entries = {entry.name: entry for entry in entries_of(GROUP)}
    if name not in entries:
        raise ModelError(
            f"the model needs modality '{name}', which no installed plugin has",
            where=str(file),
            why=f"installed: {', '.join(sorted(entries)) or 'none'}",
            fix=f"{did_you_mean(str(name), entries)} pip install rlhf-plugin-tts brings some".strip(),
        )
    make = load_entry(entries[name], f"modality '{name}'", "reinstall it, or choose another model")
    setattr(tokenizer, _ATTRIBUTE, make(folder, tokenizer))


def embedded_model(name: str) -> str | None:
    """The folder of a model that an installed plugin brings under a name (entry-point group ``rlhf.model``)."""
    if "/" in name or not name:
        return None
    entries = [entry for entry in entries_of("rlhf.model") if entry.name == name]
    if not entries and (distribution := brought_by("model", name)):
        raise ModelError(f"the model '{name}' is not installed", fix=f"pip install {distribution}")
    return (
        str(load_entry(entries[0], f"model '{name}'", "reinstall it, or choose another model")()) if entries else None
    )


def converted_model(file: Path) -> Path:
    """The folder that a plugin makes of a model's file (group ``rlhf.model_file``, named by the file's ending)."""
    if not file.is_file():
        raise ModelError(f"there is no file '{file}'", where=str(file.absolute()), fix="check the path")
    ending = file.suffix.removeprefix(".")
    entries = [entry for entry in entries_of("rlhf.model_file") if entry.name == ending]
    if not entries:
        raise ModelError(f"no installed plugin reads '{file}'", fix=f"pip install rlhf-plugin-{ending}")
    return load_entry(entries[0], f"the reader of .{ending} files", "reinstall it, or choose another model")(file)


def embedded_names() -> list[str]:
    """Names of the models that installed plugins bring, ``pocket`` first."""
    names = {entry.name for entry in entries_of("rlhf.model")}
    return sorted(names, key=lambda name: (name != "pocket", name))
