"""docs/reference/contracts.md: methods and values of every kind of component, hooks, and what a Config may declare."""

from __future__ import annotations

import ast
import enum
import inspect
import re
import textwrap
from collections.abc import Sequence

from rlhf_core.plugins import context, hooks, protocols
from rlhf_core.plugins.component import ComponentConfig
from rlhf_core.training.config import LoopSettings
from rlhf_core.types import batches, messages
from rlhf_core.types import rollouts as types
from rlhf_plugin_algorithms import signals

BATCHES = (batches.TokenBatch, batches.PairBatch, batches.UnpairedBatch, batches.LossOutput)
VALUES = (
    types.Prompt,
    types.PromptGroup,
    types.RolloutRequest,
    types.SamplingParams,
    types.Rollout,
    types.Segment,
    types.VersionSpan,
    types.Sample,
    types.Score,
    types.Advantages,
    types.TokenValues,
    signals.Scored,
    signals.Signal,
    signals.Example,
    signals.Signals,
    types.JudgeRequest,
    types.JudgeReply,
    messages.ToolCall,
    messages.ToolResult,
    messages.Turn,
)
MEMBERS = (types.FinishReason, types.ScoreStatus, messages.TurnStatus)
KINDS = tuple(
    kind for kind in vars(protocols).values() if isinstance(kind, type) and kind.__module__ == protocols.__name__
)
DECLARED: Sequence[tuple[type, tuple[str, ...]]] = (
    (ComponentConfig, ("component", "consumes", "recipe", "recipe_of", "min_group_size", "least_group_size")),
    (ComponentConfig, ("has_critic", "downloads", "preflight", "build", "conditions", "diagnose")),
    (LoopSettings, ("companions", "recipes", "feeds")),
)
"""What a Config may declare besides its settings."""


def page() -> str:
    parts = [
        "# What components see\n",
        "The methods of every kind of component, every field of what a component is given and returns,",
        "every hook with its event, and what a Config may declare.",
        "How they are used: [writing a plugin](../plugin-authors.md).\n",
        "Suffixes: `_B` rows of a micro-batch, `_T` completion tokens (right-padded), `_T1` one more place.\n",
        "## Methods\n",
        "A component has the methods of its kind; there is no base class.",
        "Those of a strategy: [engines and strategies](../engines-and-strategies.md).\n",
        "| kind | method | what |\n|---|---|---|",
        *(row for kind in KINDS for row in methods(kind)),
        "",
        "## Batches\n",
        *(section(cls) for cls in BATCHES),
        "## Between the stages\n",
        *(section(cls) for cls in VALUES),
        *(members(cls) for cls in MEMBERS),
        "## BuildContext\n",
        section(context.BuildContext),
        "## Hooks and their events\n",
        "In the order of a run. Every event is a read-only copy.\n",
        *(hook(name) for name in hooks.HOOK_NAMES),
        "## What a Config declares\n",
        "| name | where | what |\n|---|---|---|",
        *(f"| `{name}` | `{cls.__name__}` | {declared(cls, name)} |" for cls, names in DECLARED for name in names),
    ]
    return "\n".join(parts) + "\n"


def methods(kind: type) -> list[str]:
    rows: list[str] = []
    for name, function in vars(kind).items():
        public = not name.startswith("_") or name == "__call__"
        if public and (inspect.isfunction(function) or isinstance(function, property)):
            call = name if isinstance(function, property) else f"{name}{inspect.signature(function)}"
            text = escaped(call.replace("(self, ", "(").replace("(self)", "()").replace("'", ""))
            rows.append(f"| `{kind.__name__}` | `{text}` | {plain(inspect.getdoc(function) or about(kind))} |")
    return rows


def body_of(cls: type) -> list[ast.stmt]:
    """The statements of a class."""
    node = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0]
    assert isinstance(node, ast.ClassDef)
    return node.body


def below(body: Sequence[ast.stmt], start: int) -> str:
    """The docstring under a statement; "" if there is none."""
    node = body[start + 1] if start + 1 < len(body) else None
    return plain(str(node.value.value)) if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) else ""


def field_docs(cls: type) -> dict[str, tuple[str, str]]:
    """Field -> its type and default as written, and the docstring below it ("" if there is none)."""
    body = body_of(cls)
    rows: dict[str, tuple[str, str]] = {}
    for n, node in enumerate(body):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            default = "" if node.value is None else f" = {default_of(node.value)}"
            rows[node.target.id] = (ast.unparse(node.annotation) + default, below(body, n))
    return rows


def default_of(value: ast.expr) -> str:
    """A field's default as it is written; of ``field(default_factory=dict)`` an empty dict."""
    text = ast.unparse(value)
    factory = re.search(r"default_factory=(\w+)", text)
    return f"{factory[1]}()" if factory else text


def members(cls: type[enum.Enum]) -> str:
    body = body_of(cls)
    rows = [
        f"| `{cls.__name__}.{ast.unparse(node.targets[0])}` | {below(body, n)} |"
        for n, node in enumerate(body)
        if isinstance(node, ast.Assign)
    ]
    return "\n".join([f"### {cls.__name__}\n", about(cls), "", "| member | what |\n|---|---|", *rows, ""])


def section(cls: type) -> str:
    rows = [f"| `{name}` | `{escaped(kind)}` | {text} |" for name, (kind, text) in field_docs(cls).items()]
    head = [f"### {cls.__name__}\n", about(cls), "", "| field | type | what |\n|---|---|---|"]
    return "\n".join([*head, *rows, ""])


def hook(name: str) -> str:
    spec = getattr(hooks.Specs, name)
    when = plain(spec.__doc__ or "")
    event = event_of(name)
    if event is None:
        return f"### {name}\n\n{when} Takes `registry`.\n"
    rows = [f"| `event.{field}` | `{kind}` | {text} |" for field, (kind, text) in field_docs(event).items()]
    head = f"### {name}\n\n{when} `{event.__name__}`: {about(event)}\n\n| field | type | what |\n|---|---|---|"
    return "\n".join([head, *rows, ""])


def event_of(name: str) -> type | None:
    annotation = inspect.signature(getattr(hooks.Specs, name)).parameters.get("event")
    return None if annotation is None else getattr(hooks, str(annotation.annotation))


def declared(cls: type, name: str) -> str:
    """What a class attribute or method of a Config says."""
    text = field_docs(cls).get(name, ("", ""))[1]
    return text or plain(inspect.getdoc(inspect.getattr_static(cls, name)) or "")


def about(cls: type) -> str:
    """The first paragraph of a class's docstring."""
    return plain((inspect.getdoc(cls) or "").split("\n\n")[0])


def plain(text: str) -> str:
    """One line of Markdown; what comes after the first paragraph (examples, errors) is left out."""
    first = re.sub(r":\w+:`~?([\w.]+)`", r"`\1`", inspect.cleandoc(text).split("\n\n")[0])
    return escaped(" ".join(first.split()).replace("``", "`"))


def escaped(text: str) -> str:
    """For a cell of a Markdown table."""
    return text.replace("|", chr(92) + "|")
