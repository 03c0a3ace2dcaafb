"""`rlhf data check`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rlhf_core.config import BuildContext, Registry
    from rlhf_plugin_preflight.datacheck.check import Benchmark
    from rlhf_plugin_preflight.datacheck.items import Item


@click.command()
@click.argument("file", metavar="FILE")
@click.option("--algo", metavar="NAME", help="Algorithm that is to learn from it, for example sft, dpo, grpo.")
@click.option("--model", metavar="M", help="Whose tokenizer measures lengths; default: as in training.")
@click.option("--reward", metavar="NAME", help="Reward, whose verifier is asked whether it can judge each row.")
@click.option("--heldout", metavar="FILE", help="Rows to hold out instead of a share of FILE.")
@click.option("--against", multiple=True, metavar="B", help="Benchmark, file, or BENCHMARK=FILE; repeatable.")
@click.option("--ngram", type=click.IntRange(3), default=13, show_default=True, help="Words in a row that count.")
@click.option("--broken", type=click.IntRange(0), default=20, show_default=True, help="Most broken rows to show.")
@click.option("--config", "files", multiple=True, metavar="FILE", help="YAML file of the run. Repeatable.")
@click.option("--set", "settings", multiple=True, metavar="a.b=c", help="A setting of the run. Repeatable.")
@click.option("--json", "as_json", is_flag=True, help="For machines.")
def check(
    file: str,
    algo: str | None,
    model: str | None,
    reward: str | None,
    heldout: str | None,
    against: tuple[str, ...],
    ngram: int,
    broken: int,
    files: tuple[str, ...],
    settings: tuple[str, ...],
    as_json: bool,
) -> None:
    """Read a data set as training would. Exit code 2 if a row is broken.

    \b
    rlhf data check train.jsonl --algo sft --model runs/sft/final
    rlhf data check train.jsonl --algo grpo --reward gsm8k --against gsm8k=test.jsonl.gz
    """
    from rlhf_core.cli import emit_json
    from rlhf_plugin_preflight.datacheck.check import check_data
    from rlhf_plugin_preflight.datacheck.printing import lines

    names = {"algo": algo, "model": model, "reward": reward, "dataset": file}
    ctx = _context(files, settings, names, heldout)
    benchmarks = [_benchmark(name, ctx) for name in against]
    result = check_data(ctx, benchmarks, ngram)
    if as_json:
        emit_json(result)
    else:
        for line in lines(result, broken, file):
            click.echo(line)
    raise SystemExit(2 if result["broken"] else 0)


def _context(
    files: tuple[str, ...], settings: tuple[str, ...], names: dict[str, Any], heldout: str | None
) -> BuildContext:
    """A context with the configuration that `rlhf train` would have."""
    from rlhf_core.cli import open_registry
    from rlhf_core.cli.options import resolve_options
    from rlhf_core.config import BuildContext

    registry, shorthands = open_registry(), []
    if any(setting.startswith("dataset.name=") for setting in settings):  # a component that reads files of its own form
        shorthands.append(f"dataset.path={json.dumps(names['dataset'])}")
        names = {**names, "dataset": None}
    if heldout is not None:
        shorthands.append(f"dataset.heldout={json.dumps(heldout)}")
    config = resolve_options(registry, files, (*shorthands, *settings), names).config
    return BuildContext(config=config, registry=registry, seed=config.seed, dry_run=True)


def _benchmark(name: str, ctx: BuildContext) -> Benchmark:
    from rlhf_plugin_preflight.datacheck.check import Benchmark

    benchmark, _, path = name.partition("=")
    section = _suite_rows(ctx.registry, benchmark, path or None)
    return Benchmark(name, _prompts(section or {"name": path or benchmark}, ctx))


def _suite_rows(registry: Registry, name: str, path: str | None) -> dict[str, Any] | None:
    """The dataset section of an installed benchmark; None if none is called so."""
    from rlhf_core.config import ConfigError, did_you_mean

    known = {e.name for e in registry.entries("benchmark")}
    if name not in known:
        if "/" in name or "." in name:
            return None
        raise ConfigError(
            f"there is no benchmark '{name}'",
            why=f"installed: {', '.join(sorted(known)) or 'none'}",
            fix=did_you_mean(name, known) or "name a file, or a benchmark of `rlhf plugins list --kind benchmark`",
        )
    suite = registry.config("benchmark", name)
    rows_of = getattr(suite, "rows_of", None)
    if rows_of is None:
        raise ConfigError(
            f"benchmark '{name}' does not say which rows it has", fix=f"give its file: --against {name}.jsonl"
        )
    return dict(rows_of(path))


def _prompts(section: dict[str, Any], ctx: BuildContext) -> list[Item]:
    """All rows of a section, those it holds out included."""
    from rlhf_core.cli import context_of
    from rlhf_plugin_preflight.datacheck.items import Item

    datasets = context_of(ctx.registry, dataset={"heldout_fraction": 0, **section}).datasets
    rows = [*datasets.prompts("train"), *datasets.prompts("heldout")]
    return [Item(datasets.where(row.id), row.messages, (), (), row.tools) for row in rows]
