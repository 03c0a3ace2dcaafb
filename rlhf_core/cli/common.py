"""What several commands share: registries, consoles, JSON."""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rlhf_core.models.config import ModelConfig
    from rlhf_core.models.load import LoadedModel
    from rlhf_core.plugins.component import ComponentConfig
    from rlhf_core.plugins.context import BuildContext
    from rlhf_core.plugins.registry import Registry


CONTROL = re.compile(
    "[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f\\u061c\\u180e\\u200b\\u200e\\u200f\\u2028-\\u202e\\u2060-\\u206f"
    "\\ufeff\\ufff9-\\ufffb\\ud800-\\udfff\\U000e0000-\\U000e007f]"
)
"""What acts on a terminal or on the order of letters, or is not seen; line feed and tab are text."""


def visible(text: str) -> str:
    r"""A text of any origin with :data:`CONTROL` characters as JSON writes them, so that they show and do not act.

    Example:
        >>> visible("\x1b]0;title\x07 \u202e")
        '\\u001b]0;title\\u0007 \\u202e'
    """
    return CONTROL.sub(lambda found: json.dumps(found[0])[1:-1], text.replace("\r\n", "\n"))


def say(text: object = "", *, err: bool = False, nl: bool = True, **style: Any) -> None:
    """Print a text of any origin, :func:`visible`; on stderr with ``err``, in click's ``style`` (``bold``, ``fg``).

    Nothing else in the toolkit writes to a terminal, so no data, model, tool or judge can control it.
    """
    shown = visible(str(text))
    click.echo(click.style(shown, **style) if style else shown, err=err, nl=nl)


class _Visible(logging.Formatter):
    """A record as one :func:`visible` text."""

    def format(self, record: logging.LogRecord) -> str:
        return visible(super().format(record))


def emit_json(value: Any) -> None:
    """Print JSON for a machine."""
    say(json.dumps(value, indent=2, ensure_ascii=False, default=str))


def table(headers: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Print aligned columns; plain text, so that it can be piped."""
    cells = [[visible(str(c)) for c in row] for row in rows]
    widths = [max([len(h), *(len(r[i]) for r in cells)]) for i, h in enumerate(headers)]
    for row in [list(headers), ["-" * w for w in widths], *cells]:
        say("  ".join(c.ljust(w) for c, w in zip(row, widths)).rstrip())


def set_up_process() -> None:
    """Warnings to stderr in one line each; libraries keep quiet about loading, also those that are imported later."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Visible("%(levelname)s: %(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    _quiet_environment()
    if "transformers" in sys.modules:
        quiet_libraries()


def quiet_libraries() -> None:
    """No progress bars from transformers and datasets, and no warning of transformers' that is for peft."""
    _quiet_environment()
    from transformers.utils import logging as hf

    hf.set_verbosity_error()
    hf.disable_progress_bar()


def _quiet_environment() -> None:
    warnings.filterwarnings("ignore", "`is_gradient_checkpointing` is deprecated", FutureWarning)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")


def shorten(text: str, width: int = 40) -> str:
    """One line of at most ``width`` characters."""
    line = " ".join(text.split())
    return line if len(line) <= width else line[: width - 3] + "..."


def open_registry() -> Registry:
    """Every installed component, those that hook plugins register included."""
    from rlhf_core.cli.options import open_plugins

    return open_plugins()[0]


def context_of(
    registry: Registry,
    *,
    seed: int = 0,
    dataset: Mapping[str, Any] | None = None,
    reward: ComponentConfig | None = None,
    model: ModelConfig | None = None,
    policy: LoadedModel | None = None,
    environment: ComponentConfig | None = None,
) -> BuildContext:
    """What a component is built with where there is no run.

    Args:
        registry: where names are looked up.
        seed: for components that draw at random.
        dataset: a ``dataset`` section, whose rows are then in ``ctx.datasets``; ``name`` may be short, as on the
            command line.
        reward: the reward that judges them, for its ``preflight``.
        model: the run's model in the configuration; None takes the default.
        policy: a loaded model, for components that need one.
        environment: in which it plays; rows get its tools, and a data set may be that environment's own.

    Raises:
        ConfigError: the dataset section does not make sense.
        DatasetError: a source cannot be built.
    """
    from rlhf_core.config.run import RunConfig
    from rlhf_core.data.datasets import Datasets
    from rlhf_core.data.settings import DatasetSettings
    from rlhf_core.models.config import ModelConfig
    from rlhf_core.plugins.context import BuildContext

    config = RunConfig.model_construct(seed=seed, reward=reward, model=model or ModelConfig(), environment=environment)
    ctx = BuildContext(config=config, registry=registry, seed=seed, policy=policy)
    if dataset is None:
        return ctx
    rows = DatasetSettings.from_settings(dataset, "dataset", registry)
    ctx = ctx.with_(config=config.model_copy(update={"dataset": rows}))
    return ctx.with_(datasets=Datasets(rows, ctx))
