"""configs/accelerate and configs/slurm: what the launchers make of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from accelerate.commands.config.config_args import ClusterConfig, load_config_from_file

from .test_two_launchers import TRAIN, free_port

CONFIGS = Path(__file__).parents[2] / "configs"
SRUN = """#!/bin/bash
while [[ $1 == --* ]]; do shift; done
for rank in 0 1; do
  SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=2 SLURM_PROCID=$rank SLURM_LOCALID=$rank SLURM_NTASKS=2 "$@" & pids+=($!)
done
code=0; for pid in "${pids[@]}"; do wait "$pid" || code=$?; done; exit "$code"
"""
"""What the script needs of srun: both tasks of the job, on this machine."""


@pytest.mark.parametrize(("machines", "processes"), [(1, 8), (2, 16)])
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_accelerate_reads_processes_and_machines_alone(machines: int, processes: int, strategy: str) -> None:
    file = CONFIGS / "accelerate" / f"{machines}x8_{strategy}.yaml"
    config = load_config_from_file(str(file))
    assert isinstance(config, ClusterConfig)
    assert (config.num_machines, config.num_processes) == (machines, processes)
    assert config.distributed_type == "MULTI_GPU"
    assert config.mixed_precision == "no", "the precision is trainer.precision"
    assert not config.fsdp_config
    assert not config.deepspeed_config
    assert f"--set strategy={strategy}" in file.read_text()


def test_accelerate_files_are_all_listed() -> None:
    page = (CONFIGS / "README.md").read_text()
    files = [*(CONFIGS / "accelerate").iterdir(), *(CONFIGS / "slurm").iterdir()]
    assert len(files) == 6
    for file in files:
        assert f"({file.relative_to(CONFIGS)})" in page


@pytest.mark.parametrize("script", ["train.sbatch", "train_vllm.sbatch"])
def test_bash_reads_the_scripts(script: str) -> None:
    out = subprocess.run(["bash", "-n", str(CONFIGS / "slurm" / script)], capture_output=True, text=True, check=False)
    assert (out.returncode, out.stderr) == (0, "")


def run(command: list[str], tmp_path: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "OMP_NUM_THREADS": "1", **variables}
    return subprocess.run(
        command,
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        stdin=subprocess.DEVNULL,
    )


def trained_steps(folder: Path) -> int:
    assert json.loads((folder / "plan.json").read_text())["world_size"] == 2
    return int(json.loads((folder / "summary.json").read_text())["steps"])


@pytest.mark.slow
def test_accelerate_launch(tmp_path: Path) -> None:
    launch = ["accelerate.commands.launch", "--config_file", str(CONFIGS / "accelerate" / "1x8_ddp.yaml")]
    processes = ["--num_processes", "2", "--main_process_port", str(free_port())]
    options = [*TRAIN, "--set", "trainer.steps=1", "--set", "strategy=ddp", "--run-dir", "run"]
    out = run([sys.executable, "-m", *launch, *processes, *options], tmp_path)
    assert out.returncode == 0, out.stderr
    assert out.stdout.count("completed: 1 step") == 1
    assert trained_steps(tmp_path / "run") == 1


@pytest.mark.slow
def test_sbatch_starts_and_goes_on(tmp_path: Path) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    for name, text in (("srun", SRUN), ("scontrol", "#!/bin/bash\necho 127.0.0.1\n")):
        (tools / name).write_text(text)
        (tools / name).chmod(0o755)
    path = f"{tools}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    job = {"PATH": path, "SLURM_JOB_NODELIST": "here", "SLURM_JOB_ID": "7", "RUN_DIR": str(tmp_path / "run")}
    script = ["bash", str(CONFIGS / "slurm" / "train.sbatch")]
    out = run([*script, *TRAIN[3:], "--set", "trainer.steps=1"], tmp_path, **job, MASTER_PORT=str(free_port()))
    assert out.returncode == 0, out.stderr
    assert trained_steps(tmp_path / "run") == 1
    out = run(script, tmp_path, **job, MASTER_PORT=str(free_port()))
    assert out.returncode == 0, out.stderr
    assert "is complete: nothing is left to do" in out.stderr + out.stdout
