"""Two processes may write the same place at once: what is there is whole, and nothing else is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from rlhf_core.data.atomic import whole_folder, write_text
from tests.waiting import wait_for

WRITER = """
import sys, time
from pathlib import Path
from rlhf_core.data.atomic import whole_folder, write_text
name, folder, pause, times = sys.argv[1], Path(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])
for n in range(times):
    with whole_folder(folder / "model") as aside:
        for part in range(4):
            (aside / f"part{part}").write_text(f"{name} {n}")
            time.sleep(pause)
    write_text(folder / "note", f"{name} {n} " * 500)
"""


def writer(name: str, folder: Path, pause: float, times: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, name, str(folder), str(pause), str(times)], stderr=subprocess.PIPE, text=True
    )


def test_two_writers_of_one_place(tmp_path: Path) -> None:
    writers = [writer(name, tmp_path, 0.0005, 60) for name in ("a", "b")]
    for process in writers:
        _, err = process.communicate(timeout=60)
        assert process.returncode == 0, err
    assert sorted(os.listdir(tmp_path)) == ["model", "note"]
    texts = {(tmp_path / "model" / f"part{n}").read_text() for n in range(4)}
    assert len(texts) == 1, "one writer's folder, whole"
    assert texts < {"a 59", "b 59"}, "the last one"
    assert len(set((tmp_path / "note").read_text().split())) == 2


def test_what_a_killed_writer_left_goes_and_what_a_living_one_writes_stays(tmp_path: Path) -> None:
    dead, alive = writer("dead", tmp_path, 30, 1), writer("alive", tmp_path, 30, 1)
    try:
        wait_for(lambda: len(os.listdir(tmp_path)) == 2, "both writers' folders")
        dead.send_signal(signal.SIGKILL)
        dead.communicate()
        write_text(tmp_path / "note", "mine")  # another name than the dead one's
        assert not [name for name in os.listdir(tmp_path) if str(dead.pid) in name]
        with whole_folder(tmp_path / "model") as aside:
            (aside / "part0").write_text("mine")
        partial, model, note = sorted(os.listdir(tmp_path))
        assert (model, note) == ("model", "note")
        assert str(alive.pid) in partial
    finally:
        alive.kill()
        alive.communicate()
