"""What commands that score completions share: which reward, which samples, where the result goes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rlhf_core.plugins.component import ComponentConfig
    from rlhf_core.plugins.registry import Registry


def check_output(output: Path | None, *inputs: str | Path, option: str = "--output", folder: bool = False) -> None:
    """Refuse a file or folder that cannot be written, before anything is computed for it.

    Args:
        output: the file, if one is wanted; one that exists is replaced.
        inputs: files that are read, which it must not replace.
        option: what names it, for messages.
        folder: it is a folder that files are written into.

    Raises:
        ConfigError: it is a folder, one of the inputs, or cannot be written.
        RunDirError: its folder cannot be written.
    """
    import os

    from rlhf_core.runs.run_dir import check_writable
    from rlhf_core.types.errors import ConfigError

    if output is None:
        return
    if folder:
        check_writable(output)
        return
    if output.is_dir():
        raise ConfigError(f"{option} {output} is a folder", fix=f"name a file: {output / 'out.jsonl'}")
    if output.exists() and any(Path(p).exists() and output.samefile(p) for p in inputs):
        raise ConfigError(f"{option} {output} is the input", why="its rows would be lost", fix="name another file")
    if output.exists() and not os.access(output, os.W_OK):
        raise ConfigError(f"{option} {output} cannot be written", fix="name another file, or change its permissions")
    check_writable(output.absolute().parent)


def chosen_reward(registry: Registry, folder: str | None, name: str | None, settings: Sequence[str]) -> ComponentConfig:
    """The reward's Config: a folder holding ``ensemble.json`` is an ensemble, any other one reward model.

    Raises:
        ConfigError: neither or both were given, or a setting does not exist.
        PluginError: no such reward.
    """
    from rlhf_core.config.load import parse_settings
    from rlhf_core.models.paths import model_folder
    from rlhf_core.types.errors import ConfigError

    if (folder is None) == (name is None):
        raise ConfigError("say which reward: either --model or --reward", fix="--model FOLDER, or --reward NAME")
    options: dict[str, Any] = parse_settings(settings)
    if folder is not None:
        folder = model_folder(folder)
        name = "ensemble" if (Path(folder).expanduser() / "ensemble.json").is_file() else "bradley_terry"
        options["path"] = folder
    cls = registry.load("reward", str(name))
    if isinstance(options.get("reward"), dict) and "reward" not in cls.model_fields:  # as `rlhf train` has its keys
        options |= options.pop("reward")
    if folder is None and "path" in cls.model_fields and not {"path", "pairs"} & set(options):
        raise ConfigError(
            f"reward '{name}' scores with a trained model, and none is named",
            fix="--set reward.path=FOLDER; for an ensemble or a Bradley-Terry model --model FOLDER, without --reward",
        )
    reward_name = registry.find("reward", str(name)).name
    return cls.from_settings({**options, "name": reward_name}, f"reward '{name}'", registry)
