"""Chat templates for models that bring none: named forms, or the user's own in Jinja."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlhf_core.models.template_deadline import check_ends
from rlhf_core.plugins.entry_points import Entry, disabled_distributions, entries_of, load_entry
from rlhf_core.types.errors import ConfigError, ModelError, did_you_mean, error_text

if TYPE_CHECKING:
    from rlhf_core.models.config import ModelConfig

_FOLDER = Path(__file__).parent / "templates"
NAMED: Mapping[str, str] = {
    file.stem: file.read_text(encoding="utf-8").rstrip() for file in sorted(_FOLDER.glob("*.jinja"), reverse=True)
}
"""``plain``: ``User:`` and ``Assistant:`` on lines of their own, for any model, EOS after each answer; a line of a
message that begins so is moved by a blank. ``chatml``: ``<|im_start|>user``, each turn closed by ``<|im_end|>``, which
becomes the EOS (a tokenizer without it closes turns by its own EOS). ``hermes``: chatml with tools, calls and results
in the form of Hermes and Qwen 2.5. ``hh``: ``Human:`` and ``Assistant:`` as in Anthropic/hh-rlhf."""


_BEFORE = re.compile(r"\A\{# variables #\}.*?\{# end #\}\{\{ '' \}\}", re.DOTALL)
_AFTER = re.compile(r"\{# prefix #\}\{% if add_generation_prompt %\}\{\{ (.*) \}\}\{% endif %\}\Z")
"""What :func:`set_options` wrote before; the comments are its own."""


def variants() -> dict[str, Entry]:
    """Name -> entry of the group ``rlhf.chat_template``: a function that changes a tokenizer's own template."""
    return {entry.name: entry for entry in entries_of("rlhf.chat_template", disabled_distributions())}


def read_template(value: str) -> str:
    """A template's name as it is, and of a file its text, so that a plan holds what it was."""
    known = [*NAMED, *variants()]
    if value in known:
        return value
    text = value
    if "{{" not in value and "{%" not in value:
        file = Path(value).expanduser()
        if not file.is_file():
            raise ConfigError(
                f"model.chat_template '{value}' is neither a named form nor a file",
                fix=did_you_mean(value, known) or f"give {', '.join(known)}, or a file with a Jinja template",
            )
        text = file.read_text(encoding="utf-8")
    if "messages" not in text:
        raise ConfigError(
            "model.chat_template does not use `messages`",
            why=f"it is {text[:80]!r}",
            fix="a chat template is a Jinja template that writes the turns in `messages`",
        )
    return text


def set_template(tokenizer: Any, config: ModelConfig, where: str) -> None:
    """Give a tokenizer the template that a model's settings ask for; ``where`` names the model."""
    variant = variants().get(config.chat_template) if config.chat_template else None
    if config.chat_template is not None and variant is None:
        apply_template(tokenizer, config.chat_template)
    else:
        check_ends(tokenizer.chat_template, where)
    if config.chat_template_kwargs or config.assistant_prefix:
        set_options(tokenizer, config.chat_template_kwargs, config.assistant_prefix)
    if variant is not None:
        load_entry(variant, f"chat template '{variant.name}'", f"reinstall {variant.distribution}")(tokenizer)


def apply_template(tokenizer: Any, value: str) -> None:
    """Give a tokenizer a chat template; it is saved with the tokenizer, so everything that loads it uses the same."""
    bos = tokenizer.bos_token_id
    adds_bos = bos is not None and list(tokenizer.encode("x", add_special_tokens=True))[:1] == [bos]
    if value in ("chatml", "hermes") and "<|im_end|>" in tokenizer.get_vocab():
        tokenizer.eos_token = "<|im_end|>"
    tokenizer.chat_template = NAMED.get(value, value).replace("{{ bos }}", "{{ bos_token }}" if adds_bos else "")
    check_ends(tokenizer.chat_template, "model.chat_template")
    mark = "a-question-to-find"
    try:
        text = tokenizer.apply_chat_template([{"role": "user", "content": mark}], tokenize=False)
    except Exception as error:  # jinja2 raises whatever the template's author wrote
        raise ModelError(
            "model.chat_template cannot be used", why=error_text(error), fix="correct the template"
        ) from error
    if mark not in text:
        raise ModelError(
            "model.chat_template leaves out what a user says",
            why=f"it renders one turn as {text[:80]!r}",
            fix="write message['content'] of every turn",
        )


def prefix_of(template: str) -> str:
    """The beginning of answers that :func:`set_options` wrote; turns that are there lack it."""
    return json.loads(found[1]) if (found := _AFTER.search(template)) else ""


def set_options(tokenizer: Any, variables: Mapping[str, Any], prefix: str) -> None:
    """Write variables and the beginning of answers into a tokenizer's chat template, instead of earlier ones.

    Raises:
        ModelError: it has no template, or its template does not use a variable.
    """
    template = tokenizer.chat_template or ""
    unused = [name for name in variables if not re.search(rf"\b{name}\b", template)]
    if unused or not template:
        raise ModelError(
            "model.chat_template_kwargs or model.assistant_prefix has no effect",
            where=tokenizer.name_or_path,
            why=f"its chat template does not use {unused[0]}" if template else "it has no chat template",
            fix="leave it out, or --set model.chat_template=FILE",
        )
    # not as ASCII: a string of Jinja cannot hold JSON's escapes of an emoji
    values = {k: f'row_variables.get("{k}", {json.dumps(v, ensure_ascii=False)})' for k, v in variables.items()}
    settings = "".join(f"{{% set {k} = {value} %}}" for k, value in values.items())
    template = (
        "{# variables #}{% set row_variables = row_variables or {} %}"
        + settings
        + "{# end #}{{ '' }}"
        + _BEFORE.sub("", template)
        if settings
        else template
    )
    ending = "{# prefix #}{% if add_generation_prompt %}{{ " + json.dumps(prefix, ensure_ascii=False) + " }}{% endif %}"
    tokenizer.chat_template = _AFTER.sub("", template.removesuffix("\n")) + ending if prefix else template
