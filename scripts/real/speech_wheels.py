"""From built wheels to a better voice: an empty environment, then `rlhf tts train`, timed.

    python -m scripts.real.speech_wheels --folder runs/speech-wheels --record docs/bench/speech_train.json

Builds every distribution, installs the wheels into a new virtual environment and nothing else of this checkout
(third-party packages are this environment's, so that nothing is downloaded), and runs the one command there: three
iterations of iterative DPO on pocket-voice, forty unseen sentences before and after with intervals, and the page with
players. Minutes are of that command alone; the same command goes on where it stopped, and then has none.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
import venv
from pathlib import Path

from rlhf_core.data.atomic import write_json
from scripts.bench.__main__ import commit, machine


def environment(folder: Path) -> Path:
    """Folder of the programs of an environment with the wheels."""
    place = folder / "environment"
    if not (place / "made").is_file():
        subprocess.run([sys.executable, "-m", "scripts.dist", "--out", str(folder / "wheels")], check=True)
        venv.create(place, with_pip=False, symlinks=True, clear=True)
        site = next((place / "lib").glob("python*/site-packages"))
        packages = [p for p in sys.path if p.rstrip("/").endswith("site-packages")]
        (site / "zz_third_party.pth").write_text("\n".join(packages))
        pip = [sys.executable, "-m", "pip", "--python", str(place / "bin" / "python"), "install", "--no-index"]
        wheels = sorted(map(str, (folder / "wheels").glob("*.whl")))
        subprocess.run([*pip, "--no-deps", "--force-reinstall", "-q", *wheels], check=True)
        (place / "made").write_text("")
    return place / "bin"


def main() -> None:
    """Install, train, and keep what the command wrote."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--option", action="append", default=[], help="a further word of `rlhf tts train`")
    parser.add_argument("--record", type=Path)
    args = parser.parse_args()
    folder: Path = args.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    program = environment(folder) / "rlhf"
    command = ["tts", "train", "--run-dir", "voice", "--seed", str(args.seed), *args.option]
    env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | {"RLHF_REPORT": "1"}
    began = time.monotonic()
    subprocess.run([str(program), *command], cwd=folder, env=env, check=True)
    print(f"rlhf {' '.join(command)}: {(time.monotonic() - began) / 60:.1f} minutes", flush=True)
    if args.record:
        result = json.loads((folder / "voice" / "speech.json").read_text())
        record = {"command": "python -m scripts.real.speech_wheels", "date": time.strftime("%Y-%m-%d")}
        kept = {name: value for name, value in result.items() if name != "scores"}
        write_json(args.record, record | {"commit": commit(), "machine": machine(), "load": os.getloadavg(), **kept})


if __name__ == "__main__":
    main()
