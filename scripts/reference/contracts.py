"""docs/reference/contracts.md: what components are given and return, hooks, and what a Config may declare."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Sequence

from rlhf_core.plugins import context, hooks
from rlhf_core.plugins.component import ComponentConfig
from rlhf_core.training.config import LoopSettings
from rlhf_core.types import batches
from rlhf_core.types import rollouts as types

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
    types.JudgeRequest,
    types.JudgeReply,
)
DECLARED: Sequence[tuple[type, tuple[str, ...]]] = (
    (ComponentConfig, ("component", "consumes", "recipe", "recipe_of", "min_group_size", "least_group_size")),
    (ComponentConfig, ("has_critic", "downloads", "preflight", "build", "conditions", "diagnose")),
    (LoopSettings, ("companions", "recipes", "feeds")),
)
"""What a Config may declare besides its settings."""


def page() -> str:
    """The whole page."""
    parts = [
        "# What components see\n",
        "Every field of what a component is given and returns, every hook with its event,",
        "and what a Config may declare.",
        "How they are used: [writing a plugin](../plugin-authors.md).\n",
        "Suffixes: `_B` rows of a micro-batch, `_T` completion tokens (right-padded), `_T1` one more place.\n",
        "## Batches\n",
        *(section(cls) for cls in BATCHES),
        "## Between the stages\n",
        *(section(cls) for cls in VALUES),
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


def field_docs(cls: type) -> dict[str, tuple[str, str]]:
    """Field -> its type as written, and the docstring below it ("" if there is none)."""
    body = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0]
    assert isinstance(body, ast.ClassDef)
    rows: dict[str, tuple[str, str]] = {}
    for node, below in zip(body.body, [*body.body[1:], None]):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            text = below.value.value if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant) else ""
            rows[node.target.id] = (ast.unparse(node.annotation), plain(str(text)))
    return rows


def section(cls: type) -> str:
    """A class with its fields."""
    rows = [f"| `{name}` | `{escaped(kind)}` | {text} |" for name, (kind, text) in field_docs(cls).items()]
    head = [f"### {cls.__name__}\n", about(cls), "", "| field | type | what |\n|---|---|---|"]
    return "\n".join([*head, *rows, ""])


def hook(name: str) -> str:
    """A hook, when it is called and its event's fields."""
    spec = getattr(hooks.Specs, name)
    when = plain(spec.__doc__ or "")
    event = event_of(name)
    if event is None:
        return f"### {name}\n\n{when} Takes `registry`.\n"
    rows = [f"| `event.{field}` | `{kind}` | {text} |" for field, (kind, text) in field_docs(event).items()]
    head = f"### {name}\n\n{when} `{event.__name__}`: {about(event)}\n\n| field | type | what |\n|---|---|---|"
    return "\n".join([head, *rows, ""])


def event_of(name: str) -> type | None:
    """The class of a hook's event; None for the one that takes the registry."""
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
