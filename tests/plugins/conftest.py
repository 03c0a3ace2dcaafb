"""A throw-away environment for whole packages, and distributions faked with a dist-info folder."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rlhf_core.cli.main import main

ROOT = Path(__file__).parents[2]
Run = Callable[..., "subprocess.CompletedProcess[str]"]


def environment(**extra: str) -> dict[str, str]:
    """This process's variables, one thread, offline."""
    return {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", **extra}


def call(command: list[str], **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=240, **options)  # type: ignore[call-overload]


@pytest.fixture(scope="session")
def other_python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An interpreter of its own environment, which also sees what is installed here."""
    folder = tmp_path_factory.mktemp("venv") / "v"
    venv.create(folder, with_pip=False, symlinks=True)
    python = str(folder / "bin" / "python")
    place = call([python, "-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])"]).stdout.strip()
    here = [p for p in sys.path if p.rstrip("/").endswith("site-packages")]
    (Path(place) / "zz_here.pth").write_text("".join(f"import site; site.addsitedir({p!r})\n" for p in here))
    return python


def install(python: str, *packages: Path) -> None:
    """Install folders or wheels into that environment, without a network."""
    out = call(
        [
            sys.executable,
            "-m",
            "pip",
            "--python",
            python,
            "install",
            "-q",
            "--no-deps",
            "--no-build-isolation",
            "--no-index",
            "--disable-pip-version-check",
            *map(str, packages),
        ],
        env=environment(),
    )
    assert out.returncode == 0, out.stdout + out.stderr


def inside(python: str, module: str, *words: str) -> list[str]:
    """The command that runs a module where what is installed in an environment is installed too."""
    (folder,) = Path(python).parents[1].glob("lib/python*/site-packages")
    return [sys.executable, "-m", "tests.plugins.inside", str(folder), module, *words]


class Commands:
    """`rlhf` in another environment: one process for all calls."""

    def __init__(self, python: str) -> None:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
        self.process = subprocess.Popen(inside(python, "rlhf"), env=environment(PYTHONPATH=str(ROOT)), **pipes)  # type: ignore[call-overload]

    def __call__(self, *args: object, cwd: Path) -> subprocess.CompletedProcess[str]:
        """Call the command in a folder, with caches of its own there."""
        env = {"RLHF_CACHE": str(cwd / "cache"), "RLHF_HOME": str(cwd / "home")}
        asked = {"args": [str(a) for a in args], "cwd": str(cwd), "env": env}
        self.process.stdin.write(json.dumps(asked) + "\n")
        self.process.stdin.flush()
        code, out, err = json.loads(self.process.stdout.readline())
        return subprocess.CompletedProcess(args, code, out, err)


@pytest.fixture(scope="session")
def commands(other_python: str) -> Iterator[Commands]:
    """What is installed in the environment when a command is called takes part in it."""
    served = Commands(other_python)
    yield served
    served.process.stdin.close()
    served.process.wait(30)


class Fakes:
    """Distributions that are a module and a dist-info folder on PYTHONPATH."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder, self.capsys = folder, capsys

    def add(self, name: str, entries: str, code: str = "", version: str = "1.0", requires: str = "") -> None:
        """Write the distribution ``name`` with a module of the same name."""
        module = name.replace("-", "_")
        (self.folder / f"{module}.py").write_text(code)
        info = self.folder / f"{module}-{version}.dist-info"
        info.mkdir()
        needs = f"Requires-Dist: {requires}\n" if requires else ""
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}")
        (info / "entry_points.txt").write_text(entries)

    def variables(self, **extra: str) -> dict[str, str]:
        """What the command's environment has besides this process's."""
        return {"RLHF_HOME": str(self.folder / "home"), "RLHF_CACHE": str(self.folder / "cache"), **extra}

    def rlhf(self, *args: str, **extra: str) -> subprocess.CompletedProcess[str]:
        """Run the command where these are installed, in this process; it forgets what it imported of them."""
        imported = set(sys.modules)
        with pytest.MonkeyPatch.context() as patch:
            patch.syspath_prepend(str(self.folder))
            patch.chdir(self.folder)
            for name, value in self.variables(**extra).items():
                patch.setenv(name, value)
            self.capsys.readouterr()
            with pytest.raises(SystemExit) as caught:
                main(list(args))
            text = self.capsys.readouterr()
        for name in set(sys.modules) - imported:
            if str(getattr(sys.modules[name], "__file__", "")).startswith(str(self.folder)):
                del sys.modules[name]
        return subprocess.CompletedProcess(args, int(caught.value.code or 0), text.out, text.err)

    def process(self, *args: str, **extra: str) -> subprocess.CompletedProcess[str]:
        """Run the command where these are installed, in a process that may be killed."""
        env = environment(PYTHONPATH=str(self.folder), **self.variables(**extra))
        return call([sys.executable, "-m", "rlhf_core.cli.main", *args], env=env, cwd=self.folder)


@pytest.fixture
def fakes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Fakes:
    return Fakes(tmp_path, capsys)
