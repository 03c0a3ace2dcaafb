"""Build a wheel of every distribution of this repository into ``dist/``: ``make dist``, ``python -m scripts.dist``."""

from __future__ import annotations

import argparse
import tomllib
import zipfile
from contextlib import chdir
from pathlib import Path

from hatchling.build import build_wheel

ROOT = Path(__file__).resolve().parents[1]


def projects(root: Path = ROOT) -> list[Path]:
    """Folders of every distribution, the core first."""
    patterns = ("plugins/*/pyproject.toml", "eval/pyproject.toml", "extensions/*/pyproject.toml")
    return [root, *(file.parent for pattern in patterns for file in sorted(root.glob(pattern)))]


def build(project: Path, out: Path) -> Path:
    with chdir(project):
        return out / build_wheel(str(out))


def missing_files(project: Path, wheel: Path) -> list[str]:
    """Files of a distribution's packages that the wheel lacks: templates, weights, tasks as well as modules."""
    table = tomllib.loads((project / "pyproject.toml").read_text(encoding="utf-8"))
    packages = table["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    with zipfile.ZipFile(wheel) as archive:
        inside = set(archive.namelist())
    files = (f.relative_to(project) for p in packages for f in sorted((project / p).rglob("*")) if f.is_file())
    return [str(f) for f in files if "__pycache__" not in f.parts and f.as_posix() not in inside]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "dist")
    out: Path = parser.parse_args().out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    for old in out.glob("rlhf_*.whl"):
        old.unlink()
    for project in projects():
        wheel = build(project, out)
        if missing := missing_files(project, wheel):
            raise SystemExit(f"{wheel.name} lacks {', '.join(missing)}")
    wheels = sorted(out.glob("*.whl"))
    print(*(f"{wheel.stat().st_size / 1e6:6.2f} MB  {wheel.name}" for wheel in wheels), sep="\n")
    print(f"{len(wheels)} wheels in {out}; install all of them: pip install --find-links {out} 'rlhf-core[all]'")


if __name__ == "__main__":
    main()
