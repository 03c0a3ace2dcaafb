"""The options that define a run; `rlhf train` and `rlhf config show` share them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import click

from rlhf_core.cli import complete

if TYPE_CHECKING:
    from rlhf_core.config.load import Resolved
    from rlhf_core.config.run import RunConfig
    from rlhf_core.plugins.hooks import HookBus
    from rlhf_core.plugins.registry import Registry

F = TypeVar("F", bound=Callable[..., Any])


def completed_option(flag: str, metavar: str, words: complete.Complete, text: str, *name: str) -> Callable[[F], F]:
    """An option that the shell completes, and the name of its value where that is not the flag's."""
    return click.option(flag, *name, metavar=metavar, shell_complete=words, help=text)


def component_option(flag: str, kind: str, text: str, *name: str) -> Callable[[F], F]:
    """An option that names an installed component."""
    return completed_option(flag, "NAME", complete.components(kind), text, *name)


RUN_OPTIONS = (
    component_option("--algo", "trainer", "Algorithm, for example grpo, sft, reward_model."),
    component_option("--reward", "reward", "Reward, for example ensemble or verifier."),
    component_option("--env", "environment", "Environment of multi-turn episodes, for example tools.", "environment"),
    component_option("--agent", "agent", "Who plays: multi_turn (default with --env), react."),
    component_option("--loss", "loss", "Loss; default is the algorithm's own."),
    component_option("--advantage", "advantage", "Advantage estimator; default is the algorithm's own."),
    completed_option(
        "--model", "M", complete.models, "Hub id, folder, run, checkpoint, .gguf file, or 'pocket' (default)."
    ),
    completed_option("--dataset", "D", complete.datasets, "Built-in name, .jsonl/.csv/.parquet file, or hub id."),
    click.option("--config", "files", multiple=True, metavar="FILE", help="YAML file; later ones win. Repeatable."),
    click.option("--set", "settings", multiple=True, metavar="a.b=c", help="One setting; wins over files. Repeatable."),
    click.option("--seed", type=int, help="Seed of everything random."),
    click.option("--unsafe-local-execution", is_flag=True, help="Run programs without isolation if there is none."),
)


def run_options(command: F) -> F:
    """Add :data:`RUN_OPTIONS` to a command, in their order."""
    for option in reversed(RUN_OPTIONS):
        command = option(command)
    return command


def sugar_of(names: Mapping[str, Any]) -> dict[str, Any]:
    """Short options as configuration keys: ``{"algo": "grpo"}`` as ``{"trainer": {"name": "grpo"}}``."""
    from rlhf_core.data.settings import spell_dataset

    out: dict[str, Any] = {"trainer": {"name": names["algo"]}} if names.get("algo") else {}
    out |= {
        slot: {"name": names[slot]}
        for slot in ("reward", "environment", "agent", "loss", "advantage")
        if names.get(slot)
    }
    if names.get("model"):
        out["model"] = {"path": names["model"]}
    if names.get("dataset"):
        out["dataset"] = spell_dataset({"name": names["dataset"]})
    if names.get("seed") is not None:
        out["seed"] = names["seed"]
    return out


def resolve_options(
    registry: Registry,
    files: Iterable[str],
    settings: Iterable[str],
    names: Mapping[str, Any],
    base: Mapping[str, Any] | None = None,
) -> Resolved:
    """The configuration that the options stand for, or make of ``base``, with where each value came from."""
    from rlhf_core.config.load import resolve_labelled

    resolved = resolve_labelled(registry, files=files, settings=settings, sugar=sugar_of(names), base=base)
    if not names.get("unsafe_local_execution"):
        return resolved
    return resolved._replace(config=resolved.config.allow_unsafe())


def open_plugins(*, enabled: bool = True, strict: bool = False, reports: bool = True) -> tuple[Registry, HookBus]:
    """Every installed component, those that hook plugins register included, and the hooks."""
    from rlhf_core.plugins.entry_points import disabled_distributions
    from rlhf_core.plugins.hooks import load_hooks
    from rlhf_core.plugins.registry import Registry

    registry = Registry(only_core=not enabled)
    hooks = load_hooks(enabled=enabled, disabled=disabled_distributions(), strict=strict, reports=reports)
    hooks.fire("rlhf_register", registry)
    return registry, hooks


def resolve_here(registry: Registry, *args: Any, **kwargs: Any) -> RunConfig:
    """The configuration that :func:`resolve_options` returns, for this machine."""
    from rlhf_core.runs.launch.rows import with_steps

    return with_steps(registry, resolve_options(registry, *args, **kwargs).config.with_precision())
