"""Wheels of every distribution, and what works where nothing but them is installed."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
import venv
from pathlib import Path

import pytest

from scripts.dist import ROOT, projects

RUN = (
    "train --algo grpo --reward ensemble --run-dir run --set reward.members=2 --set reward.max_pairs=32 "
    "--set reward.heldout_pairs=16 --set trainer.steps=2 --set trainer.rollout_batch_size=16 "
    "--set trainer.eval_samples=4 --set trainer.gold_samples=0 --set threads=1"
)


def project(folder: Path) -> dict[str, object]:
    return tomllib.loads((folder / "pyproject.toml").read_text())["project"]


def test_the_extra_all_is_every_plugin_and_the_evaluation() -> None:
    extra = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["all"]
    listed = [re.split(r"[<>=~!\[]", requirement)[0] for requirement in extra]
    standard = [project(p)["name"] for p in projects() if p != ROOT and p.parent.name != "extensions"]
    assert sorted(listed) == sorted(standard), "pyproject.toml: the extra `all` lists what plugins/ and eval/ hold"
    assert all(">=" in r and "<" in r for r in extra)


def test_the_makefile_installs_and_builds_the_same_distributions() -> None:
    text = (ROOT / "Makefile").read_text()
    assert "$(wildcard plugins/*/pyproject.toml eval/pyproject.toml extensions/*/pyproject.toml)" in text
    assert "-m scripts.dist" in text


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("dist")
    done = subprocess.run(
        [sys.executable, "-m", "scripts.dist", "--out", str(out)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(list(out.glob("*.whl"))) == len(projects())
    return out


@pytest.fixture(scope="module")
def bin_folder(wheels: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh environment with the wheels, and the third-party packages of this one without its editable installs."""
    folder = tmp_path_factory.mktemp("venv") / "v"
    venv.create(folder, with_pip=False, symlinks=True)
    python = folder / "bin" / "python"
    site = next((folder / "lib").glob("python*/site-packages"))
    # plain paths: the .pth files in them, which lead to the sources, are not read
    (site / "zz_third_party.pth").write_text("\n".join(p for p in sys.path if p.rstrip("/").endswith("site-packages")))
    pip = [sys.executable, "-m", "pip", "--python", str(python), "--disable-pip-version-check", "install"]
    options = ["--no-index", "--no-deps", "--force-reinstall", "-q", *map(str, wheels.glob("*.whl"))]
    done = subprocess.run([*pip, *options], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "bin"


def call(bin_folder: Path, *command: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    env = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "RLHF_HOME")}
    env |= {
        "RLHF_REPORT": "1",
        "RLHF_AUDIO": str(cwd / "sounds"),
        "RLHF_CACHE": str(cwd / "cache"),
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    return subprocess.run(
        [str(bin_folder / command[0]), *command[1:]], cwd=cwd, env=env, capture_output=True, text=True, check=False
    )


@pytest.mark.long  # scripts/dev/check_wheels.sh does it in .ci/run
@pytest.mark.slow
def test_the_main_command_runs_from_wheels_alone(bin_folder: Path, tmp_path: Path) -> None:
    where = "import rlhf_core, rlhf_plugin_grpo; print(rlhf_core.__file__, rlhf_plugin_grpo.__file__)"
    places = call(bin_folder, "python", "-c", where, cwd=tmp_path).stdout.split()
    assert all(p.startswith(str(bin_folder.parent)) for p in places), places
    out = call(bin_folder, "rlhf", *RUN.split(), cwd=tmp_path)
    assert out.returncode == 0, out.stderr
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["status"] == "completed"
    assert list((tmp_path / "run" / "final").glob("*.safetensors"))


SPEECH = (
    "tts train --run-dir voice --count 2 --iterations 1 --jobs 1 --set threads=1 --set trainer.rollout_batch_size=8 "
    "--set trainer.group_size=4 --set trainer.updates=1 --set trainer.pair_batch_size=2 --set trainer.eval_samples=0 "
    "--set trainer.reward_workers=0"
)


@pytest.mark.long
@pytest.mark.slow
def test_the_embedded_voice_is_trained_and_measured_from_wheels_alone(bin_folder: Path, tmp_path: Path) -> None:
    out = call(bin_folder, "rlhf", *SPEECH.split(), cwd=tmp_path)
    assert out.returncode == 0, out.stderr
    assert all(scorer in out.stdout for scorer in ("wer/wer", "dnsmos/p808", "dnsmos/ovrl"))
    table = json.loads((tmp_path / "voice" / "speech.json").read_text())["table"]
    assert all(row["missing"] == {"before": 0, "after": 0} for row in table.values())
    assert (tmp_path / "voice" / "report.html").stat().st_size > 100_000
    assert list((tmp_path / "voice" / "audio").glob("*.flac"))


@pytest.mark.slow
def test_every_module_of_every_wheel_imports_and_templates_are_inside(bin_folder: Path, tmp_path: Path) -> None:
    out = call(bin_folder, "rlhf", "plugins", "check", cwd=tmp_path)
    assert out.returncode == 0, "\n".join(line for line in out.stdout.splitlines() if not line.startswith("ok"))
    out = call(bin_folder, "rlhf", "plugins", "new", "my-loss", "--kind", "loss", cwd=tmp_path)
    assert out.returncode == 0, out.stderr
    assert (tmp_path / "rlhf-plugin-my-loss" / "pyproject.toml").is_file()


@pytest.mark.slow
def test_what_the_extra_all_asks_for_is_among_the_wheels(bin_folder: Path, tmp_path: Path) -> None:
    code = (
        "from importlib.metadata import requires, version\n"
        "from packaging.requirements import Requirement\n"
        "rows = [Requirement(r) for r in requires('rlhf-core')]\n"
        "rows = [r for r in rows if r.marker and r.marker.evaluate({'extra': 'all'})]\n"
        "print(len(rows), *[str(r) for r in rows if not r.specifier.contains(version(r.name))])"
    )
    out = call(bin_folder, "python", "-c", code, cwd=tmp_path)
    standard = [p for p in projects() if p != ROOT and p.parent.name != "extensions"]
    assert out.stdout.split() == [str(len(standard))], out.stdout + out.stderr
