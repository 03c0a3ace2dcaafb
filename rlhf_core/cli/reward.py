"""`rlhf reward`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rlhf_core.cli.groups import OpenGroup

if TYPE_CHECKING:
    from rlhf_core.config.base import ComponentConfig
    from rlhf_core.context import BuildContext
    from rlhf_core.protocols import RewardModel
    from rlhf_core.registry import Registry
    from rlhf_core.types import Sample, Score


@click.group(cls=OpenGroup, path="reward")
def reward() -> None:
    """Score completions with a reward."""


@reward.command()
@click.option("--model", "folder", metavar="FOLDER", help="A reward model or an ensemble of them.")
@click.option("--reward", "name", metavar="NAME", help="A reward component, for example verifier.")
@click.option("--set", "settings", multiple=True, metavar="a.b=c", help="One setting of the reward. Repeatable.")
@click.option("--input", "file", required=True, metavar="FILE", help="JSON lines: prompt (or messages) and completion.")
@click.option("--output", type=click.Path(path_type=Path), metavar="FILE", help="Write the scored rows here.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="For rewards that draw at random.")
@click.option("--json", "as_json", is_flag=True, help="For machines.")
def score(
    folder: str | None,
    name: str | None,
    settings: tuple[str, ...],
    file: str,
    output: Path | None,
    seed: int,
    as_json: bool,
) -> None:
    """Score the completions of a file. Exit code 1 if not one of them has a score.

    \b
    rlhf reward score --model runs/x/final --input answers.jsonl
    rlhf reward score --reward verifier --set timeout_s=2 --input answers.jsonl --output scored.jsonl
    """
    from rlhf_core.cli.toolbox import context_of, emit_json, open_registry, quiet_libraries, set_up_logging
    from rlhf_core.contracts import score_samples

    set_up_logging()
    registry = open_registry()
    chosen = chosen_reward(registry, folder, name, settings)
    rows, samples = samples_of(file)
    check_output(output)
    dataset = {"name": "jsonl", "path": file, "heldout_fraction": 0.0}
    ctx = context_of(registry, seed=seed, dataset=dataset, reward=chosen)
    chosen.preflight(ctx)
    quiet_libraries()
    with built(chosen, ctx) as one:
        scores = score_samples(one, samples, f"reward '{chosen.name}'")
    scored = [_row(row, one) for row, one in zip(rows, scores)]
    result = _summary(chosen.name, scores)
    if output is not None:
        _write(output, scored)
    if as_json:
        emit_json({**result, "rows": scored})
    else:
        _print(result, samples, scores, output)
    raise SystemExit(0 if result["scored"] else 1)


def check_output(output: Path | None) -> None:
    """Refuse a file that cannot be written, before anything is computed for it.

    Raises:
        ConfigError: it is a folder.
        RunDirError: its folder cannot be written.
    """
    from rlhf_core.errors import ConfigError
    from rlhf_core.runs.run_dir import check_writable

    if output is not None:
        check_writable(output)
        if output.is_dir():
            raise ConfigError(f"--output {output} is a folder", fix=f"name a file: {output / 'out.jsonl'}")


def chosen_reward(registry: Registry, folder: str | None, name: str | None, settings: Sequence[str]) -> ComponentConfig:
    """The reward's Config: a folder holding ``ensemble.json`` is an ensemble, any other one reward model.

    Raises:
        ConfigError: neither or both were given, or a setting does not exist.
        PluginError: no such reward.
    """
    from pydantic import ValidationError

    from rlhf_core.config.errors import explain
    from rlhf_core.config.load import parse_sets
    from rlhf_core.errors import ConfigError

    if (folder is None) == (name is None):
        raise ConfigError("say which reward: either --model or --reward", fix="--model FOLDER, or --reward NAME")
    options: dict[str, Any] = parse_sets(settings)
    if folder is not None:
        name = "ensemble" if (Path(folder).expanduser() / "ensemble.json").is_file() else "bradley_terry"
        options["path"] = folder
    cls = registry.load("reward", str(name))
    if folder is None and "path" in cls.model_fields and not {"path", "pairs"} & set(options):
        raise ConfigError(
            f"reward '{name}' scores with a trained model, and none is named",
            fix="rlhf reward score --model FOLDER; `rlhf train` prints where it keeps a trained ensemble",
        )
    try:
        own = registry.find("reward", str(name)).name
        return cls.model_validate({**options, "name": own}, context={"registry": registry})
    except ValidationError as error:
        raise explain(error, cls, where=f"reward '{name}'") from error


def samples_of(file: str) -> tuple[list[Mapping[str, Any]], list[Sample]]:
    """Rows of a file, and the same as samples.

    Raises:
        DatasetError: missing or empty file, or a row without prompt or completion (named with its line).
    """
    from rlhf_core.data.files import read_json
    from rlhf_core.data.schema import Reader, Record

    rows, places = read_json(file)
    reader = Reader(Path(file).name, {}, mapped=False)
    records = [Record(row, i, f"{file}, {place}") for i, (row, place) in enumerate(zip(rows, places))]
    return rows, [_sample(reader, record) for record in records]


def _sample(reader: Any, record: Any) -> Sample:
    from rlhf_core.data.conversations import read_demonstration
    from rlhf_core.data.datasets import NOT_META
    from rlhf_core.data.schema import UnusableRow
    from rlhf_core.errors import DatasetError
    from rlhf_core.types import Prompt, Sample

    completion = reader.get(record, "completion", "response")
    try:
        plain = isinstance(completion, str)
        prompt, text = (reader.prompt(record), completion) if plain else read_demonstration(reader, record)
    except UnusableRow as error:
        raise DatasetError(str(error), where=record.where, fix="each row needs a prompt and a completion") from error
    name = str(record.row.get("id", f"row {record.number + 1}"))
    source = str(record.row.get("source", reader.label))
    meta, _ = reader.rest(record, (*NOT_META, "completion", "response"))
    return Sample(Prompt(name, prompt, reader.answer(record, None), source, meta), text)


@contextmanager
def built(chosen: ComponentConfig, ctx: BuildContext) -> Iterator[RewardModel]:
    """The reward, closed at the end; matrix products as in training.

    Raises:
        PluginError: it is no reward.
    """
    from rlhf_core.kernels.matmul import use_products
    from rlhf_core.registry import check_component

    use_products("auto")
    reward = chosen.build(ctx)
    check_component("reward", reward, chosen.name)
    try:
        yield reward
    finally:
        if callable(getattr(reward, "close", None)):
            reward.close()


def _row(row: Mapping[str, Any], one: Score) -> dict[str, Any]:
    extra = {"detail": one.detail} if one.detail else {}
    return {**row, "score": one.value, "status": one.status.value, "parts": dict(one.parts), **extra}


def _summary(name: str, scores: Sequence[Score]) -> dict[str, Any]:
    from collections import Counter

    from rlhf_core.trainers.common.metrics import mean

    good = [float(s.value) for s in scores if s.ok and s.value is not None]
    return {
        "reward": name,
        "mean": mean(good) if good else None,
        "scored": len(good),
        "count": len(scores),
        "statuses": dict(Counter(s.status.value for s in scores)),
    }


def _write(output: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    import json

    from rlhf_core.runs.atomic import write_text
    from rlhf_core.runs.jsonl import plain

    output.parent.mkdir(parents=True, exist_ok=True)
    write_text(output, "".join(json.dumps(plain(row), ensure_ascii=False) + "\n" for row in rows))


def _print(result: Mapping[str, Any], samples: Sequence[Sample], scores: Sequence[Score], output: Path | None) -> None:
    from rlhf_core.cli.common import shorten, table

    values = ["" if s.value is None else f"{s.value:.4f}" for s in scores]
    table(
        ("score", "status", "prompt", "completion", ""),
        (
            (v, s.status.value, shorten(x.prompt.text), shorten(x.completion), "" if s.ok else shorten(s.detail, 80))
            for v, s, x in zip(values, scores, samples)
        ),
    )
    mean = "none" if result["mean"] is None else f"{result['mean']:.4f}"
    click.echo(f"\nmean {mean} over {result['scored']} of {result['count']} rows")
    if output:
        click.echo(f"written to {output}")
