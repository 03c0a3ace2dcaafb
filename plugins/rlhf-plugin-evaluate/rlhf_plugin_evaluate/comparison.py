"""What is compared, checked before anything is sampled; kept in ``comparison.json`` so that only the same goes on."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from rlhf_core.api import ComponentConfig, ConfigError, Prompt
from rlhf_core.cli.reward import chosen_reward
from rlhf_core.config.errors import explain
from rlhf_core.config.load import parse_sets
from rlhf_core.data.datasets import Datasets
from rlhf_core.data.mixture import interleave
from rlhf_core.models.sources import paths_in, resolve, weights_print
from rlhf_core.registry import Registry
from rlhf_core.runs.atomic import write_json

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
    """Fingerprint of every local model that is named above, by its place."""

    def claim(self, folder: Path) -> None:
        """Make the folder, or make sure that what lies there is of this very comparison.

        Raises:
            ConfigError: it is of another one; the first difference is named.
        """
        file, own = folder / PLAN, json.loads(json.dumps(asdict(self)))
        if file.is_file():
            there = json.loads(file.read_text())
            if differs := [k for k in own if own[k] != there.get(k)]:
                raise ConfigError(
                    f"--out {folder} holds another comparison",
                    where=f"{file}, {differs[0]}",
                    why=f"there {there.get(differs[0])!r}, here {own[differs[0]]!r}",
                    fix="name another folder, or delete this one",
                )
            return
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise ConfigError(
                f"--out {folder} is in use", why=f"it exists, without a {PLAN}", fix="name another folder"
            )
        folder.mkdir(parents=True, exist_ok=True)
        write_json(file, own)


def named_policies(baseline: str, others: Sequence[str]) -> dict[str, str]:
    """Name -> model folder (the ``final`` of a run), hub id or ``pocket``; each is checked to be there.

    Raises:
        ConfigError: none, or two of one name.
        ModelError: no such model.
    """
    if not others:
        raise ConfigError("no policy to compare", fix="--policy NAME=FOLDER (a model or a run), repeatable")
    found = {BASELINE: model_of(baseline)}
    for text in others:
        name, _, place = text.rpartition("=")
        place = place.strip()
        name = name.strip() or Path(place.removesuffix("/final").rstrip("/")).name
        if not name or "/" in name:
            raise ConfigError(f"--policy '{text}': a policy needs a name without '/'", fix="--policy NAME=FOLDER")
        if name in found:
            raise ConfigError(f"two policies are called '{name}'", fix=f"--policy OTHER_NAME={place}")
        found[name] = model_of(place)
    return found


def model_of(place: str) -> str:
    """The model itself; of a run its final one.

    Raises:
        ModelError: there is none.
    """
    folder = Path(place).expanduser()
    if (folder / "plan.json").is_file() and (folder / "final" / "config.json").is_file():
        place = str(folder / "final")
    resolve(place)
    return place


def judge_of(registry: Registry, name: str, settings: Sequence[str]) -> ComponentConfig:
    """The judge's Config.

    Raises:
        PluginError: no such judge.
        ConfigError: a setting does not exist.
    """
    cls = registry.load("judge", name)
    try:
        options = {**parse_sets(settings), "name": registry.find("judge", name).name}
        return cls.model_validate(options, context={"registry": registry})
    except ValidationError as error:
        raise explain(error, cls, where=f"judge '{name}'") from error


def reward_of(registry: Registry, folder: str | None, name: str | None, settings: Sequence[str]) -> Any:
    """The reward's Config, or None if neither a folder nor a name was given."""
    if folder is None and name is None:
        if settings:
            raise ConfigError("--set sets a reward, and none is named", fix="--reward NAME or --reward-model FOLDER")
        return None
    return chosen_reward(registry, folder, name, settings)


def prompts_of(datasets: Datasets, split: str, count: int) -> list[Prompt]:
    """The first ``count`` prompts of a split, sources by their weight.

    Raises:
        ConfigError: the split has none.
    """
    rows = datasets.prompts(split)
    if not rows:
        raise ConfigError(
            f"the data set has no prompts in its split '{split}'", fix="--split train, or another data set"
        )
    return [rows[i] for i in interleave([p.source for p in rows], datasets.weights)][:count]


def comparable(reward: Any, judge: Any, datasets: Datasets, prompts: Sequence[Prompt]) -> None:
    """Refuse a comparison by nothing."""
    if reward is None and judge is None and not any(datasets.has_gold(p) for p in prompts):
        raise ConfigError(
            "nothing says which response is better",
            why="the data set has no gold score",
            fix="--reward NAME, --reward-model FOLDER or --judge NAME",
        )


def prints(policies: Mapping[str, str], reference: str | None, *components: ComponentConfig | None) -> dict[str, str]:
    """Place -> fingerprint of each local model of a comparison, those that a reward or judge loads included."""
    places = {*policies.values(), reference or "", *(p for c in components for p in paths_in(dumped(c) or {}))}
    return {p: found for p in sorted(places - {""}) if (found := weights_print(p))}


def dumped(config: ComponentConfig | None) -> dict[str, Any] | None:
    """A component's settings as JSON."""
    found: Mapping[str, Any] | None = None if config is None else config.model_dump(mode="json")
    return None if found is None else dict(found)
