"""What is compared, checked before anything is sampled; kept in ``comparison.json`` so that only the same goes on."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rlhf_core.cli import chosen_reward
from rlhf_core.config import ComponentConfig, ConfigError, Registry
from rlhf_core.data import Datasets, Prompt, write_json
from rlhf_core.models import ModelConfig, model_paths, resolve_model, weights_digest

PLAN = "comparison.json"
BASELINE = "baseline"


@dataclass(frozen=True)
class Comparison:
    """Everything that decides the rows. Example: ``policies={"baseline": "pocket", "dpo": "runs/dpo/final"}``"""

    policies: dict[str, str]
    """Name -> model, the baseline first."""
    dataset: str
    split: str
    prompts: int
    max_tokens: int
    temperature: float
    seed: int
    prompt_format: str
    reference: str | None
    reward: dict[str, Any] | None
    judge: dict[str, Any] | None
    weights: dict[str, str]
    """Fingerprint of every local model that is named above, by its path."""
    top_p: float | None = None

    def claim(self, folder: Path) -> None:
        """Make the folder, or make sure that what lies there is of this very comparison."""
        file, settings = folder / PLAN, json.loads(json.dumps(asdict(self)))
        if file.is_file():
            stored = json.loads(file.read_text())
            if differing := [key for key in settings if settings[key] != stored.get(key)]:
                raise ConfigError(
                    f"--out {folder} holds another comparison",
                    where=f"{file}, {differing[0]}",
                    why=f"there {stored.get(differing[0])!r}, here {settings[differing[0]]!r}",
                    fix="name another folder, or delete this one",
                )
            return
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise ConfigError(
                f"--out {folder} is in use", why=f"it exists, without a {PLAN}", fix="name another folder"
            )
        folder.mkdir(parents=True, exist_ok=True)
        write_json(file, settings)


def named_policies(baseline: str, others: Sequence[str]) -> dict[str, str]:
    """Name -> model folder (the ``final`` of a run), hub id or ``pocket``; each is checked to be there."""
    if not others:
        raise ConfigError("no policy to compare", fix="--policy NAME=FOLDER (a model or a run), repeatable")
    model_paths = {BASELINE: model_of(baseline)}
    for text in others:
        name, _, path = text.rpartition("=")
        path = path.strip()
        name = name.strip() or Path(path.removesuffix("/final").rstrip("/")).name
        if not name or "/" in name:
            raise ConfigError(f"--policy '{text}': a policy needs a name without '/'", fix="--policy NAME=FOLDER")
        if name in model_paths:
            raise ConfigError(f"two policies are called '{name}'", fix=f"--policy OTHER_NAME={path}")
        model_paths[name] = model_of(path)
    return model_paths


def model_of(path: str) -> str:
    resolve_model(path)
    return ModelConfig(path=path).path


def reference_of(reference: str, baseline: str) -> str | None:
    """The model that KL is measured from: a model's or run's path, ``baseline``, or None for ``none``."""
    if reference in ("none", ""):
        return None
    return model_of(baseline if reference == "baseline" else reference)


def reward_of(registry: Registry, folder: str | None, name: str | None, settings: Sequence[str]) -> Any:
    if folder is None and name is None:
        if settings:
            raise ConfigError("--set sets a reward, and none is named", fix="--reward NAME or --reward-model FOLDER")
        return None
    return chosen_reward(registry, folder, name, settings)


def prompts_of(datasets: Datasets, split: str, count: int) -> Sequence[Prompt]:
    """The first ``count`` prompts of a split, sources by their weight."""
    rows = datasets.prompts(split)
    if not rows:
        raise ConfigError(
            f"the data set has no prompts in its split '{split}'", fix="--split train, or another data set"
        )
    return datasets.interleaved(rows)[:count]


def check_comparable(reward: Any, judge: Any, datasets: Datasets, prompts: Sequence[Prompt]) -> None:
    """Refuse a comparison in which nothing says which response is better."""
    if reward is None and judge is None and not any(datasets.has_gold(p) for p in prompts):
        raise ConfigError(
            "nothing says which response is better",
            why="the data set has no gold score",
            fix="--reward NAME, --reward-model FOLDER or --judge NAME",
        )


def fingerprints(
    policies: Mapping[str, str], reference: str | None, *components: ComponentConfig | None
) -> dict[str, str]:
    """Path -> fingerprint of each local model of a comparison, those that a reward or judge loads included."""
    loaded = [path for config in components for path in model_paths(dumped(config) or {})]
    paths = {*policies.values(), reference or "", *loaded} - {""}
    return {path: fingerprint for path in sorted(paths) if (fingerprint := weights_digest(path))}


def dumped(config: ComponentConfig | None) -> dict[str, Any] | None:
    return None if config is None else config.model_dump(mode="json")
