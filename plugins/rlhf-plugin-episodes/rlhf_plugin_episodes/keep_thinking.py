"""``model.chat_template=keep_thinking``: the model's own template, but no turn is written anew once others follow.

Templates of thinking models leave out what earlier answers thought. The tokens that were sampled are then not the
tokens of the next prompt. The variant asks the model's template for each answer as if nothing came after it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rlhf_core.data import Message, Tool
from rlhf_core.models import ModelError
from rlhf_core.models.chat_templates import prefix_of
from rlhf_core.models.template_deadline import check_ends
from rlhf_core.models.tool_templates import ANSWERED, CALLING, PROBE_TOOL, fill, template_message, unwritten

FRAME = (Path(__file__).parent / "keep_thinking.jinja").read_text(encoding="utf-8").rstrip()
NAMES = "{# keep_thinking"
"""How the variant begins."""
_PARTS = re.compile(r"(\{# variables #\}.*?\{# end #\}\{\{ '' \}\})?(.*?)(\{# prefix #\}.*)?", re.DOTALL)
"""What the core writes around a template: ``model.chat_template_kwargs`` and ``model.assistant_prefix``; it looks for
them at the ends."""


def question(number: int) -> Message:
    """A question of a probe."""
    return {"role": "user", "content": f"question-{number}"}


def answer(number: int, *, thought: bool) -> Message:
    """An answer of a probe."""
    reasoning = {"reasoning": f"thought-{number}"} if thought else {}
    return {"role": "assistant", "content": f"answer-{number}", **reasoning}


def keep_thinking(tokenizer: Any) -> None:
    """Give a tokenizer the variant of its own chat template; it is saved with the model.

    Raises:
        ModelError: there is no template, it never writes reasoning, or the variant writes the last turn otherwise.
    """
    original = tokenizer.chat_template
    if not isinstance(original, str):
        raise _impossible(tokenizer, "the tokenizer has several templates" if original else "there is no template")
    if NAMES in original:
        return
    written = partial(_written, tokenizer)
    thought = _writes_thoughts(tokenizer)
    talk = [turn for n in (1, 2, 3) for turn in (question(n), answer(n, thought=thought))]
    probes: list[tuple[list[Message], list[Tool]]] = [(talk, [])]
    if not unwritten(tokenizer, calls=False) and not unwritten(tokenizer, calls=True):
        calling = {**CALLING, **({"reasoning": "thought-1"} if thought else {})}
        probes.append(([question(1), calling, ANSWERED, *talk[1:]], [PROBE_TOOL]))
    last_turns = [_last_turn(written(turns, tools), turns) for turns, tools in probes]
    parts = _PARTS.fullmatch(original)
    before, body, after = parts.groups(default="") if parts else ("", original, "")
    tokenizer.chat_template = before + FRAME.replace("ORIGINAL", body.removesuffix("\n")) + after
    check_ends(tokenizer.chat_template, "keep_thinking")
    for (turns, tools), last_turn in zip(probes, last_turns):
        if why := _changed(tokenizer, turns, tools, last_turn):
            tokenizer.chat_template = original
            raise _impossible(tokenizer, why + (" where tools are called" if tools else ""))


def _written(tokenizer: Any, turns: Sequence[Message], tools: Sequence[Tool] = (), *, generation: bool = False) -> str:
    try:
        return fill(
            tokenizer, [template_message(m, tokenizer.chat_template) for m in turns], tools, generation=generation
        )
    except ModelError:
        raise
    except Exception as error:  # jinja2 raises whatever the template's author wrote
        raise _impossible(tokenizer, f"it refuses a probe: {error}") from error


def _prompt(tokenizer: Any, turns: Sequence[Message], tools: Sequence[Tool] = ()) -> str:
    """Up to where an answer begins; ``model.assistant_prefix`` is left out, as it is of answers that are there."""
    return _written(tokenizer, turns, tools, generation=True).removesuffix(prefix_of(tokenizer.chat_template))


def _writes_thoughts(tokenizer: Any) -> bool:
    """Whether an answer's reasoning stands after its own prompt; not so where thinking is switched off."""
    turns = [question(1), answer(1, thought=True)]
    prompt, whole = _prompt(tokenizer, turns[:1]), _written(tokenizer, turns)
    if whole.startswith(prompt) and "thought-1" not in whole:
        raise _impossible(tokenizer, "it never writes the reasoning of an answer, so there is nothing to keep")
    return whole.startswith(prompt)


def _last_turn(text: str, turns: Sequence[Message]) -> str:
    return text.rpartition(str(turns[-2]["content"]))[2]


def _changed(tokenizer: Any, turns: Sequence[Message], tools: Sequence[Tool], last_turn: str) -> str:
    """What is wrong with the variant; "" if each prompt goes on as the conversation does, and ends as it did."""
    whole = _written(tokenizer, turns, tools)
    if _last_turn(whole, turns) != last_turn:
        return f"the variant ends a conversation with {_last_turn(whole, turns)[:60]!r}, not {last_turn[:60]!r}"
    lost = next((m["reasoning"] for m in turns if m.get("reasoning", "") not in whole), None)
    if lost is not None:
        return f"the reasoning {lost!r} is still left out"
    answers = [n for n, m in enumerate(turns) if m["role"] == "assistant"]
    prompts = [_prompt(tokenizer, turns[:n], tools) for n in answers]
    number = next((k for k, prompt in enumerate(prompts, 1) if not whole.startswith(prompt)), 0)
    return f"the prompt of answer {number} does not go on as the whole conversation does" if number else ""


def _impossible(tokenizer: Any, why: str) -> ModelError:
    return ModelError(
        "model.chat_template=keep_thinking cannot be made of this model's chat template",
        where=f"model '{getattr(tokenizer, 'name_or_path', '')}'",
        why=why,
        fix="leave it out, or write a variant yourself: --set model.chat_template=FILE",
    )
