"""Checks of an ablation's arms, before the first starts."""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path
from tempfile import TemporaryDirectory

import click
import yaml

from rlhf_core.config import ConfigError, UserError
from rlhf_study.ablation.config import AblationConfig
from rlhf_study.runs import layered


def check_arms(config: AblationConfig, where: str) -> None:
    """Let `rlhf train` plan every arm.

    Raises:
        UserError: an arm cannot be trained, or two are the same run.
    """
    same: dict[str, str] = {}
    for arm in config.arms:
        try:
            plan = planned(config, arm)
        except UserError as error:
            place = "; ".join(filter(None, (where, error.where)))
            raise type(error)(f"{arm}: {error.what}", where=place, why=error.why, fix=error.fix) from error
        if (other := same.setdefault(plan, arm)) != arm:
            raise ConfigError(
                f"{arm} and {other} are the same run",
                where=where,
                why="every setting of theirs is equal, defaults and what base says included",
                fix="leave one of them out",
            )


def planned(config: AblationConfig, arm: str) -> str:
    """The whole configuration of an arm's first run, as text."""
    with TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()) as printed:
        file = Path(folder, "arm.yaml")
        file.write_text(yaml.safe_dump(layered(*config.settings(arm, config.seeds[0])), sort_keys=False))
        words = ["train", "--config", str(file), *config.options, "--dry-run", "--json"]
        try:
            click.get_current_context().find_root().command.main(words, prog_name="rlhf", standalone_mode=False)
        except click.ClickException as error:
            raise ConfigError(error.format_message()) from error
    return json.dumps(json.loads(printed.getvalue())["config"], sort_keys=True)
