"""Hooks: many listeners, pluggy, entry-point group ``rlhf``. Observers cannot mutate: every event is frozen, and a hook
sees a read-only copy.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pluggy

from rlhf_core.plugins.component_calls import time_limit
from rlhf_core.plugins.entry_points import Entry, entries_of, foreign_code, load_entry, normalise
from rlhf_core.types.errors import PluginError, RlhfError, StopRun, did_you_mean, error_text
from rlhf_core.types.frozen import frozen
from rlhf_core.types.rollouts import Rollout, Score

if TYPE_CHECKING:
    from rlhf_core.plugins.context import BuildContext

GROUP = "rlhf"
hookimpl = pluggy.HookimplMarker("rlhf")
log = logging.getLogger("rlhf.hooks")
T = TypeVar("T")


@dataclass(frozen=True)
class PlanResolved:
    """The plan as JSON values, before anything is built."""

    plan: Mapping[str, Any]
    """What ``plan.json`` will hold."""


@dataclass(frozen=True)
class Preflight:
    """Every component has checked its settings; nothing is loaded or started yet. With ``context.dry_run`` nothing will
    be, and nothing may be downloaded or written.
    """

    context: BuildContext
    """Configuration, registry and world size of the run."""
    force: bool
    """The user wants the run to start although it may not fit (``--force``): a listener warns instead of raising."""
    rows: Mapping[str, Mapping[str, int]] = field(default_factory=dict[str, Mapping[str, int]])
    """Source of the data set -> number of rows to train on and held out; empty where they were not read."""
    settings: Any = None
    """The labelled configuration (``rlhf_core.config.load.Resolved``); None for a run that goes on."""


@dataclass(frozen=True)
class Launch:
    """The run is about to start processes; a plugin may launch it and return the exit code."""

    plan_path: Path
    """The run's ``plan.json``."""
    nproc: int
    """How many processes are to be started."""


@dataclass(frozen=True)
class RunStart:
    """The run directory is open; the components are about to be built."""

    run_dir: Path
    """The run's folder."""
    plan: Mapping[str, Any]
    """What its ``plan.json`` holds."""


@dataclass(frozen=True)
class StepRollouts:
    """Rollouts of one step on this rank, before and after they are scored.

    ``rlhf_rollouts_ready`` comes several times a step if it samples in rounds or chunks. Rollouts that were sampled
    ahead (``trainer.rollouts.max_staleness``) are reported in the step that first trains on them, in the main thread.
    """

    step: int
    """The step, from 1."""
    rollouts: Sequence[Rollout]
    """Prompt by prompt."""
    scores: Sequence[Score] = ()
    """One per rollout, as the reward gave it; a missing one has a status. Empty before they are scored."""


@dataclass(frozen=True)
class StepMetrics:
    """Numbers of one step: what an update is about to train on, a finished step, or a held-out evaluation."""

    step: int
    """The step, from 1; of an evaluation the one before it, 0 before training."""
    metrics: Mapping[str, float]
    """By name. ``rlhf_batch_ready``: ``sequences`` (completions or rows that are trained on) and ``tokens`` (of their
    completions, that count in the loss). ``rlhf_step_end``: the step's row of ``metrics.jsonl``. ``rlhf_eval_end``:
    ``eval/...``."""


@dataclass(frozen=True)
class CheckpointSaved:
    """A checkpoint is complete on disk."""

    step: int
    """The step that it goes on from."""
    path: Path
    """Its folder."""


@dataclass(frozen=True)
class RunEnd:
    """The run is over. ``rlhf_run_end`` comes in each of its processes, where the run has ended by itself.

    ``rlhf_run_closed`` comes after it, and however the run ended, in the process that launched it, when no process of
    the run is left: its folder holds all that it will hold. It does not come for a run that left no folder.
    """

    run_dir: Path
    """The run's folder."""
    status: str
    """``completed`` or ``stopped``; of a run that did not end by itself ``interrupted`` or ``failed``."""
    error: str = ""
    """What ended it, where it did not end by itself."""
    summary: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """What ``summary.json`` holds: ``steps``, last metrics, reports of components, ``hook_errors``; else empty."""


class Specs:
    """Hook specifications. All but the first take one frozen ``event``, whose class says when it is called."""

    def rlhf_register(self, registry: Any) -> None:
        """Called once per process before the registry freezes."""

    def rlhf_plan_resolved(self, event: PlanResolved) -> None:
        """The plan is final."""

    def rlhf_preflight(self, event: Preflight) -> str | None:
        """The run is about to start; an ``RlhfError`` refuses it. A dry run prints the text that is returned."""

    def rlhf_launch(self, event: Launch) -> int | None:
        """Start the run's processes and return the exit code; None leaves it to the next plugin or the core."""

    def rlhf_run_start(self, event: RunStart) -> None:
        """The run directory is open."""

    def rlhf_rollouts_ready(self, event: StepRollouts) -> None:
        """Completions are sampled."""

    def rlhf_rewards_ready(self, event: StepRollouts) -> None:
        """Completions are scored."""

    def rlhf_batch_ready(self, event: StepMetrics) -> None:
        """A training batch is assembled."""

    def rlhf_step_end(self, event: StepMetrics) -> None:
        """A step is finished."""

    def rlhf_eval_end(self, event: StepMetrics) -> None:
        """An evaluation is finished."""

    def rlhf_checkpoint_saved(self, event: CheckpointSaved) -> None:
        """A checkpoint is complete."""

    def rlhf_run_end(self, event: RunEnd) -> None:
        """The run is over."""

    def rlhf_run_closed(self, event: RunEnd) -> str | None:
        """No process of the run is left; a line that is returned is shown to the user."""


HOOK_NAMES: tuple[str, ...] = tuple(n for n in vars(Specs) if n.startswith("rlhf_"))
for _name in HOOK_NAMES:
    pluggy.HookspecMarker("rlhf")(getattr(Specs, _name), firstresult=_name == "rlhf_launch")
BEFORE_THE_RUN = ("rlhf_register", "rlhf_plan_resolved", "rlhf_preflight")


@dataclass
class HookBus:
    """Calls every listener and isolates each from the others."""

    manager: HookManager
    strict: bool = False
    enabled: bool = True
    errors: Counter[str] = field(default_factory=Counter)
    stop_reason: str | None = None
    """Why the first listener that raised ``StopRun`` wants the run to end, which it does after the step."""
    notes: list[str] = field(default_factory=list[str])
    """What listeners of ``rlhf_run_closed`` have to say to the user, to be shown last."""
    reports: bool = True
    """False on every rank but the first, which reports for them: a hook that fails is reported once in a run."""
    unreported: dict[str, str] = field(default_factory=dict)
    _taken: Counter[str] = field(default_factory=Counter)

    def fire(self, hook: str, event: Any) -> list[Any]:
        """What all implementations of ``hook`` return, without None; they see a read-only copy of the event."""
        key = "registry" if hook == "rlhf_register" else "event"
        listeners = getattr(self.manager.hook, hook).get_hookimpls()
        if listeners and key == "event":
            event = frozen(event)
        results: list[Any] = []
        for impl in reversed(listeners):
            plugin, given = impl.plugin_name, {key: event} if impl.argnames else {}
            call: Callable[[], Any] = partial(impl.function, **given)
            refusal = RlhfError if hook == "rlhf_preflight" else ()
            results.append(self.call(f"hook {hook} of {plugin_label(plugin)}", f"{plugin}:{hook}", call, refusal))
        if hook in BEFORE_THE_RUN and self.stop_reason is not None:
            raise RlhfError(
                f"a plugin stopped the run before it began: {self.stop_reason}",
                where=f"hook {hook}",
                fix="do what it asks for, or run without it: --no-plugins",
            )
        return [result for result in results if result is not None]

    def call(
        self, listener: str, key: str, function: Callable[[], T], through: type[Exception] | tuple[()] = ()
    ) -> T | None:
        """Call one listener (hook, monitor or tracker): ``StopRun`` is noted, other exceptions logged and counted."""
        with time_limit("listener", listener):
            try:
                return function()
            except StopRun as stop:
                if self.stop_reason is None:
                    self.stop_reason = str(stop.reason) or f"{listener} gave no reason"
            except through:
                raise
            except (Exception, SystemExit) as error:
                self._failed(listener, key, error)
        return None

    def _failed(self, listener: str, key: str, error: BaseException) -> None:
        if self.strict:
            raise PluginError(
                f"{listener} raised {error_text(error)}", fix="fix the plugin, disable it, or drop --strict-plugins"
            ) from error
        self.errors[key] += 1
        if self.errors[key] > 1:
            return
        text = f"{listener} raised {error_text(error)}"
        if self.reports:
            log.warning("%s (later ones are only counted)", text, exc_info=error)
        else:
            self.unreported[key] = text

    def take(self) -> dict[str, tuple[str, int]]:
        """Key -> first text and count of what a bus that does not report has seen since the last call."""
        seen = {key: (self.unreported.get(key, ""), count) for key, count in (self.errors - self._taken).items()}
        self._taken = Counter(self.errors)
        return seen

    def add(self, seen: Mapping[str, tuple[str, int]], rank: int) -> None:
        """Count, and report unless it was, what another rank has seen."""
        for key, (text, count) in seen.items():
            if not self.errors[key]:
                log.warning("rank %d: %s (later ones are only counted)", rank, text)
            self.errors[key] += count

    def launch(self, event: Launch) -> int | None:
        """First non-None answer of ``rlhf_launch``."""
        event = frozen(event)
        for impl in reversed(self.manager.hook.rlhf_launch.get_hookimpls()):
            plugin = impl.plugin_name
            label = f"hook rlhf_launch of {plugin_label(plugin)}"
            try:
                code: Any = impl.function(**({"event": event} if impl.argnames else {}))
            except (Exception, SystemExit) as error:
                raise RlhfError(
                    f"{label} raised {error_text(error)}",
                    fix=f"fix it, or run: rlhf plugins disable {plugin.split('/')[0]}",
                ) from error
            if code is not None:
                return code
        return None


def plugin_label(plugin: str) -> str:
    """How a hook plugin is named to people. Example: ``plugin 'acme-hooks/notify' (acme-hooks 1.2)``"""
    distribution = plugin.partition("/")[0]
    try:
        return f"plugin '{plugin}' ({distribution} {metadata.version(distribution)})"
    except metadata.PackageNotFoundError:
        return f"plugin '{plugin}'"


def load_hooks(
    *, enabled: bool = True, disabled: Sequence[str] = (), strict: bool = False, reports: bool = True
) -> HookBus:
    """Import hook plugins; one that cannot be used is counted and a warning, or an error if ``strict``."""
    bus = HookBus(HookManager(), strict, enabled, reports=reports)
    for entry in hook_points(disabled) if enabled else ():
        try:
            register(bus.manager, entry)
        except PluginError as problem:
            if strict:
                raise
            bus.errors[f"{entry.qualified}:import"] += 1
            if reports:
                log.warning("%s", problem)
    return bus


class HookManager(pluggy.PluginManager):
    """Leaves off the hooks of a plugin that could not work, one by one, and says why."""

    def __init__(self) -> None:
        super().__init__("rlhf")
        self.add_hookspecs(Specs)
        self.left_off: list[str] = []

    def parse_hookimpl_opts(self, plugin: object, name: str) -> Any:
        """Marks of a method that is a hook and can be one; None for others."""
        options, function = super().parse_hookimpl_opts(plugin, name), getattr(plugin, name)
        if options is None and not (name in HOOK_NAMES and callable(function)):
            return None
        problem = _hook_problem(function, name, options)
        if problem:
            self.left_off.append(f"{name}: {problem}")
        return None if problem else options


def _hook_problem(function: Any, name: str, options: Any) -> str:
    """Why a method would never be called, or could not be; "" if it is a hook."""
    if options is None:
        return "it is not marked with @hookimpl"
    if (hook := options["specname"] or name) not in HOOK_NAMES:
        return f"there is no such hook; {did_you_mean(hook, HOOK_NAMES) or 'there are: ' + ', '.join(HOOK_NAMES)}"
    if options["wrapper"] or options["hookwrapper"]:  # it could change what others return
        return "it is a wrapper; listeners observe and do not wrap"
    known = pluggy.HookImpl(None, name, getattr(Specs, hook), options).argnames
    unknown = set(pluggy.HookImpl(None, name, function, options).argnames) - set(known)
    return f"it asks for {', '.join(sorted(unknown))}; it gets {', '.join(known)}" if unknown else ""


def hook_points(disabled: Sequence[str] = ()) -> list[Entry]:
    """Every hook plugin that is not switched off, by distribution and name; nothing is imported."""
    return sorted(entries_of(GROUP, set(map(normalise, disabled))), key=lambda entry: (entry.distribution, entry.name))


def register(manager: HookManager, entry: Entry) -> list[str]:
    """Import one hook plugin, and return the names of the hooks it implements.

    Raises:
        PluginError: it cannot be used, or some of its hooks cannot; the others of them listen all the same.
    """
    fix = f"fix or upgrade it, or run: rlhf plugins disable {entry.distribution}"
    plugin = load_entry(entry, f"hook {plugin_label(entry.qualified)}", fix)
    with foreign_code(f"hook {plugin_label(entry.qualified)} cannot be used", entry.where, fix):
        return register_plugin(manager, plugin, entry.qualified)


def register_plugin(manager: HookManager, plugin: object, name: str) -> list[str]:
    """Add an imported hook plugin, and return the names of the hooks it implements.

    Raises:
        TypeError: some of its hooks are left off; lists them.
    """
    manager.left_off = []
    manager.register(plugin, name=name)
    names = [caller.name for caller in manager.get_hookcallers(plugin) or []]
    if manager.left_off:
        others = f" (the others listen: {', '.join(names)})" if names else ""
        raise TypeError("; ".join(manager.left_off) + others)
    return names
