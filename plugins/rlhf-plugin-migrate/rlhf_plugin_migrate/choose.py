"""Which algorithm another library's configuration is for."""

from __future__ import annotations

from rlhf_core.config import ConfigError, did_you_mean
from rlhf_plugin_migrate.read import PeerConfig
from rlhf_plugin_migrate.tables import Table, trl_defaults


def trl_class(peer_config: PeerConfig, table: Table, name: str | None, algo: str | None = None) -> str:
    if name is not None:
        if name not in table.classes:
            raise ConfigError(
                f"TRL has no class '{name}' that is known here",
                fix=did_you_mean(name, table.classes) or f"known: {', '.join(table.classes)}",
            )
        return name
    if peer_config.program in table.classes:
        return peer_config.program
    by_algorithm = {algorithm: cls for cls, algorithm in table.classes.items()}
    wanted = table.programs.get(peer_config.program) or algo
    if wanted is not None:
        return by_algorithm.get(wanted, "GRPOConfig")
    for cls, keys in table.marks.items():
        if any(key in peer_config.settings for key in keys):
            return cls
    raise ConfigError(
        "the configuration does not say which algorithm it is for",
        why=f"it has {', '.join(list(peer_config.settings)[:5])}, which several classes have",
        fix=f"--class {' | '.join(trl_defaults())}",
    )


def command_algorithm(peer_config: PeerConfig, table: Table) -> str:
    """The algorithm that a program or a key of verl and OpenRLHF names."""
    if algorithm := table.programs.get(peer_config.program):
        return algorithm
    key = table.algorithm["key"]
    keys = [key] if isinstance(key, str) else list(key)
    value = next((peer_config.settings[k] for k in keys if peer_config.settings.get(k) is not None), None)
    values = table.algorithm["values"]
    if value is None:
        if not peer_config.program and not any(k in table.by_key for k in peer_config.settings):
            raise ConfigError(
                f"no key of {table.peer} was found",
                why=f"it has {', '.join(list(peer_config.settings)[:5])}",
                fix="choose the command of the library that the file is of: from-trl, from-verl, from-openrlhf",
            )
        return str(table.algorithm["default"]) if _samples(peer_config) else "sft"
    if value not in values:
        raise ConfigError(
            f"{keys[0]} {value!r} has no counterpart", why=f"known: {', '.join(values)}", fix="--algo NAME chooses one"
        )
    return str(values[value])


def _samples(peer_config: PeerConfig) -> bool:
    marks = ("actor_rollout_ref", "algorithm.", "rollout", "actor", "n_samples_per_prompt", "critic", "reward", "algo.")
    return bool(peer_config.program) or any(key.startswith(marks) for key in peer_config.settings)
