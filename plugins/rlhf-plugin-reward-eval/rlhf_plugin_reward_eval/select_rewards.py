"""Which rewards are tested, by the options of the command, and under which labels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from rlhf_core.cli import check_output, chosen_reward
from rlhf_core.config import ComponentConfig, ConfigError, Registry


def select_rewards(
    registry: Registry, folders: Sequence[str], names: Sequence[str], settings: Sequence[str]
) -> dict[str, ComponentConfig]:
    """Label -> Config, models first."""
    if not folders and not names:
        raise ConfigError("say which reward: --model or --reward", fix="--model FOLDER, or --reward NAME")
    labels = unique([*(label_of(f) for f in folders), *names])
    settings_of: dict[str, list[str]] = {label: [] for label in labels}
    for text in settings:
        settings_of[owner_of(text, labels)].append(text.split(":", 1)[1] if len(labels) > 1 else text)
    sources = [*((folder, None) for folder in folders), *((None, name) for name in names)]
    return {
        label: chosen_reward(registry, folder, name, settings_of[label])
        for label, (folder, name) in zip(labels, sources, strict=True)
    }


def owner_of(text: str, labels: Sequence[str]) -> str:
    if len(labels) == 1:
        return labels[0]
    name, colon, _ = text.partition(":")
    if not colon or name not in labels:
        raise ConfigError(
            f"--set {text} says for none of the {len(labels)} rewards which it is for",
            why=f"they are called {', '.join(labels)}",
            fix=f"--set {labels[0]}:{text}",
        )
    return name


def label_of(folder: str) -> str:
    """A folder's name; that of the run for ``RUN/final``."""
    path = Path(folder).expanduser()
    return path.parent.name if path.name == "final" and path.parent.name else path.name or folder


def unique(names: Sequence[str]) -> list[str]:
    """The same names, numbered where one occurs again.

    Example:
        >>> unique(["a", "b", "a"])
        ['a', 'b', 'a#2']
    """
    occurrences: Counter[str] = Counter()
    labels: list[str] = []
    for name in names:
        occurrences[name] += 1
        labels.append(name if occurrences[name] == 1 else f"{name}#{occurrences[name]}")
    return labels


def check_options(
    output: Path | None, column: str | None, scale: tuple[float, float] | None, responses: str | None
) -> None:
    """Refuse options that cannot be, before anything is read."""
    check_output(output)
    if responses is None and (column is not None or scale is not None):
        raise ConfigError("--gold and --gold-scale belong to --responses", fix="--responses FILE")
    if scale is not None and (column is None or scale[0] >= scale[1]):
        raise ConfigError(
            f"--gold-scale {scale[0]:g} {scale[1]:g} is not a scale of a --gold column",
            fix="--gold COLUMN --gold-scale LOW HIGH",
        )
