"""Files that grow, are cut and replaced: every row once, never half of one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rlhf_plugin_dashboard.follow import Follower


def append(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


def rows(*numbers: int) -> str:
    return "".join(json.dumps({"n": n}) + "\n" for n in numbers)


def read(follower: Follower) -> tuple[list[int], bool]:
    new = follower.read()
    return [row["n"] for row in new.rows], new.restarted


def test_each_row_comes_once_and_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    follower = Follower(path)
    assert read(follower) == ([], False)
    append(path, rows(1, 2) + '{"n"')
    assert read(follower) == ([1, 2], False)
    assert read(follower) == ([], False)
    append(path, ": 3}")
    assert read(follower) == ([], False)
    append(path, "\n" + rows(4))
    assert read(follower) == ([3, 4], False)


def test_what_was_read_is_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "m.jsonl"
    append(path, rows(*range(10_000)))
    follower = Follower(path)
    assert len(follower.read().rows) == 10_000
    seen: list[bytes] = []
    loads = json.loads
    monkeypatch.setattr(json, "loads", lambda line: seen.append(line) or loads(line))
    append(path, rows(1))
    follower.read()
    assert len(seen) == 1


@pytest.mark.parametrize("after", [rows(1, 7), rows(1, 7, 8, 9, 10), rows(7), ""])
def test_a_file_that_was_cut_is_read_anew_also_if_it_is_longer_by_then(tmp_path: Path, after: str) -> None:
    path = tmp_path / "m.jsonl"
    append(path, rows(1, 2, 3))
    follower = Follower(path)
    read(follower)
    path.write_text(after)
    assert read(follower) == ([json.loads(line)["n"] for line in after.splitlines()], True)
    assert read(follower) == ([], False)


def test_a_file_that_went_away_and_came_back_is_read_anew(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    append(path, rows(1))
    follower = Follower(path)
    read(follower)
    path.unlink()
    assert read(follower) == ([], True)
    append(path, rows(5))
    assert read(follower) == ([5], False)


def test_of_a_long_file_only_the_newest_rows_are_read(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    append(path, rows(*range(1000)))
    follower = Follower(path, newest=50)
    numbers, _ = read(follower)
    assert numbers == list(range(1000 - len(numbers), 1000))
    assert 1 <= len(numbers) < 10
    append(path, rows(*range(1000, 2000)))
    numbers, restarted = read(follower)
    assert (numbers[-1], len(numbers) < 10, restarted) == (1999, True, False)


def test_a_row_longer_than_the_window_is_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    append(path, rows(1) + json.dumps({"n": 2, "text": "x" * 1000}) + "\n")
    assert read(Follower(path, newest=50))[0][-1] == 2


def test_damaged_rows_are_counted_and_left_out(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    append(path, rows(1) + "{broken\n[1]\n\x00\n" + rows(2))
    new = Follower(path).read()
    assert ([row["n"] for row in new.rows], new.damaged) == ([1, 2], 3)


def test_turns_of_an_episode_are_sent_small() -> None:
    from rlhf_plugin_dashboard.curves import TURN, _completions

    turn = {"span": [0, 3], "role": "tool", "message": {"role": "tool", "content": "x" * 5000}, "status": "error"}
    rows = [{"event": "prompt", "completions": [{"turns": [turn]}, {"turns": [{"role": 3}]}, {}]}]
    one, odd, none = _completions(rows)
    assert one["turns"] == [{"span": [0, 3], "role": "tool", "text": "x" * TURN, "status": "error"}]
    assert "turns" not in odd
    assert "turns" not in none
