"""What distributions declare in their metadata; nothing of them is imported."""

from __future__ import annotations

import functools
import json
import os
import re
import sys
from collections.abc import Callable, Collection, Generator, Iterable, Iterator
from contextlib import contextmanager, redirect_stdout
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from rlhf_core._version import __version__
from rlhf_core.plugins.component_calls import StageTimeout
from rlhf_core.types.errors import ConfigError, PluginError, UserError, error_text

if TYPE_CHECKING:
    from packaging.requirements import Requirement

VARIABLE = "RLHF_DISABLE_PLUGINS"
"""Environment variable with further names, comma separated."""


def normalise(name: str) -> str:
    """Distribution name as PEP 503 spells it: ``My_Plugin`` and ``my-plugin`` are one."""
    return re.sub(r"[-_.]+", "-", name.strip()).lower()


def settings_path() -> Path:
    """Where the list is kept: ``$RLHF_HOME/plugins.json``, by default under ``~/.config/rlhf``."""
    home = os.environ.get("RLHF_HOME") or Path.home() / ".config" / "rlhf"
    return Path(home) / "plugins.json"


def disabled_distributions() -> list[str]:
    """Names switched off in the settings file or in ``RLHF_DISABLE_PLUGINS``."""
    names = [n for n in os.environ.get(VARIABLE, "").split(",") if n.strip()]
    return sorted({*map(normalise, names), *stored_names()})


def stored_names() -> list[str]:
    """Names switched off in the settings file."""
    path = settings_path()
    if not path.is_file():
        return []
    try:
        return sorted({normalise(str(name)) for name in json.loads(path.read_text()).get("disabled", [])})
    except (OSError, ValueError, AttributeError, TypeError) as error:
        raise ConfigError(
            f"the list of disabled plugins '{path}' cannot be read",
            why=error_text(error),
            fix="correct or remove that file",
        ) from error


def set_disabled(names: list[str]) -> Path:
    """Write the list and return its path."""
    path = settings_path()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"disabled": sorted({normalise(n) for n in names})}, indent=2) + "\n")
    return path


CORE = "rlhf-core"


class Entry(NamedTuple):
    """What a distribution's metadata declares: a component, a command or a hook; nothing is imported."""

    distribution: str
    """Its normalised name."""
    version: str
    point: metadata.EntryPoint

    @property
    def kind(self) -> str:
        """Kind of component, ``command`` or ``hook``."""
        return "hook" if self.point.group == "rlhf" else self.point.group.removeprefix("rlhf.")

    @property
    def name(self) -> str:
        """Name of the entry point."""
        return self.point.name

    @property
    def value(self) -> str:
        """``module:attribute``."""
        return self.point.value

    @property
    def where(self) -> str:
        """For messages."""
        return f"{self.distribution} {self.version}, entry point {self.value}"

    @property
    def qualified(self) -> str:
        """Example: ``rlhf-plugin-grpo/grpo_clip``"""
        return f"{self.distribution}/{self.name}"

    def describe(self) -> dict[str, str]:
        """JSON row, used in plans and listings."""
        return {name: getattr(self, name) for name in ("kind", "name", "distribution", "version", "value")}


def scan() -> tuple[Entry, ...]:
    """Every entry point, from metadata, which is read again when a folder of ``sys.path`` has changed; none twice."""
    return _scan(tuple((folder, _changed_at(folder)) for folder in sys.path))


def _changed_at(folder: str) -> int:
    try:
        return os.stat(folder or ".").st_mtime_ns
    except OSError:
        return 0


@functools.lru_cache(maxsize=4)
def _scan(folders: tuple[tuple[str, int], ...]) -> tuple[Entry, ...]:
    declared: dict[str, Iterable[Entry]] = {}
    for dist in metadata.distributions(path=[folder for folder, _ in folders]):
        text = dist.read_text("entry_points.txt")
        if not text or "[rlhf" not in text:
            continue
        fields = dist.metadata  # parsed anew each time it is asked for
        name, version = normalise(fields["Name"]), fields["Version"]
        if name not in declared:
            declared[name] = [Entry(name, version, point) for point in dist.entry_points]
    return tuple(row for rows in declared.values() for row in rows)


def entries_of(group: str, disabled: Collection[str] = ()) -> list[Entry]:
    """What distributions that are not ``disabled`` declare in a group, sorted; nothing is imported."""
    rows = [entry for entry in scan() if entry.point.group == group and entry.distribution not in disabled]
    return sorted(rows, key=lambda e: (e.name, e.distribution))


@contextmanager
def foreign_code(
    what: str, where: str, fix: str, refusal: type[UserError] = PluginError
) -> Generator[None, None, None]:
    """Run what is not the toolkit's own, such as a user's module as it is imported. Ctrl-C and a deadline of the run
    pass; all else that it raises, ``sys.exit`` included, is one error.

    Args:
        what: what cannot be done; the exception follows.
        where: the file, or distribution and version.
        fix: what to do about it.
        refusal: class of the error.

    Raises:
        UserError: the code inside raised anything.
    """
    try:
        with redirect_stdout(sys.stderr):  # stdout may be a command's JSON
            yield
    except (KeyboardInterrupt, StageTimeout):
        raise
    except BaseException as error:
        raise refusal(f"{what}: {error_text(error)}", where=where, fix=fix) from error


def load_entry(entry: Entry, what: str, fix: str, load: Callable[[], Any] | None = None) -> Any:
    """Import what an entry point names, or call ``load``, which imports something else of its distribution. Nothing
    else imports code of plugins, and nothing is imported of one that asks for another core. ``what`` and ``fix`` are
    for the error.
    """
    check_core_range(entry)
    with foreign_code(f"{what} cannot be loaded", entry.where, fix):
        return (load or entry.point.load)()


def brought_by(kind: str, name: str) -> str:
    """The distribution released with the core that has a component, command or model of a name; "" if none has."""
    shipped: dict[str, str] = json.loads(Path(__file__).with_name("shipped.json").read_text()).get(kind, {})
    wanted = normalise(name.rpartition("/")[2])
    return next((distribution for own, distribution in shipped.items() if normalise(own) == wanted), "")


def scheduling(name: str) -> list[Entry]:
    """The parts of installed plugins of a name in the entry-point group ``rlhf.schedule``."""
    return [entry for entry in entries_of("rlhf.schedule", disabled_distributions()) if entry.name == name]


def scheduler(name: str, setting: str) -> Callable[[], Any]:
    """What imports the part of a plugin that a setting needs (entry-point group ``rlhf.schedule``).

    Raises:
        PluginError: no installed plugin has it, or several have.
    """
    entries = scheduling(name)
    if len(entries) > 1:
        several = " and ".join(entry.distribution for entry in entries)
        raise PluginError(f"{several} both do what {setting} says", fix="rlhf plugins disable all but one")
    if not entries:
        distribution = brought_by("schedule", name)
        raise PluginError(
            f"{setting} needs {distribution}",
            why="it is not installed, or disabled",
            fix=f"pip install {distribution}, or enable it: rlhf plugins enable {distribution}",
        )
    return lambda: load_entry(entries[0], setting, "reinstall it, or leave the setting out")


def required_distributions(distribution: str, extra: str = "") -> list[str]:
    """Names of what an installed distribution requires, in its order; none if it is not installed."""
    try:
        lines = metadata.requires(distribution) or ()
    except metadata.PackageNotFoundError:
        return []
    return [normalise(r.name) for r in _requirements(lines, extra)]


def _requirements(lines: Iterable[str], extra: str = "") -> Iterator[Requirement]:
    from packaging.requirements import Requirement

    rows = map(Requirement, lines)
    return (row for row in rows if row.marker is None or row.marker.evaluate({"extra": extra}))


def check_core_range(entry: Entry) -> None:
    """Refuse an entry whose distribution asks for another rlhf-core."""
    if entry.distribution == CORE:
        return
    lines = (entry.point.dist.requires if entry.point.dist else metadata.requires(entry.distribution)) or ()
    near = [line for line in lines if normalise(line).startswith(CORE)]  # most lines are not worth parsing
    for row in _requirements(near):
        if normalise(row.name) == CORE and not row.specifier.contains(__version__, prereleases=True):
            raise PluginError(
                f"{entry.kind} '{entry.name}' needs rlhf-core{row.specifier}, but {__version__} is installed",
                where=f"{entry.distribution} {entry.version}",
                fix=f"pip install -U {entry.distribution} rlhf-core",
            )


def distribution_of(module: str, attribute: str) -> str:
    """Name and version of the distribution that declares ``module:attribute``, or else its package; "" if none does."""
    package = module.partition(".")[0]
    near = ""
    for distribution, version, point in scan():
        if point.value == f"{module}:{attribute}":
            return f"{distribution} {version}"
        if not near and point.module.partition(".")[0] == package:
            near = f"{distribution} {version}"
    return near
