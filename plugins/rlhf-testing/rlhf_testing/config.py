"""What every component's Config promises, whatever its kind."""

from __future__ import annotations

import functools
import inspect
import json
import os
import pickle
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from rlhf_core.config import BuildContext, ComponentConfig, PluginError, Registry, RlhfError
from rlhf_core.plugins import protocols
from rlhf_core.plugins.component import arguments, import_component
from rlhf_core.plugins.registry import METHODS, PROTOCOLS, check_component
from rlhf_testing.report import require

HEAVY = ("torch", "transformers", "datasets", "accelerate", "peft")
IMPORTER = """
import importlib, json, os, signal, sys, traceback
import rlhf_core.plugins.component

replies = os.fdopen(os.dup(1), "w", buffering=1)
os.dup2(2, 1)  # what a module prints is no reply
for module in map(str.strip, sys.stdin):
    if os.fork() == 0:
        signal.alarm(120)
        problem = ""
        try:
            importlib.import_module(module)
        except BaseException:
            problem = f"{module} cannot be imported on its own: {traceback.format_exc()[-800:]}"
        if heavy := [name for name in sys.argv[1:] if name in sys.modules]:
            problem = problem or f"{module} imports {' '.join(heavy)}"
        print(json.dumps(problem), file=replies)
        os._exit(0)
    if code := os.waitstatus_to_exitcode(os.wait()[1]):
        print(json.dumps(f"importing {module} ended its process with {code}"), file=replies)
"""


def check_config(config: ComponentConfig, kind: str = "") -> None:
    """Check a Config: strict, frozen, JSON and pickle round trips, ``component``, light import, entry-point name.

    Args:
        config: an instance with the settings to check.
        kind: the component's kind; with it the entry point that names the class is checked too.
    """
    check_strict(config)
    check_round_trips(config)
    check_build_signature(config)
    check_entry_name(config, kind)
    check_light_import(config)


def check_strict(config: ComponentConfig) -> None:
    """Unknown keys are refused and a built configuration cannot change."""
    data = config.model_dump(mode="json")
    try:
        _validate(config, {**data, "no_such_setting_": 1})
        refused = False
    except (ValidationError, RlhfError):
        refused = True
    rule = "an unknown setting is refused"
    require(refused, config, rule, "no_such_setting_=1 was accepted", "do not override model_config's extra='forbid'")
    try:
        setattr(config, "name", config.name)  # noqa: B010
        frozen = False
    except (ValidationError, TypeError, AttributeError):
        frozen = True
    rule = "a Config is frozen"
    require(frozen, config, rule, "config.name = ... succeeded", "do not override model_config's frozen=True")


def check_round_trips(config: ComponentConfig) -> None:
    """A plan's JSON and a pickle both give the same configuration back."""
    try:
        again: Any = _validate(config, config.model_dump(mode="json"))
    except Exception as error:
        again = f"{type(error).__name__}: {error}"
    fix = "use JSON-friendly field types, and validators that accept their own output"
    require(again == config, config, "the configuration survives JSON", f"{again!r} instead of {config!r}", fix)
    try:
        again = pickle.loads(pickle.dumps(config))
    except Exception as error:
        again = f"{type(error).__name__}: {error}"
    fix = "define the class at the top of its module and keep fields to plain values"
    require(again == config, config, "the configuration survives pickling", f"{again!r} instead of {config!r}", fix)


def _validate(config: ComponentConfig, data: Mapping[str, Any]) -> ComponentConfig:
    return type(config).model_validate(data, context={"registry": Registry(disabled=())})


def check_component_string(config: ComponentConfig) -> None:
    """``component`` names something that can be called with the config, or with config and context."""
    try:
        target = import_component(type(config))
        inspect.signature(target).bind(*arguments(target, config, None))
        problem = ""
    except (PluginError, TypeError) as error:
        problem = f"{error}"
    rule = "the component can be imported, and called with the config or with config and context"
    fix = 'component: ClassVar[str] = "package.module:Class", whose __init__(self, config) takes the Config'
    require(not problem, config, rule, problem, fix)


def check_build_signature(config: ComponentConfig) -> None:
    """The Config has a ``component`` that resolves, or a ``build`` of its own that takes the context."""
    if type(config).build is ComponentConfig.build and config.component:
        check_component_string(config)
        return
    seen = "it has neither a component string nor a build(self, ctx)"
    fix = 'component: ClassVar[str] = "package.module:Class"'
    require(type(config).build is not ComponentConfig.build, config, "the Config says what it builds", seen, fix)
    try:
        inspect.signature(config.build).bind(None)
        problem = ""
    except TypeError as error:
        problem = f"build{inspect.signature(config.build)}: {error}"
    require(
        not problem, config, "build can be called as config.build(ctx)", problem, "def build(self, ctx: BuildContext)"
    )


def check_entry_name(config: ComponentConfig, kind: str) -> None:
    """The default ``name`` is the one that the installed entry point has."""
    if not kind:
        return
    value = f"{type(config).__module__}:{type(config).__qualname__}"
    names = [e.name for e in Registry(disabled=()).entries(kind) if e.value == value]
    rule, fix = "the Config's name is its entry point's", f"name: str = {names[0]!r}" if names else ""
    require(not names or config.name in names, config, rule, f"entry point {names}, name {config.name!r}", fix)


def check_light_import(config: ComponentConfig) -> None:
    """Importing the Config's module after the core's own, in a process for it alone, brings in no heavy library."""
    problem = light_import_problem(type(config).__module__)
    fix = "name the component in `component`, and put types under `if TYPE_CHECKING:`"
    require(not problem, config, "importing the Config is light", problem, fix)


def light_import_problem(module: str) -> str:
    """What keeps a module from being imported on its own without a heavy library; "" if nothing does."""
    return _imported_alone(module, os.pathsep.join(p for p in sys.path if p))


@functools.cache  # a module's components, and a component's settings, share one answer
def _imported_alone(module: str, path: str) -> str:
    importer = _importer(path)
    assert importer.stdin is not None
    assert importer.stdout is not None
    importer.stdin.write(f"{module}\n")
    importer.stdin.flush()
    reply = importer.stdout.readline()
    return json.loads(reply) if reply else "the process that imports has ended"


@functools.cache
def _importer(path: str) -> subprocess.Popen[str]:
    """A process that has imported what every Config needs, and forks for each module that it is asked to import."""
    env = {**os.environ, "PYTHONPATH": path}
    command = [sys.executable, "-c", IMPORTER, *HEAVY]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)


def built(config: ComponentConfig, kind: str, ctx: BuildContext) -> Any:
    """Build the component and check that it has the methods of its kind, with the right parameters."""
    component = config.build(ctx)
    try:
        check_component(kind, component, config.name)
        problem = ""
    except PluginError as error:
        problem = str(error)
    require(not problem, config, f"it builds a {kind}", problem)
    for method in METHODS[kind] if kind in PROTOCOLS else ():
        expected = list(inspect.signature(getattr(getattr(protocols, PROTOCOLS[kind]), method)).parameters)[1:]
        given = inspect.signature(getattr(component, method))
        try:
            given.bind(*expected)
            problem = ""
        except TypeError as error:
            problem = f"{method}{given}: {error}"
        rule = f"{method}({', '.join(expected)}) can be called as docs/reference/contracts.md says"
        require(not problem, config, rule, problem)
    return component
