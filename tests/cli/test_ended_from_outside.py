"""A run that SIGTERM ends saves and writes its page; one that was killed is told from one that goes on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rlhf_core.runs.launch.process_end import sigterm_as_interrupt
from rlhf_core.runs.read import StoredRun, locked_run_dir
from rlhf_core.types.errors import RunDirError
from tests.waiting import wait_for

SETTINGS = (
    *("trainer.steps=400", "trainer.rollout_batch_size=8", "trainer.eval_samples=0", "threads=1"),
    *("trainer.sampling.max_tokens=4", "trainer.checkpoint_every=1"),
)
WORDS = ("train", "--algo", "grpo", "--reward", "verifier", "--dataset", "pocket/arithmetic", "--run-dir", "run")
RLHF = (sys.executable, "-m", "rlhf_core.cli.main")


def rlhf(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*RLHF, *words], cwd=cwd, capture_output=True, text=True)


@pytest.mark.slow
def test_sigterm_saves_and_writes_a_page_and_kill_9_shows_as_interrupted(tmp_path: Path) -> None:
    environment = {**{k: v for k, v in os.environ.items() if k != "RLHF_REPORT"}, "OMP_NUM_THREADS": "1"}
    settings = [word for setting in SETTINGS for word in ("--set", setting)]
    run, metrics = tmp_path / "run", tmp_path / "run" / "metrics.jsonl"

    def begun(words: tuple[str, ...], lines: int) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [*RLHF, *words], cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True, stdout=subprocess.DEVNULL
        )

        def there() -> bool:
            assert process.poll() is None, process.communicate()
            return metrics.is_file() and len(metrics.read_text().splitlines()) >= lines

        wait_for(there, f"{lines} rows of metrics", 200)
        return process

    process = begun((*WORDS, *settings), 1)
    assert StoredRun.is_live(run) is True
    with pytest.raises(RunDirError, match="being trained by another process"), locked_run_dir(run):
        pass
    process.terminate()
    said = process.communicate(timeout=60)[1]
    assert process.returncode == 130, said
    failure = json.loads((run / "failure.json").read_text())
    assert failure["status"] == "interrupted"
    assert "stopped by SIGTERM after step" in failure["error"]
    assert "page:    run/report.html" in said
    assert "stopped by SIGTERM after step" in (run / "report.html").read_text()

    done = len(metrics.read_text().splitlines())
    process = begun(("train", "--resume", "run"), done + 1)
    process.kill()
    process.communicate()
    assert not (run / "failure.json").exists()
    (row,) = json.loads(rlhf("runs", "list", "--root", ".", "--json", cwd=tmp_path).stdout)
    assert row["status"] == "interrupted"


def test_a_handler_of_the_caller_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: seen.append(number))
    try:
        with sigterm_as_interrupt():
            os.kill(os.getpid(), signal.SIGTERM)
        assert seen == [signal.SIGTERM]
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        with pytest.raises(KeyboardInterrupt), sigterm_as_interrupt():
            signal.raise_signal(signal.SIGTERM)
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGTERM, before)
