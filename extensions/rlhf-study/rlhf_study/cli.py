"""`rlhf study`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rlhf_core.config import Registry
    from rlhf_study.config import StudyConfig


class SeedsCommand(click.Command):
    """A command whose ``--seeds`` takes as many numbers as follow it."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        words: list[str] = []
        for word in args:
            if words and words[-1].startswith("--seeds=") and word.isdigit():
                words[-1] += f"{',' if words[-1] != '--seeds=' else ''}{word}"
            else:
                words.append("--seeds=" if word == "--seeds" else word)
        return super().parse_args(ctx, words)


def seeds_of(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[int, ...] | None:
    if value is None:
        return None
    if not all(part.isdigit() for part in value.split(",")):
        raise click.BadParameter("one or more whole numbers, for example --seeds 0 1 2", ctx, param)
    return tuple(dict.fromkeys(int(part) for part in value.split(",")))


@click.group()
def study() -> None:
    """List, run and show reproducible studies."""


@study.command("list")
@click.option("--json", "as_json", is_flag=True, help="For machines.")
def list_(as_json: bool) -> None:
    """Studies that are installed, and what they ask. Reads metadata and texts only; imports no study."""
    from rlhf_core.cli import emit_json, table
    from rlhf_core.config import Registry
    from rlhf_study.record import recorded

    rows: list[dict[str, Any]] = []
    for entry in Registry().entries("study"):
        record = recorded(entry.point.module)
        rows.append({**entry.describe(), "question": record.question, "recorded": bool(record.table)})
    if as_json:
        emit_json(rows)
    elif not rows:
        click.echo("no studies are installed; those of this repository: pip install -e extensions/rlhf-studies")
    else:
        table(
            ("name", "recorded", "question"), ((r["name"], "yes" if r["recorded"] else "", r["question"]) for r in rows)
        )


@study.command()
@click.argument("name")
@click.option("--json", "as_json", is_flag=True, help="The recorded figures.")
def show(name: str, as_json: bool) -> None:
    """What a study asks, what was found, and the recorded table."""
    from rlhf_core.config import Registry, UserError
    from rlhf_study.record import recorded

    record = recorded(Registry().find("study", name).point.module)
    if as_json:
        file = record.folder / "result.json" if record.folder else None
        if file is None or not file.is_file():
            raise UserError(f"nothing is recorded of '{name}'", fix=f"rlhf study run {name}")
        click.echo(file.read_text().rstrip())
        return
    missing = f"Nothing is recorded yet: rlhf study run {name}"
    click.echo("\n\n".join(filter(None, (record.question, record.verdict, record.table or missing))))


@study.command("claims")
@click.option("--json", "as_json", is_flag=True, help="For machines.")
def claims_(as_json: bool) -> None:
    """Published findings, what is measured here, and the verdict. Reads records only."""
    from rlhf_core.cli import emit_json, table
    from rlhf_core.config import Registry
    from rlhf_study.record import Verdict, claims

    rows = claims({entry.name: entry.point.module for entry in Registry().entries("study")})
    if as_json:
        emit_json([row._asdict() for row in rows])
    else:
        table(Verdict._fields, rows)


@study.command(cls=SeedsCommand)
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@click.option(
    "--seeds", callback=seeds_of, metavar="N...", help="Seeds instead of the study's own, e.g. --seeds 0 1 2."
)
@click.option("--smoke", is_flag=True, help="Tiny settings and one seed: does it run at all?")
@click.option("--set", "settings", multiple=True, metavar="a.b=c", help="One of the study's settings. Repeatable.")
@click.option("--out", type=click.Path(path_type=Path), help="Kept; what is done there is not done again.")
@click.option("--jobs", type=click.IntRange(min=1), default=1, show_default=True, help="Seeds at a time.")
@click.option("--dry-run", is_flag=True, help="Check the settings, of every arm of a file too, and run nothing.")
def run(
    names: tuple[str, ...],
    seeds: tuple[int, ...] | None,
    smoke: bool,
    settings: tuple[str, ...],
    out: Path | None,
    jobs: int,
    dry_run: bool,
) -> None:
    """Run studies and print their tables; the same command goes on where it was interrupted.

    NAME is a study's, or a YAML file with arms. Results go to OUT/NAME/result.json and result.md; OUT is runs/studies,
    or runs/studies-smoke with --smoke.
    """
    from rlhf_core.cli import open_registry
    from rlhf_study.runner import run_studies

    registry = open_registry()
    chosen = [configured(registry, name, seeds, smoke, settings) for name in dict.fromkeys(names)]
    configs = {config.name: config for config in chosen}
    if dry_run:
        for config in chosen:
            click.echo(f"{config.name}: seeds {', '.join(map(str, config.seeds))}")
            click.echo("".join(f"  {arm}\n" for arm in getattr(config, "arms", ())), nl=False)
        return
    out = out or Path("runs", "studies-smoke" if smoke else "studies")
    tables = run_studies(
        configs, out, jobs, spelled(names, seeds, smoke, settings), lambda line: click.echo(line, err=True)
    )
    for name, text in tables.items():
        click.echo(f"{name}\n\n{text}\n" if len(tables) > 1 else text)


def configured(
    registry: Registry, name: str, seeds: tuple[int, ...] | None, smoke: bool, settings: tuple[str, ...]
) -> StudyConfig:
    from typing import cast

    from rlhf_core.config import PluginError, merge_settings, parse_settings
    from rlhf_study.config import StudyConfig

    if Path(name).suffix in (".yaml", ".yml"):
        return ablation_of(Path(name), seeds, smoke, settings)
    cls = registry.load("study", name)
    if not issubclass(cls, StudyConfig):
        raise PluginError(
            f"study '{name}' names {cls.__name__}, which is not a StudyConfig", fix="derive it from StudyConfig"
        )
    chosen = {**cls.smoke, "seeds": (0,)} if smoke else {}
    config = registry.config("study", name, merge_settings(chosen, parse_settings(settings)))
    return cast("StudyConfig", config.model_copy(update={"seeds": seeds}) if seeds else config)


def ablation_of(file: Path, seeds: tuple[int, ...] | None, smoke: bool, settings: tuple[str, ...]) -> StudyConfig:
    """The arms of a file, each checked by a dry run."""
    from rlhf_core.config import UserError
    from rlhf_study.ablation.check import check_arms
    from rlhf_study.ablation.read import read_ablation

    if smoke:
        raise UserError("a file has no tiny settings", fix=f"rlhf study run {file} --dry-run checks it")
    config = read_ablation(file, settings)
    check_arms(config, str(file))
    return config.model_copy(update={"seeds": seeds}) if seeds else config


def spelled(names: tuple[str, ...], seeds: tuple[int, ...] | None, smoke: bool, settings: tuple[str, ...]) -> str:
    words = ["rlhf study run", *names, *(["--smoke"] if smoke else []), *(f"--set {s}" for s in settings)]
    return " ".join([*words, *(["--seeds", *map(str, seeds)] if seeds else [])])
