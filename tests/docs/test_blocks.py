"""Every command and every code block of the documentation is executed, or says why not."""

from __future__ import annotations

import re
import shutil
import sys
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import click
import pytest
import yaml

from rlhf_core.config.load import unfilled
from rlhf_core.plugins.registry import KINDS
from scripts.check.imports import TOPICS
from tests.docs.blocks import ALL, ROOT, Block, Command, blocks, commands
from tests.docs.place import reward_models, write_inputs
from tests.docs.rules import KEYS, NOT_RUN, TUTORIAL, small, way

COMMANDS = [command for block in ALL if block.language == "bash" for command in commands(block)]
PYTHON = [
    block
    for block in ALL
    if block.language == "python"
    and block.page not in ("docs/loss.md", "docs/optimizer.md", "docs/algorithm.md", TUTORIAL)
]
"""Those of the first loss are in tests/test_readme.py, those of the tutorial in test_tutorial.py."""
ELSEWHERE = [c for c in COMMANDS if c.words[0] == "rlhf" and way(c).kind not in ("run", "tutorial")]
FRAGMENTS = {
    "docs/plugin-authors.md": "from typing import ClassVar\nfrom pydantic import Field\n"
    + "".join(f"from {topic} import *\n" for topic in TOPICS),
    "docs/studies.md": "from collections.abc import Mapping\nfrom typing import Any, ClassVar\n",
}
"""Imports of pages whose blocks are parts of files."""
TRAINS = "docs/python.md"
RAN: set[tuple[str, ...]] = set()
"""Commands that succeeded on a page before; several pages have the same."""


def of(kind: str) -> list[str]:
    """Pages with commands of a kind."""
    return sorted({c.block.page for c in COMMANDS if way(c).kind == kind and c.words[0] == "rlhf"})


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files that commands name."""
    folder = tmp_path_factory.mktemp("place")
    write_inputs(folder)
    reward_models(folder)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("page", of("run"))
def test_commands_of_a_page_run(page: str, place: Path, call: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """``rlhf train`` as a dry run: everything before the model is loaded."""
    monkeypatch.chdir(place)
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    shutil.rmtree(place / "rlhf-plugin-my-loss", ignore_errors=True)
    for block in ALL:
        if block.page == page and block.title and not (place / block.title).exists():
            (place / block.title).write_text(block.text)
    for command in COMMANDS:
        if command.block.page == page and way(command).kind == "run" and command.words[0] == "rlhf":
            words = tuple(small(command)[1:])
            if words not in RAN:
                ran = call(*words)
                assert ran.code == 0, f"{command}\n{ran.err}"
                RAN.add(words)


def click_command(words: list[str]) -> tuple[click.Command, list[str]]:
    """The command that the words name, and its arguments."""
    from rlhf_core.cli.main import cli

    command: click.Command = cli
    rest = words[1:]
    while isinstance(command, click.Group) and rest and not rest[0].startswith("-"):
        child = command.get_command(click.Context(command), rest[0])
        if child is None:
            break
        command, rest = child, rest[1:]
    return command, rest


@pytest.mark.parametrize(
    "command", [c for c in COMMANDS if c.words[0] == "rlhf" and way(c).kind not in ("run", "tutorial")], ids=str
)
def test_options_of_a_command_that_is_not_run_here_exist(command: Command) -> None:
    found, rest = click_command(command.words)
    found.make_parser(click.Context(found)).parse_args(rest)


def test_what_pip_installs_is_here() -> None:
    projects = {
        tomllib.loads(f.read_text())["project"]["name"]: f
        for f in ROOT.rglob("pyproject.toml")
        if ".venv" not in f.parts
    }
    for command in COMMANDS:
        if command.words[0] == "pip":
            for word in command.words[2:]:
                name, _, extra = word.rstrip("]").partition("[")
                if word.startswith("-") or name == ".":
                    continue
                assert name in projects, command
                known = tomllib.loads(projects[name].read_text())["project"].get("optional-dependencies", {})
                assert not extra or extra in known, command


def test_scripts_that_are_named_exist() -> None:
    for command in COMMANDS:
        if command.words[:2] == ["python", "-m"]:
            module = command.words[2]
            if module.startswith("scripts"):
                path = ROOT / module.replace(".", "/")
                assert path.with_suffix(".py").exists() or path.is_dir(), command
        elif command.words[0] == "python" and command.words[1].endswith(".py"):
            assert (ROOT / command.words[1]).exists(), command


OTHER_YAML = {"criteria", "stages", "base", "benchmarks", "parameters"}
"""Keys of YAML that is no run's configuration: the plugins that read it have tests of their own files."""
FILLED = {"reward.name": "verifier", "trainer.steps": 1}
"""What a translated configuration leaves open -> a value."""


@pytest.mark.parametrize("block", [b for b in ALL if b.language == "yaml" and not b.reason], ids=str)
def test_yaml_is_a_valid_configuration(block: Block, place: Path, call: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a block leaves out, or open as ``???``, is filled: an algorithm, a data set, a reward."""
    monkeypatch.chdir(place)
    values = yaml.safe_load(block.text)
    if OTHER_YAML & set(values):
        return
    base = {"trainer": {"name": "grpo"}, "dataset": {"name": "pocket", "subset": "arithmetic"}, "reward": "verifier"}
    if "name" in values.get("dataset", {}) or "sources" in values.get("dataset", {}):
        del base["dataset"]
    if "reward" in values:
        del base["reward"]
    (place / "base.yaml").write_text(yaml.safe_dump(base))
    (place / "block.yaml").write_text(block.text)
    filled = [word for key in unfilled(values) for word in ("--set", f"{key}={FILLED[key]}")]
    ran = call("config", "show", "--config", "base.yaml", "--config", "block.yaml", *filled)
    assert ran.code == 0, f"{block}\n{ran.out}{ran.err}"


@pytest.mark.parametrize("block", [b for b in ALL if b.language == "toml"], ids=str)
def test_toml_names_groups_that_exist(block: Block) -> None:
    groups = tomllib.loads(block.text).get("project", {}).get("entry-points", {})
    known = {
        "rlhf",
        "rlhf.command",
        "rlhf.modality",
        "rlhf.model",
        "rlhf.model_file",
        "rlhf.tool_format",
        *(f"rlhf.{kind}" for kind in KINDS),
    }
    assert set(groups) <= known


def execute(block: Block) -> dict[str, Any]:
    """Run a Python block as a module."""
    module = ModuleType("block_of_the_documentation")
    sys.modules[module.__name__] = module
    try:
        exec(compile(FRAGMENTS.get(block.page, "") + block.text, str(block), "exec"), module.__dict__)
    finally:
        del sys.modules[module.__name__]
    return module.__dict__


@pytest.mark.parametrize("block", [b for b in PYTHON if b.page != TRAINS and not b.reason], ids=str)
def test_python_runs(block: Block, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    execute(block)


@pytest.mark.slow
@pytest.mark.parametrize("block", [b for b in PYTHON if b.page == TRAINS], ids=str)
def test_python_that_trains_runs(block: Block, place: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    execute(block)


def test_few_commands_are_not_run_and_each_reason_is_needed() -> None:
    left_out = [c for c in COMMANDS if way(c).kind == "not run"]
    assert len(left_out) <= len(COMMANDS) / 5
    script = (ROOT / ".ci" / "run").read_text()
    assert all(re.search(rf'"\$\{{make\[@\]\}}".* {target}\b', script) for target in ("test", "lint"))
    texts = [" ".join(c.words) for c in COMMANDS if way(c).kind in ("elsewhere", "not run")]
    assert [p for p in NOT_RUN if not any(re.search(p, text) for text in texts)] == []


def test_no_command_hides_among_text() -> None:
    """A block with one line that is no command is not executed at all."""
    text = [b for b in ALL if b.language == "text"]
    assert [str(b) for b in text if any(re.match(r"(\$ )?rlhf [a-z]", row) for row in b.text.splitlines())] == []


def test_a_block_is_found_with_its_commands(tmp_path: Path) -> None:
    page = ROOT / "docs" / "off-policy.md"
    (block,) = [b for b in blocks(page) if b.language == "bash"]
    (command,) = commands(block)
    assert command.words[:2] == ["rlhf", "train"]
