"""Fills the templates of one kind into a new folder."""

from __future__ import annotations

import keyword
import re
import shutil
import tempfile
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from importlib.metadata import version
from importlib.resources.abc import Traversable
from pathlib import Path
from string import Template

from rlhf_core.config import UserError, did_you_mean

PREFIX = "rlhf-plugin-"


@dataclass(frozen=True)
class Names:
    distribution: str
    module: str
    component: str
    stem: str


def names_for(typed: str) -> Names:
    """Derive every name; the prefix ``rlhf-plugin-`` is added unless it is there."""
    if not re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?", typed):
        raise UserError(
            f"'{typed}' cannot name a package",
            why="letters, digits and single - _ . between them",
            fix=suggestion(typed),
        )
    base = re.sub(r"[-_.]+", "-", typed).lower().removeprefix(PREFIX)
    component = base.replace("-", "_")
    if not component.isidentifier() or keyword.iskeyword(component) or base == PREFIX.strip("-"):
        raise UserError(
            f"'{typed}' cannot name a component",
            why=f"'{component}' is a Python keyword"
            if keyword.iskeyword(component)
            else "it must begin with a letter, as a Python module does",
            fix=f"for example my-{base}",
        )
    stem = "".join(part[:1].upper() + part[1:] for part in component.split("_"))
    return Names(PREFIX + base, (PREFIX + base).replace("-", "_"), component, stem)


def suggestion(typed: str) -> str:
    """A valid name near to what was typed."""
    plain = re.sub(r"[^a-z0-9]+", "-", typed.lower()).strip("-")
    return f"for example {plain}" if plain[:1].isalpha() else "for example my-loss"


ENDING = ".tmpl"
NEEDS: Mapping[str, Sequence[str]] = tomllib.loads(Path(__file__).with_name("needs.toml").read_text())
ENTRY_POINTS = """[project.entry-points."rlhf.$kind"]
$component = "$module.config:${stem}Config"
"""
"""Of a kind without an ``entry_points.txt``."""


def write_package(name: str, kind: str, parent: Path) -> Path:
    """Write a package with one component of ``kind``, tests and README; return its folder ``rlhf-plugin-NAME``."""
    names = names_for(name)
    check_kind(kind)
    folder = parent.expanduser() / names.distribution
    if folder.exists():
        raise UserError(
            f"'{folder}' exists already",
            why="an existing folder is never overwritten",
            fix="choose another name or --dir, or remove it yourself",
        )
    try:
        parent.expanduser().mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as aside:
            shutil.copytree(fill(names, kind, Path(aside) / names.distribution), folder)
    except OSError as error:
        raise UserError(f"'{folder}' cannot be written", why=str(error), fix="choose another --dir") from error
    return folder


def check_kind(kind: str) -> None:
    if kind not in kinds():
        raise UserError(
            f"there is no template for kind '{kind}'",
            fix=did_you_mean(kind, kinds()) or f"one of: {', '.join(kinds())}",
        )


def kinds() -> tuple[str, ...]:
    return tuple(sorted(d.name for d in templates().iterdir() if d.is_dir() and d.name != "common"))


def templates() -> Traversable:
    """The folder of templates, wherever the package is installed."""
    return resources.files("rlhf_testing.scaffold") / "templates"


def fill(names: Names, kind: str, folder: Path) -> Path:
    """Write every file and return the folder."""
    values = substitutions(names, kind)
    for part in ("common", kind):
        for source in files(templates() / part):
            target = folder / target_path(source.name.removesuffix(ENDING), names)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(Template(source.read_text(encoding="utf-8")).substitute(values), encoding="utf-8")
    return folder


def render(names: Names, kind: str) -> tuple[dict[str, str], str, str]:
    """What a kind's templates come to inside a package: its modules by file name, the test, and the entry points."""
    values = substitutions(names, kind)
    texts = {
        f.name.removesuffix(ENDING): Template(f.read_text(encoding="utf-8")).substitute(values)
        for f in files(templates() / kind)
    }
    test = texts.pop("test_component.py")
    return {"__init__.py": f'"""{values["about"]}."""\n', **texts}, test, values["entry_points"]


def needs(kind: str) -> list[str]:
    """Requirements of a kind's template, the core's first."""
    major, minor = (int(p) for p in version("rlhf-core").split(".")[:2])
    return [f"rlhf-core>={major}.{minor},<{major}.{minor + 1}", *NEEDS.get(kind, ())]


def files(folder: Traversable) -> Iterator[Traversable]:
    return (f for f in sorted(folder.iterdir(), key=lambda f: f.name) if f.name.endswith(ENDING))


def target_path(file: str, names: Names) -> str:
    """Where a file goes: tests under ``tests/``, modules in the package, the rest on top."""
    if file.startswith("test_"):
        return f"tests/{file.replace('component', names.component)}"
    return f"{names.module}/{file}" if file.endswith(".py") else file


def substitutions(names: Names, kind: str) -> dict[str, str]:
    base = {
        "distribution": names.distribution,
        "module": names.module,
        "component": names.component,
        "stem": names.stem,
        "kind": kind,
        "needs": ", ".join(f'"{n}"' for n in needs(kind)),
    }
    about, _, use = Template(read(kind, "about.txt")).substitute(base).partition("\n\n")
    entry_points = Template(read(kind, "entry_points.txt") or ENTRY_POINTS).substitute(base)
    modules = [f for f in files(templates() / kind) if f.name.endswith(f".py{ENDING}") and "test_" not in f.name]
    rows = "".join(f"| `{names.module}/{f.name.removesuffix(ENDING)}` | {summary(f)} |\n" for f in modules)
    look = look_at(names, kind)
    more = {
        "look": look,
        "about": about.strip(),
        "use": use.strip(),
        "entry_points": entry_points.strip(),
        "modules": rows,
    }
    return {**base, **more}


def look_at(names: Names, kind: str) -> str:
    if kind == "command":
        return f"rlhf {names.component} --help"
    return f"rlhf plugins check {names.distribution}" if kind == "hook" else f"rlhf plugins info {names.component}"


def summary(module: Traversable) -> str:
    """First sentence of a template's docstring."""
    return module.read_text(encoding="utf-8").splitlines()[0].strip('"').split(". ")[0].rstrip(".")


def read(kind: str, name: str) -> str:
    """A text beside a kind's templates; "" if it has none of that name."""
    file = templates() / kind / name
    return file.read_text(encoding="utf-8") if file.is_file() else ""
