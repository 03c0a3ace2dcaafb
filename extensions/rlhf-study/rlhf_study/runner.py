"""Runs studies seed by seed: OUT/NAME/seed-N/settings.json (other settings are refused) and figures.json (what
``Study.run`` returned), then result.json and result.md of all seeds."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from rlhf_core.config import RlhfError, UserError
from rlhf_core.data import write_json
from rlhf_core.plugins.registry import check_component
from rlhf_core.runs.launch.process_end import die_with_parent
from rlhf_study.config import StudyConfig
from rlhf_study.record import machine

Figures = Mapping[str, Any]
Key = tuple[str, int]
"""Study and seed."""


def run_studies(
    configs: Mapping[str, StudyConfig], out: Path, jobs: int, command: str, say: Callable[[str], None]
) -> dict[str, str]:
    """Run every study with each of its seeds and record the results."""
    done: dict[Key, Figures] = {}
    failed: dict[Key, Exception] = {}
    for wave in waves(configs):
        keys = [(name, seed) for name in wave for seed in configs[name].seeds]
        for key, outcome in (in_processes if jobs > 1 else in_turn)(configs, keys, out, jobs):
            say(f"{key[0]}, seed {key[1]}: {'failed' if isinstance(outcome, Exception) else 'done'}")
            if isinstance(outcome, Exception):
                failed[key] = outcome
            else:
                done[key] = outcome
        _raise(failed)
    return {
        name: report(config, {s: done[name, s] for s in config.seeds}, out / name, command)
        for name, config in configs.items()
    }


def waves(configs: Mapping[str, StudyConfig]) -> Iterator[list[str]]:
    """Studies in an order in which each comes after those whose runs it reads."""
    left = list(configs)
    while left:
        ready = [name for name in left if not set(configs[name].after) & (set(left) - {name})]
        yield ready or left
        left = [name for name in left if name not in ready] if ready else []


def in_turn(
    configs: Mapping[str, StudyConfig], keys: Sequence[Key], out: Path, jobs: int
) -> Iterator[tuple[Key, Figures | Exception]]:
    """One after the other in this process; a study is built once for all its seeds."""
    studies: dict[str, Any] = {}
    for name, seed in keys:
        try:
            study = studies.setdefault(name, built(configs[name]))
            yield (name, seed), measure(configs[name], seed, folder_of(out, name, seed), study)
        except (RlhfError, OSError, ArithmeticError, LookupError, TypeError, ValueError) as error:
            yield (name, seed), error


def in_processes(
    configs: Mapping[str, StudyConfig], keys: Sequence[Key], out: Path, jobs: int
) -> Iterator[tuple[Key, Figures | Exception]]:
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn"), initializer=_one_thread) as pool:
        tasks: dict[Future[Figures], Key] = {
            pool.submit(measure, configs[name], seed, folder_of(out, name, seed)): (name, seed) for name, seed in keys
        }
        for task in as_completed(tasks):
            error = task.exception()
            if error is not None and not isinstance(error, Exception):
                raise error
            yield tasks[task], error or task.result()


def measure(config: StudyConfig, seed: int, folder: Path, study: Any = None) -> Figures:
    """Figures of one seed, from an earlier call where they are there."""
    settings = config.model_dump(mode="json", exclude={"seeds"})
    settings_file, figures = folder / "settings.json", folder / "figures.json"
    if settings_file.is_file() and json.loads(settings_file.read_text()) != settings:
        if not config.checks_runs:
            raise UserError(f"{folder} was made with other settings", fix="name another folder with --out")
        figures.unlink(missing_ok=True)
    if not figures.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        write_json(settings_file, settings)
        write_json(figures, dict((study or built(config)).run(seed, folder)))
    return json.loads(figures.read_text())


def built(config: StudyConfig) -> Any:
    from rlhf_core.cli import context_of, open_registry

    study = config.build(context_of(open_registry()))
    check_component("study", study, config.name)
    return study


def report(config: StudyConfig, results: Mapping[int, Figures], folder: Path, command: str) -> str:
    study = built(config)
    text = study.table(results)
    settings = config.model_dump(mode="json")
    seeds = {str(seed): figures for seed, figures in results.items()}
    record: dict[str, Any] = {"command": command, "settings": settings, "seeds": seeds, "machine": machine()}
    if verdicts := getattr(study, "verdicts", None):
        record["verdicts"] = [verdict._asdict() for verdict in verdicts(results)]
    write_json(folder / "result.json", record)
    (folder / "result.md").write_text(f"`{command}`\n\n{text}\n")
    if save := getattr(study, "save", None):
        save(results, folder)
    return text


def folder_of(out: Path, name: str, seed: int) -> Path:
    """Where one seed of a study keeps its work. Example: ``runs/studies/lambda_sweep/seed-0``"""
    return out / name / f"seed-{seed}"


def _one_thread() -> None:
    import torch

    die_with_parent()
    torch.set_num_threads(1)


def _raise(failed: Mapping[Key, Exception]) -> None:
    if not failed:
        return
    first = next(iter(failed.values()))
    if len(failed) == 1 and isinstance(first, UserError):
        raise first
    rows = "; ".join(f"{name}, seed {seed}: {type(e).__name__}: {e}" for (name, seed), e in failed.items())
    raise RlhfError(
        f"{len(failed)} seed{'s' * (len(failed) > 1)} failed", why=rows, fix="the same command goes on with them"
    ) from first
