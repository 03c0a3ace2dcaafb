"""Whether a suite asks as the run asked that trained the model: a policy learns the form of its prompts, too."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from rlhf_eval.styles import R1_ZERO

if TYPE_CHECKING:
    from rlhf_eval.suites import SuiteConfig

PARENTS = 4
"""A model lies in ``RUN/final`` or ``RUN/checkpoints/STEP/model``."""
SHOWN = 120


class Form(NamedTuple):
    """How a question is put to a model."""

    chat: bool
    template: str
    system: str
    shots: int = 0

    def __str__(self) -> str:
        parts = ["the chat template" if self.chat else "plain text"]
        if self.template != "{prompt}":
            text = self.template if len(self.template) <= SHOWN else f"...{self.template[-SHOWN:]}"
            parts.append(repr(text))
        if self.system:
            parts.append(f"the system prompt {self.system[:SHOWN]!r}")
        return " with ".join(parts) + (f" after {self.shots} worked examples" if self.shots else "")


def warning(model: str, suite: SuiteConfig) -> str:
    """What to say where a resolved suite asks a run's model in a form that its plan does not have; "" otherwise."""
    run = _run_of(model)
    if run is None:
        return ""
    try:
        config = json.loads((run / "plan.json").read_text())["config"]
        has_template = _has_template(Path(model).expanduser())
        trained = _forms(config["dataset"], str(config["model"].get("prompt_format", "auto")), has_template)
    except (ValueError, KeyError, TypeError, AttributeError, OSError):
        return ""  # a plan of another version is reported where it matters
    asked = [
        form._replace(template=(suite.template or "{prompt}").replace("{prompt}", form.template), shots=suite.shots)
        for form in _forms(suite.rows_of(suite.path), suite.prompt_format or "auto", has_template)
    ]
    other = next((form for form in asked if form not in trained), None)
    if other is None:
        return ""
    return (
        f"{run} was trained on prompts in {trained[0]}, and is asked in {other}: part of a difference from the run's "
        "own figures may be the form (--style, --template, --set prompt_format)"
    )


def _run_of(model: str) -> Path | None:
    path = Path(model).expanduser()
    folders = [path, *path.absolute().parents[:PARENTS]] if path.exists() else []
    return next((folder for folder in folders if (folder / "plan.json").is_file()), None)


def _has_template(model: Path) -> bool:
    folder = model if (model / "tokenizer_config.json").is_file() else model / "final"
    tokenizer = folder / "tokenizer_config.json"
    own = tokenizer.is_file() and json.loads(tokenizer.read_text()).get("chat_template")
    return bool(own) or (folder / "chat_template.jinja").is_file()


def _forms(dataset: Mapping[str, Any], prompt_format: str, has_template: bool) -> list[Form]:
    """The form of each source of a ``dataset`` section, flat or with ``sources``."""
    chat = prompt_format == "chat" or (prompt_format == "auto" and has_template)
    system = str(dataset.get("system_prompt") or "")
    return [Form(chat, _template(source), system) for source in dataset.get("sources") or [dataset]]


def _template(source: Mapping[str, Any]) -> str:
    options = source.get("source") or source
    while isinstance(options.get("of"), Mapping):  # a row filter around it
        options = options["of"]
    inner = R1_ZERO if options.get("prompt") == "r1_zero" else "{prompt}"
    return str(source.get("prompt_template") or "{prompt}").replace("{prompt}", inner)
