"""configs/accelerate and configs/slurm: what the launchers make of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from accelerate.commands.config.config_args import ClusterConfig, load_config_from_file

from tests.waiting import wait_for

from .test_two_launchers import TRAIN, free_port

CONFIGS = Path(__file__).parents[2] / "configs"
SRUN = """
while [[ $1 == --* ]]; do shift; done
for rank in 0 1; do
  SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=2 SLURM_PROCID=$rank SLURM_LOCALID=$rank SLURM_NTASKS=2 "$@" & pids+=($!)
done
code=0; for pid in "${pids[@]}"; do wait "$pid" || code=$?; done; exit "$code"
"""
"""What the script needs of srun: both tasks of the job, on this machine."""


@pytest.mark.parametrize(("machines", "processes"), [(1, 8), (2, 16)])
@pytest.mark.parametrize(("name", "strategy"), [("ddp", "ddp"), ("fsdp", "fsdp"), ("zero3", "deepspeed")])
def test_accelerate_reads_processes_and_machines_alone(machines: int, processes: int, name: str, strategy: str) -> None:
    file = CONFIGS / "accelerate" / f"{machines}x8_{name}.yaml"
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
    assert len(files) == 8
    for file in files:
        assert f"({file.relative_to(CONFIGS)})" in page


@pytest.mark.parametrize("script", ["train.sbatch", "train_vllm.sbatch"])
def test_bash_reads_the_scripts(script: str) -> None:
    out = subprocess.run(["bash", "-n", str(CONFIGS / "slurm" / script)], capture_output=True, text=True, check=False)
    assert (out.returncode, out.stderr) == (0, "")


def stand_ins(tmp_path: Path, **scripts: str) -> dict[str, str]:
    """Variables of a job whose commands are these scripts."""
    tools = tmp_path / "bin"
    tools.mkdir()
    for name, text in scripts.items():
        (tools / name).write_text(f"#!/bin/bash\n{text}\n")
        (tools / name).chmod(0o755)
    return {
        "PATH": f"{tools}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        "SLURM_JOB_NODELIST": "here",
        "SLURM_JOB_ID": "7",
        "SLURM_CPUS_PER_TASK": "3",
        "RUN_DIR": str(tmp_path / "run"),
    }


def test_a_job_that_goes_on_keeps_its_options(tmp_path: Path) -> None:
    job = stand_ins(tmp_path, srun='echo "$SRUN_CPUS_PER_TASK $@"', scontrol="echo a")
    script, options = str(CONFIGS / "slurm" / "train.sbatch"), ["--set", "trainer.steps=9"]
    folder = tmp_path / "run"
    folder.mkdir()
    for how in ("--run-dir", "--resume"):
        out = run(["bash", script, *options], tmp_path, **job)
        assert out.stdout == f"3 --kill-on-bad-exit=1 rlhf train {how} {folder} --set trainer.steps=9\n", out.stderr
        (folder / "plan.json").touch()


def test_sigterm_saves_a_run_beside_its_servers(tmp_path: Path) -> None:
    srun = f"""
echo "$SRUN_CPUS_PER_TASK $@" >> '{tmp_path}/calls'
[[ $* == *vllm* && $* != *'rlhf train'* ]] && exec sleep 60
until [[ -f '{tmp_path}/signalled' ]]; do sleep 0.05; done
exit 130
"""
    scancel = f"echo \"$@\" > '{tmp_path}/signalled'; sleep 0.3"  # meanwhile the trainers may end
    job = stand_ins(tmp_path, srun=srun, scontrol="echo a; echo b", curl="exit 0", scancel=scancel)
    job |= {"MODEL": "m", "VLLM_PYTHON": "python", "PER_NODE": "1"}
    script = ["bash", str(CONFIGS / "slurm" / "train_vllm.sbatch"), "--set", "trainer.steps=9"]
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "plan.json").touch()
    process = subprocess.Popen(script, cwd=tmp_path, env={**os.environ, **job})
    try:
        calls = tmp_path / "calls"
        wait_for(lambda: calls.is_file() and "rlhf train" in calls.read_text(), "the trainers", 20)
        process.terminate()
        assert process.wait(20) == 130
    finally:
        process.kill()
        process.wait()
    assert (tmp_path / "signalled").read_text() == "--signal=TERM 7.1\n", "the second step: the first has the servers"
    training = next(line for line in calls.read_text().splitlines() if "rlhf train" in line)
    assert training.startswith("3 --nodes=1 --nodelist=a ")
    assert training.endswith(f"rlhf train --resume {tmp_path / 'run'} --set trainer.steps=9")


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
def test_accelerate_launch_with_cpu_starts_one_process_and_is_refused(tmp_path: Path) -> None:
    launch = ["accelerate.commands.launch", "--config_file", str(CONFIGS / "accelerate" / "1x8_fsdp.yaml")]
    options = ["--num_processes", "2", "--cpu", *TRAIN, "--run-dir", "run"]
    out = run([sys.executable, "-m", *launch, *options], tmp_path)
    assert out.returncode != 0
    assert "accelerate launch: asked for 2 processes, found 1" in out.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
@pytest.mark.long  # the script's line: above; two processes as srun starts them: test_two_launchers.py
def test_sbatch_starts_and_goes_on(tmp_path: Path) -> None:
    job = stand_ins(tmp_path, srun=SRUN, scontrol="echo 127.0.0.1")
    script = ["bash", str(CONFIGS / "slurm" / "train.sbatch")]
    line = [*script, *TRAIN[3:], "--set", "trainer.steps=1"]
    out = run(line, tmp_path, **job, MASTER_PORT=str(free_port()))
    assert out.returncode == 0, out.stderr
    assert trained_steps(tmp_path / "run") == 1
    out = run(line, tmp_path, **job, MASTER_PORT=str(free_port()))
    assert out.returncode == 0, out.stderr
    assert "is complete: nothing is left to do" in out.stderr + out.stdout
