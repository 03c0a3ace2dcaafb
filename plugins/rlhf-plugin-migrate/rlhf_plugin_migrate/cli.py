"""`rlhf config from-trl`, `from-verl` and `from-openrlhf`; importing this costs nothing."""

from __future__ import annotations

from typing import Any

import click

NPROC = click.option(
    "--nproc", type=click.IntRange(1), help="Processes that per-device sizes are times; default: the file's, or 1."
)
JSON = click.option("--json", "as_json", is_flag=True, help="For machines.")
ALGO = click.option("--algo", metavar="NAME", help="Our algorithm, where the file does not say it.")
SOURCE = click.argument("source", nargs=-1, metavar="[FILE | -- KEY=VALUE ...]")


@click.command()
@SOURCE
@click.option("--class", "class_name", metavar="NAME", help="GRPOConfig, SFTConfig, ...; without a file, its defaults.")
@click.option("--defaults", is_flag=True, help="Write the class's defaults too, for the keys that the file leaves out.")
@ALGO
@NPROC
@JSON
def from_trl(
    source: tuple[str, ...], class_name: str | None, defaults: bool, algo: str | None, nproc: int | None, as_json: bool
) -> None:
    """Print a configuration of TRL in our names, with a note for each key.

    FILE is a YAML file, a Python script that makes a config, or a shell script with the command.

    \b
    rlhf config from-trl grpo.yaml --class GRPOConfig > run.yaml
    rlhf config from-trl --class GRPOConfig
    rlhf config from-trl -- trl dpo --model_name_or_path M --learning_rate 1e-6
    """
    from rlhf_core.config import ConfigError
    from rlhf_plugin_migrate.choose import trl_class
    from rlhf_plugin_migrate.read import PeerConfig, read_peer_config
    from rlhf_plugin_migrate.tables import load_table, trl_defaults

    table = load_table("trl")
    if not source and class_name is None:
        raise ConfigError(
            "nothing to translate", fix="name a file, or a class: rlhf config from-trl --class GRPOConfig"
        )
    peer_config = read_peer_config(source, table, class_name) if source else PeerConfig({}, "", {})
    name = trl_class(peer_config, table, class_name, algo)
    if defaults or not source:
        peer_config = peer_config._replace(settings={**trl_defaults().get(name, {}), **peer_config.settings})
    _print(peer_config, "trl", algo or table.classes[name], nproc, as_json)


@click.command()
@SOURCE
@ALGO
@JSON
def from_verl(source: tuple[str, ...], algo: str | None, as_json: bool) -> None:
    """Print a configuration of verl in our names, with a note for each key.

    FILE is a YAML file or a shell script with the command.

    \b
    rlhf config from-verl run_grpo.sh > run.yaml
    rlhf config from-verl -- algorithm.adv_estimator=grpo actor_rollout_ref.rollout.n=8
    """
    _from_command(source, "verl", algo, as_json)


@click.command()
@SOURCE
@ALGO
@JSON
def from_openrlhf(source: tuple[str, ...], algo: str | None, as_json: bool) -> None:
    """Print a command line of OpenRLHF in our names, with a note for each option.

    FILE is a shell script with the command.

    \b
    rlhf config from-openrlhf train_dpo.sh > run.yaml
    rlhf config from-openrlhf -- openrlhf.cli.train_dpo --model.beta 0.1
    """
    _from_command(source, "openrlhf", algo, as_json)


def _from_command(source: tuple[str, ...], peer: str, algo: str | None, as_json: bool) -> None:
    from rlhf_core.config import ConfigError
    from rlhf_plugin_migrate.choose import command_algorithm
    from rlhf_plugin_migrate.read import read_peer_config
    from rlhf_plugin_migrate.tables import load_table

    if not source:
        raise ConfigError("nothing to translate", fix=f"name a file: rlhf config from-{peer} FILE")
    table = load_table(peer)
    peer_config = read_peer_config(source, table)
    _print(peer_config, peer, algo or command_algorithm(peer_config, table), None, as_json)


def _print(peer_config: Any, peer: str, algorithm: str, nproc: int | None, as_json: bool) -> None:
    """The translation, whatever is wrong with it; then what is."""
    from rlhf_core.cli import emit_json, open_registry
    from rlhf_core.config import ConfigError
    from rlhf_plugin_migrate.convert import convert
    from rlhf_plugin_migrate.printing import lines
    from rlhf_plugin_migrate.tables import load_table

    table = load_table(peer)
    converted = convert(peer_config, table, open_registry(), algorithm, nproc)
    if as_json:
        emit_json({**converted._asdict(), "rows": [row._asdict() for row in converted.rows]})
    for line in () if as_json else lines(converted, table.peer):
        click.echo(line)
    if converted.problems:
        raise ConfigError("\n".join(converted.problems), where="the translation, which is printed whole")
