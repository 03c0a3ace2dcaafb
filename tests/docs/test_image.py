"""The Dockerfile holds what docs/eight-cards.md installs, from files that are there."""

from __future__ import annotations

import fnmatch
import re
import subprocess

from tests.docs.blocks import ROOT

INSTRUCTIONS = {"FROM", "RUN", "WORKDIR", "COPY", "ENV", "ENTRYPOINT"}


def instructions() -> list[tuple[str, str]]:
    lines = (ROOT / "Dockerfile").read_text().splitlines()
    return [(name, rest) for name, _, rest in (line.partition(" ") for line in lines if not line.startswith("#"))]


def test_each_instruction_is_one_of_docker_and_each_command_parses() -> None:
    rows = instructions()
    assert rows[0][0] == "FROM"
    assert {name for name, _ in rows} <= INSTRUCTIONS
    for name, command in rows:
        if name == "RUN":
            subprocess.run(["sh", "-n", "-c", command], check=True)


def test_it_installs_as_the_page_says_with_the_python_that_the_pins_are_for() -> None:
    page = [line.split() for line in (ROOT / "docs" / "eight-cards.md").read_text().splitlines()]
    runs = [command.split() for name, command in instructions() if name == "RUN"][1:]
    assert [[word for word in run if word != "--no-cache-dir"] for run in runs] == [
        words for words in page if words[:1] == ["make"] or words[:2] == [".venv/bin/pip", "install"]
    ]
    version = re.search(r"--python-version (\S+)", (ROOT / "scripts" / "dev" / "resolve_cuda.sh").read_text())
    assert version
    assert instructions()[0][1] == f"python:{version[1]}-slim"
    assert f"PYTHON=python{version[1]}" in runs[0]


def test_make_knows_the_targets_and_files(tmp_path: object) -> None:
    command = next(command for name, command in instructions() if name == "RUN" and command.startswith("make"))
    words = [*command.split(), "--dry-run", f"VENV={tmp_path}/venv"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "--constraint constraints-cuda.txt" in done.stdout


def test_no_file_of_the_repository_stays_outside() -> None:
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    ignored = (ROOT / ".dockerignore").read_text().split()
    patterns = [pattern.removeprefix("**/") for pattern in ignored]
    assert not [f for f in tracked for p in patterns if fnmatch.fnmatch(f, p) or fnmatch.fnmatch(f, f"{p}/*")]
