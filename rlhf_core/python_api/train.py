"""``rlhf train`` as a function."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlhf_core.plugins.component import ComponentConfig, Config
from rlhf_core.python_api.launching import SLOTS, launch_in_process, with_dotted_keys
from rlhf_core.python_api.run import Run, load_run


def train(
    algo: str | ComponentConfig,
    *,
    model: str | Path | Config | Run | None = None,
    dataset: Any = None,
    reward: Any = None,
    loss: Any = None,
    advantage: str | ComponentConfig | None = None,
    settings: Mapping[str, Any] | None = None,
    config: str | Path | None = None,
    seed: int | None = None,
    run_dir: str | Path | None = None,
    nproc: int = 1,
    progress: bool = True,
) -> Run:
    """Train a model, as ``rlhf train`` does; the caller's process is left as it was.

    Example:
        run = train(
            algo="grpo",
            model="pocket",
            dataset=[{"prompt": "What is 2 + 2?", "answer": "4"}] * 64,
            reward=lambda samples: [float("4" in s.completion) for s in samples],
            settings={"trainer.steps": 2},
        )

    Args:
        algo: name of the algorithm, or its Config.
        model: hub id, folder, ``.gguf`` file, ``pocket``, a ``ModelConfig``, or a run, whose final model is meant.
        dataset: a name as on the command line, a ``DatasetSettings``, rows, a ``datasets.Dataset``, a DataFrame, or a
            mapping of splits ``train`` and ``heldout`` to such.
        reward: a name, a Config, or a function from samples (``.prompt``, ``.completion``) to numbers.
        loss: a name, a Config, or a function from a batch to an unreduced loss ``[B, T]`` or ``[B]``.
        advantage: a name or a Config.
        settings: dotted keys as after ``--set``, or nested mappings, to values; they win over everything else.
        config: a YAML file.
        seed: decides everything random.
        run_dir: where the run is kept; default ``runs/ALGO-TIME``.
        nproc: processes on this machine; Python objects need 1.
        progress: show steps.

    Returns:
        The finished run.

    Raises:
        UserError: something given cannot work; nothing was trained.
        RlhfError: the run failed.
    """
    from rlhf_core.cli.options import open_plugins
    from rlhf_core.config.load import resolve
    from rlhf_core.data.settings import spell_dataset
    from rlhf_core.python_api.config import config_of, read_once, registered
    from rlhf_core.python_api.launching import unchanged_process
    from rlhf_core.runs.launch.run import pinned, plan_run, with_steps

    values = {"reward": reward, "loss": loss, "dataset": dataset}
    objects = read_once({slot: v for slot, v in values.items() if not isinstance(v, str | Path | Config | None)})
    named = {slot: config_of(slot, objects[slot]) if slot in objects else values[slot] for slot in SLOTS}
    named_rows = isinstance(dataset, str | Path)
    sections = {
        "trainer": _section(algo),
        "model": _section(model, "path"),
        "dataset": spell_dataset({"name": str(dataset)}) if named_rows else _section(named["dataset"]),
        **{slot: _section(value) for slot, value in (*named.items(), ("advantage", advantage)) if slot != "dataset"},
    }
    chosen = {slot: section for slot, section in sections.items() if section is not None}
    chosen |= {} if seed is None else {"seed": seed}
    with unchanged_process(), registered(objects):
        registry, hooks = open_plugins()
        files = [] if config is None else [config]
        resolved = resolve(registry, files=files, sugar=with_dotted_keys(chosen, settings or {}))
        resolved = pinned(with_steps(registry, resolved).with_precision())
        plan = plan_run(registry, hooks, resolved, nproc)
        folder = launch_in_process(plan, resolved, registry, hooks, run_dir, resuming=False, progress=progress)
    return load_run(folder)


def _section(value: Any, key: str = "name") -> dict[str, Any] | None:
    """What YAML would say for a Config, or for what a setting ``key`` names."""
    if value is None:
        return None
    if isinstance(value, Config):
        named = {"name": value.name} if isinstance(value, ComponentConfig) else {}
        return {**named, **value.model_dump(exclude_unset=True)}
    return {key: str(value.model_path if isinstance(value, Run) else value)}
