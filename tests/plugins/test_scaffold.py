"""`rlhf plugins new` writes packages whose tests pass as soon as they are installed, for every kind."""

from __future__ import annotations

import re
import sys
import tomllib
import zipfile
from importlib import import_module
from pathlib import Path

import pytest

from rlhf_core.cli.main import main
from rlhf_core.models import ModelConfig
from rlhf_core.types.errors import UserError
from rlhf_testing.scaffold.write import kinds, names_for, write_package

from .conftest import ROOT, Commands, call, environment, inside, install

KINDS = (
    "advantage",
    "agent",
    "algorithm",
    "benchmark",
    "command",
    "dataset",
    "environment",
    "hook",
    "judge",
    "loop",
    "loss",
    "monitor",
    "optimizer",
    "reward",
    "reward-model",
    "rollout",
    "strategy",
    "tool",
    "tracker",
    "trainer",
    "verifier",
)


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory, other_python: str) -> dict[str, Path]:
    """One installed package of each kind."""
    parent = tmp_path_factory.mktemp("packages")
    made = {kind: write_package(f"kit-{kind}", kind, parent) for kind in KINDS}
    install(other_python, *made.values())
    return made


def test_every_kind_has_templates() -> None:
    assert kinds() == KINDS


@pytest.mark.slow
def test_tests_pass_from_birth(packages: dict[str, Path], other_python: str, tmp_path: Path) -> None:
    out = call(
        inside(
            other_python,
            "pytest",
            "-v",
            "--import-mode=importlib",
            "-p",
            "no:cacheprovider",
            *map(str, packages.values()),
        ),
        env=environment(PYTHONPATH=str(ROOT)),
        cwd=tmp_path,
    )
    assert out.returncode == 0, out.stdout[-4000:] + out.stderr[-2000:]
    for kind in KINDS:
        assert f"test_kit_{kind.replace('-', '_')}.py::test_conforms PASSED" in out.stdout


@pytest.mark.slow
@pytest.mark.usefixtures("packages")
def test_installed_components_are_listed_and_described(commands: Commands, tmp_path: Path) -> None:
    out = commands("plugins", "list", cwd=tmp_path)
    for kind in KINDS:
        listed = f"kit_{kind.replace('-', '_')}" in out.stdout and f"rlhf-plugin-kit-{kind}" in out.stdout
        assert listed, kind
    out = commands("kit_command", "--help", cwd=tmp_path)
    assert "one mean for each source" in out.stdout, out.stdout + out.stderr
    out = commands("plugins", "info", "kit_loss", cwd=tmp_path)
    assert "max_ratio = 2.0  Importance weights above this count as this." in out.stdout, out.stdout + out.stderr


def test_lint_is_clean(packages: dict[str, Path]) -> None:
    for folder in packages.values():
        out = call(
            [
                sys.executable,
                "-m",
                "ruff",
                "check",
                "--isolated",
                "--no-cache",
                "--line-length",
                "120",
                "--select",
                "E,F,W,I,UP,B,N",
                "--ignore",
                "N803,N806",
                ".",
            ],
            cwd=folder,
        )
        assert out.returncode == 0, out.stdout


def test_metadata_and_size(tmp_path: Path) -> None:
    folder = write_package("My.Loss", "loss", tmp_path / "new" / "place")
    assert folder == tmp_path / "new" / "place" / "rlhf-plugin-my-loss"
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    assert project["entry-points"] == {"rlhf.loss": {"my_loss": "rlhf_plugin_my_loss.config:MyLossConfig"}}
    assert "rlhf-core>=0.1,<0.2" in project["dependencies"]
    files = [folder / "rlhf_plugin_my_loss" / f for f in ("config.py", "loss.py")]
    code = [line for f in files for line in f.read_text().splitlines() if line.strip() and '"""' not in line]
    assert len(code) <= 26
    assert not [f for f in folder.rglob("*") if f.is_file() and "$" in f.read_text()]
    assert [f.name for f in folder.parent.iterdir()] == ["rlhf-plugin-my-loss"]


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_package_imports_is_among_its_requirements(kind: str, tmp_path: Path) -> None:
    folder = write_package("mine", kind, tmp_path)
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    needed = {"library": project["dependencies"], "tests": project["optional-dependencies"]["test"]}
    for file in folder.rglob("*.py"):
        imported = {*re.findall(r"(?:from|import) (rlhf_(?:plugin_[a-z_]+|testing))", file.read_text())}
        allowed = [*needed["library"], *(needed["tests"] if "tests" in file.parts else ())]
        names = {re.split(r"[<>=\[ ]", requirement)[0].replace("-", "_") for requirement in allowed}
        assert imported - {"rlhf_plugin_mine"} <= names, file


def test_a_reward_model_reads_answers_in_their_conversations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(write_package("answers", "reward-model", tmp_path)))
    net = import_module("rlhf_plugin_answers.net").ScorerNet(ModelConfig())
    question = [{"role": "user", "content": "What is 2 + 2?"}]
    ids = net.encode(question, "4")
    assert ids == (*net.formatter.encode(question), *net.formatter.encode_answer(question, "4"))


@pytest.mark.parametrize("name", ["", "a b", "../up", "-x", "x-", "class", "9lives", "é", "a/b"])
def test_unusable_names_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"cannot name"):
        write_package(name, "loss", tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_the_prefix_is_not_doubled() -> None:
    assert names_for("rlhf-plugin-my_loss") == names_for("my-loss")


def test_nothing_is_overwritten_and_the_exit_code_is_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    args = ["plugins", "new", "my-loss", "--kind", "loss", "--dir", str(tmp_path)]
    with pytest.raises(SystemExit) as done:
        main(args)
    assert done.value.code == 0
    assert "rlhf plugins info my_loss" in capsys.readouterr().out
    mine = tmp_path / "rlhf-plugin-my-loss" / "README.md"
    mine.write_text("mine")
    with pytest.raises(SystemExit) as done:
        main(args)
    assert done.value.code == 2
    assert "never overwritten" in capsys.readouterr().err
    assert mine.read_text() == "mine"


def test_readme_names_only_files_that_are_there(packages: dict[str, Path]) -> None:
    for folder in packages.values():
        named = re.findall(r"^\| `([^`]+)` \|", (folder / "README.md").read_text(), re.MULTILINE)
        assert len(named) >= 2
        assert all((folder / name).exists() for name in named), named


def test_templates_ship_in_the_wheel(tmp_path: Path) -> None:
    root = Path(__file__).parents[2] / "plugins" / "rlhf-testing"
    out = call([sys.executable, "-m", "build", "--wheel", "--no-isolation", "-o", str(tmp_path), str(root)])
    assert out.returncode == 0, out.stdout[-2000:] + out.stderr[-2000:]
    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as wheel:
        shipped = {n for n in wheel.namelist() if n.startswith("rlhf_testing/scaffold/templates/")}
    folder = root / "rlhf_testing" / "scaffold" / "templates"
    assert shipped == {f.relative_to(root).as_posix() for f in folder.rglob("*") if f.is_file()}


@pytest.mark.parametrize(("name", "kind", "owner"), [("ipo", "loss", "dpo"), ("ensemble", "reward-model", "reward")])
def test_the_name_of_an_installed_component_is_refused(
    name: str, kind: str, owner: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as done:
        main(["plugins", "new", name, "--kind", kind, "--dir", str(tmp_path)])
    assert done.value.code == 2
    assert f"rlhf-plugin-{owner} has a" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
