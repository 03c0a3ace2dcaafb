"""`rlhf plugins new --into`: a component is added to a package of any common layout, and nothing else changes."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

import pytest

from rlhf_core.cli.main import main
from rlhf_core.types.errors import UserError
from rlhf_testing.scaffold.into import write_into

from .conftest import ROOT, call, environment, inside, install

HATCH = """\
[build-system]
requires = ["hatchling>=1.25"]
build-backend = "hatchling.build"

[project]
name = "acme-things"  # ours
version = "0.3"
dependencies = [
    "numpy>=1.26",  # arrays
]

[project.entry-points."rlhf.loss"]
old = "acme_things.old:OldConfig"

[tool.hatch.build.targets.wheel]
packages = ["src/acme_things"]
"""
SETUPTOOLS = """\
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"
[project]
name = "acme-things"
version = "0.3"
dependencies = ["numpy"]
[tool.setuptools]
packages = ["acme_things"]
"""
POETRY = """\
[tool.poetry]
name = "acme-things"
version = "0.3"

[tool.poetry.dependencies]
python = "^3.11"

[tool.poetry.plugins."rlhf.loss"]
"old" = "acme_things.old:OldConfig"
"""
FLIT = (
    '[project]\nname = "acme-things"\nversion = "0.3"\ndependencies = []\n\n[build-system]\nrequires = ["flit_core"]\n'
)
LAYOUTS = {"hatch": (HATCH, "src"), "setuptools": (SETUPTOOLS, ""), "poetry": (POETRY, ""), "flit": (FLIT, "")}


def package(folder: Path, text: str, root: str = "", name: str = "acme_things") -> Path:
    place = folder / root / name
    place.mkdir(parents=True)
    (place / "__init__.py").write_text("")
    (place / "old.py").write_text("")
    (folder / "pyproject.toml").write_bytes(text.encode())
    return folder


@pytest.mark.parametrize("layout", LAYOUTS)
def test_only_what_is_needed_is_added(layout: str, tmp_path: Path) -> None:
    text, root = LAYOUTS[layout]
    folder = package(tmp_path, text, root)
    added = write_into("my-loss", "loss", folder)
    changed = (folder / "pyproject.toml").read_text()
    data = tomllib.loads(changed)
    poetry = layout == "poetry"
    points = data["tool"]["poetry"]["plugins"] if poetry else data["project"]["entry-points"]
    assert points["rlhf.loss"]["my_loss"] == "acme_things.my_loss.config:MyLossConfig"
    assert "old" in points["rlhf.loss"] or layout in ("setuptools", "flit")
    required = data["tool"]["poetry"]["dependencies"] if poetry else " ".join(data["project"]["dependencies"])
    assert "rlhf-core" in required
    assert "torch" in required
    lists = ("dependencies = [", "packages = [")
    old = [line for line in text.splitlines() if line and not line.startswith(lists)]
    assert [line for line in changed.splitlines() if line in old] == old
    assert added.notes == []
    assert (folder / root / "acme_things" / "my_loss" / "loss.py").is_file()
    assert added.test == folder / "tests" / "test_my_loss.py"
    assert "from acme_things.my_loss.config import MyLossConfig" in added.test.read_text()
    if layout == "setuptools":
        assert data["tool"]["setuptools"]["packages"] == ["acme_things.my_loss", "acme_things"]


def test_a_second_component_joins_the_first(tmp_path: Path) -> None:
    folder = package(tmp_path, HATCH, "src")
    write_into("my-loss", "loss", folder)
    before = tomllib.loads((folder / "pyproject.toml").read_text())["project"]["dependencies"]
    write_into("my-hooks", "hook", folder)
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["rlhf"] == {"my_hooks": "acme_things.my_hooks.hooks:hooks"}
    assert project["dependencies"] == before


def test_windows_line_ends_are_kept(tmp_path: Path) -> None:
    folder = package(tmp_path, HATCH.replace("\n", "\r\n"), "src")
    write_into("my-loss", "loss", folder)
    changed = (folder / "pyproject.toml").read_bytes()
    assert changed.count(b"\n") == changed.count(b"\r\n")
    tomllib.loads(changed.decode())


REFUSED = {
    "no pyproject": (None, "has no pyproject.toml"),
    "broken": ("[project\n", "cannot be read"),
    "dynamic": (FLIT.replace("dependencies = []", 'dynamic = ["entry-points"]'), "entry-points are dynamic"),
    "inline": (FLIT.replace("dependencies", 'entry-points = {"rlhf.loss" = {}}\ndependencies'), "written in one line"),
    "no project": ("[tool.black]\n", "has no [project] table"),
    "taken": (HATCH.replace("old =", "my_loss ="), "has a rlhf.loss 'my_loss' already"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_changed_is_refused_untouched(case: str, tmp_path: Path) -> None:
    text, said = REFUSED[case]
    folder = package(tmp_path, text or "")
    if text is None:
        (folder / "pyproject.toml").unlink()
    before = {f: f.read_bytes() for f in tmp_path.rglob("*") if f.is_file()}
    with pytest.raises(UserError) as caught:
        write_into("my-loss", "loss", folder)
    assert said in str(caught.value)
    assert {f: f.read_bytes() for f in tmp_path.rglob("*") if f.is_file()} == before


def test_which_package_must_be_clear(tmp_path: Path) -> None:
    folder = package(tmp_path, FLIT.replace("acme-things", "other"))
    (folder / "second").mkdir()
    (folder / "second" / "__init__.py").write_text("")
    with pytest.raises(UserError, match="several packages"):
        write_into("my-loss", "loss", folder)


def test_the_command_says_what_it_wrote(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = package(tmp_path, FLIT)
    with pytest.raises(SystemExit) as done:
        main(["plugins", "new", "my-loss", "--kind", "loss", "--into", str(folder)])
    assert done.value.code == 0
    assert "tests/test_my_loss.py" in capsys.readouterr().out
    with pytest.raises(SystemExit) as done:
        main(["plugins", "new", "my-loss", "--kind", "loss", "--into", str(folder)])
    assert done.value.code == 2
    assert "exists already" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["hatch", pytest.param("setuptools", marks=pytest.mark.long)])
def test_the_package_installs_and_its_new_tests_pass(layout: str, other_python: str, tmp_path: Path) -> None:
    text, root = LAYOUTS[layout]
    name = f"acme_{layout}"
    text = text.replace("acme-things", name).replace("acme_things", name).replace(f'old = "{name}.old:OldConfig"\n', "")
    folder = package(tmp_path / name, text, root, name)
    for kind in ("advantage", "hook", "judge"):
        write_into(f"{layout}-{kind}", kind, folder)
    install(other_python, folder)
    out = call(
        inside(other_python, "pytest", "-q", "--import-mode=importlib", "-p", "no:cacheprovider", "tests"),
        env=environment(PYTHONPATH=str(ROOT)),
        cwd=folder,
    )
    call([sys.executable, "-m", "pip", "--python", other_python, "uninstall", "-q", "-y", name])
    assert out.returncode == 0, out.stdout[-3000:]
