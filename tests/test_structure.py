"""The repository keeps its own structure rules, and each rule finds what it is for."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PLUGIN = '[project]\nname = "rlhf-plugin-a"\ndependencies = ["rlhf-core>=0.1"]\n'


def run(*checks: str, root: Path = ROOT) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "scripts.check", *checks, "--root", str(root)]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)


@pytest.mark.long
def test_repository_passes() -> None:
    out = run()
    assert out.returncode == 0, out.stdout + out.stderr


@pytest.mark.parametrize(
    ("check", "file", "text", "found"),
    [
        ("imports", "rlhf_core/x.py", "import rlhf_plugin_a\n", "the core imports no plugin"),
        ("imports", "plugins/a/rlhf_plugin_a/x.py", "def f():\n    from rlhf_core import plan\n", "a plugin uses"),
        ("imports", "plugins/a/rlhf_plugin_a/x.py", "import rlhf_plugin_b.y\n", "does not depend on rlhf-plugin-b"),
        ("imports", "plugins/a/rlhf_plugin_a/x.py", "from rlhf_core.data.atomic import write_json\n", "a plugin uses"),
        ("imports", "plugins/a/rlhf_plugin_a/x.py", "import rlhf_core.training.functional\n", "a plugin uses"),
        ("imports", "plugins/a/rlhf_plugin_a/x.py", "from rlhf_core.data import Nothing\n", "no public rlhf_core.data"),
        ("cycles", "rlhf_core/x.py", "def f():\n    from rlhf_core import x\n", "rlhf_core.x -> rlhf_core.x"),
        ("cycles", "plugins/a/rlhf_plugin_a/x.py", "from . import x\n", "rlhf_plugin_a.x -> rlhf_plugin_a.x"),
        ("imports", "extensions/study/x.py", "from rlhf_core.plugins.registry import Registry\n", "a plugin uses"),
        ("sizes", "rlhf_core/x.py", "x = 1\n" * 401, "401 lines"),
        ("paths", "docs/x.md", "see " + "/home" + "/ann/models\n", "absolute path"),
        ("configs", "configs/x.yaml", "trainer: {name: no_such_algorithm}\n", "no_such_algorithm"),
    ],
)
def test_check_finds(tmp_path: Path, check: str, file: str, text: str, found: str) -> None:
    for name in ("a", "b"):
        (tmp_path / "plugins" / name).mkdir(parents=True)
        (tmp_path / "plugins" / name / "pyproject.toml").write_text(PLUGIN.replace("plugin-a", f"plugin-{name}"))
    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / file).write_text(text)
    out = run(check, root=tmp_path)
    assert out.returncode == 1, out.stdout + out.stderr
    assert found in out.stdout


def test_paths_may_lie_in_the_temporary_folder(tmp_path: Path) -> None:
    (tmp_path / "x.py").write_text("open(f'/tmp/{name}')\n")
    assert run("paths", root=tmp_path).returncode == 0
    (tmp_path / "x.py").write_text("open('/tmp" + "/ann/notes')\n")
    assert run("paths", root=tmp_path).returncode == 1


def test_imports_for_type_checking_make_no_circle(tmp_path: Path) -> None:
    core = tmp_path / "rlhf_core"
    core.mkdir()
    typing = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from rlhf_core.y import B\n"
    (core / "x.py").write_text(typing)
    (core / "y.py").write_text("def f():\n    from rlhf_core.x import A\n")
    assert run("cycles", root=tmp_path).returncode == 0
    (core / "x.py").write_text("from rlhf_core.y import B\n")
    out = run("cycles", root=tmp_path)
    assert "rlhf_core.x -> rlhf_core.y -> rlhf_core.x" in out.stdout
    assert out.stdout.count("->") == 2


def test_the_core_has_at_most_two_circles_of_imports_for_typing(tmp_path: Path) -> None:
    core = tmp_path / "rlhf_core"
    core.mkdir()
    for number in range(3):
        assert run("cycles", root=tmp_path).returncode == 0
        text = f"from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from rlhf_core.y{number} import B\n"
        (core / f"x{number}.py").write_text(text)
        (core / f"y{number}.py").write_text(f"from rlhf_core.x{number} import A\n")
    out = run("cycles", root=tmp_path)
    assert out.returncode == 1
    assert "a circle of imports for typing: rlhf_core.x2, rlhf_core.y2" in out.stdout


def test_public_imports_and_declared_dependencies_pass(tmp_path: Path) -> None:
    folder = tmp_path / "plugins" / "a" / "rlhf_plugin_a"
    folder.mkdir(parents=True)
    (folder.parent / "pyproject.toml").write_text(PLUGIN)
    public = "from rlhf_core.rewards import Score\nfrom rlhf_core.models import load_policy\n"
    (folder / "x.py").write_text(public + "from rlhf_plugin_a.y import z\nimport torch\n")
    assert run("imports", root=tmp_path).returncode == 0


@pytest.mark.slow
def test_a_grpo_step_stays_within_its_files_functions_and_frames() -> None:
    command = [sys.executable, "-m", "scripts.check.step_path"]
    out = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert out.returncode == 0, out.stdout + out.stderr
