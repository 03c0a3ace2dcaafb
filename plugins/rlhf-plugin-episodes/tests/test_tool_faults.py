"""Of many episodes, those whose tools hang or crash have no score, and all the others have the right one."""

from pathlib import Path

import pytest

from scripts.faults.tools import play


@pytest.mark.slow
def test_hanging_and_crashing_tools_lose_no_episode_and_leave_no_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    counts = play(200, tmp_path)
    assert counts["statuses"] == {"ok": 197, "timeout": 2, "error": 1}
    assert (counts["episodes"], counts["wrong"], counts["processes_left"]) == (200, 0, 0)
