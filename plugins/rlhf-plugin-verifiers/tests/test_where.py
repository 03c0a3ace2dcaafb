"""Row filters over columns."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rlhf_core.cli import context_of, open_registry
from rlhf_core.config import ConfigError
from rlhf_core.config.load import validate
from rlhf_core.data import DatasetError
from rlhf_core.runs.launch.rows import remote_sources
from rlhf_plugin_verifiers.datasets.where import FilteredRows, Where

ROWS: list[dict[str, Any]] = [
    {"prompt": "a", "answer": "1", "level": 3, "source": "MATH", "meta": {"hard": True}},
    {"prompt": "b", "answer": "2", "level": 5, "source": "gsm8k"},
    {"prompt": "c", "answer": "3", "level": None, "source": "MATH"},
    {"prompt": "d", "answer": "4", "level": "Level 4"},
]


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("level in [3, 4, 5]", "ab"),
        ("level not in (3, 5)", "cd"),
        ("level >= 4", "b"),
        ("3 < level <= 5", "b"),
        ("level == 'Level 4'", "d"),
        ("source == 'MATH' and not level == 3", "c"),
        ("source == 'gsm8k' or level == None", "bc"),
        ("meta.hard", "a"),
        ("'M' in source", "ac"),
        ("level > -1", "ab"),
        ("not source", "d"),
    ],
)
def test_rows_for_which_it_holds(text: str, kept: str) -> None:
    where = Where(text)
    assert "".join(row["prompt"] for row in ROWS if where(row)) == kept


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("level != 3", "bcd"),
        ("level > 2", "abc"),
        ("4 in [level, 5]", "b"),
        ("level in [3, 10]", "ac"),
        ("level in [3, None]", "a"),
        ("level == '3'", "a"),
        ("level in ['3', 4]", "a"),
        ("level < 'a'", "abc"),
        ("3 < level < 10", "b"),
    ],
)
def test_text_that_is_a_number_compares_with_numbers(text: str, kept: str) -> None:
    rows = [{"prompt": p, "level": v} for p, v in zip("abcd", ("3", "4.0", " 10", "hard"))]  # as CSV has them
    where = Where(text)
    assert "".join(row["prompt"] for row in rows if where(row)) == kept


@pytest.mark.parametrize(
    "text",
    [
        "level ==",
        "3 in [3]",
        "len(source) > 3",
        "source[0]",
        "level + 1 == 4",
        "__import__('os')",
        "(x := 3)",
        "a.b().c",
    ],
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"(?s)dataset.where"):
        Where(text)


class Source:
    def rows(self, split: str) -> list[dict[str, Any]]:
        return ROWS if split == "train" else []

    def pairs(self, split: str) -> list[dict[str, Any]]:
        return self.rows(split)[1:]

    def where(self, split: str, number: int) -> str:
        return f"line {number + 1}"

    def question(self, split: str, number: int) -> str:
        return str(ROWS[number]["prompt"])


@pytest.mark.parametrize("text", ["source != 3", "source not in [1, -2]", "4 <= source", "level > 0 and source != 1.5"])
def test_a_column_of_text_is_not_compared_with_numbers(text: str) -> None:
    with pytest.raises(
        DatasetError, match=r"(?s)column 'source' with numbers, and it holds only text.*'MATH', 'gsm8k'"
    ):
        FilteredRows(Source(), Where(text), say=False).rows("train")
    FilteredRows(Source(), Where("level != 3 and level not in [1, 'x']"), say=False).rows("train")


def test_places_and_questions_are_those_of_the_file() -> None:
    kept = FilteredRows(Source(), Where("source == 'MATH'"), say=False)
    assert [row["prompt"] for row in kept.rows("train")] == ["a", "c"]
    assert (kept.where("train", 1), kept.row_number("train", 1), kept.left_out("train")) == ("line 3", 2, 2)
    assert kept.question("train", kept.row_number("train", 1)) == "c"
    twice = FilteredRows(kept, Where("level == None"), say=False)
    assert [twice.row_number("train", n) for n, _ in enumerate(twice.rows("train"))] == [2]
    assert [row["prompt"] for row in kept.pairs("train")] == ["c"]
    assert not kept.rows("heldout")
    assert not hasattr(kept, "demonstrations")


def test_a_row_keeps_its_id(tmp_path: Path) -> None:
    section: dict[str, Any] = {
        "name": "jsonl",
        "path": str(write(tmp_path)),
        "heldout_by": "place",
        "heldout_fraction": 0.3,
    }

    def ids(split: str, **more: Any) -> dict[str, str]:
        ctx = context_of(open_registry(), dataset={**section, **more})
        return {str(prompt.messages): prompt.id for prompt in ctx.datasets.prompts(split)}

    for split in ("train", "heldout"):
        every, kept = ids(split), ids(split, where="level > 0")
        assert kept
        assert kept.items() < every.items()


def test_a_dry_run_downloads_no_rows_of_a_filtered_hub_data_set() -> None:
    dataset = {"name": "hub", "path": "no/such", "where": "level > 3"}
    settings = {"trainer": {"name": "grpo"}, "reward": {"name": "exact"}, "dataset": dataset}
    config = validate(open_registry(), settings)
    assert [source.path for source in remote_sources(config)] == ["no/such"]


def write(folder: Path) -> Path:
    rows = [{"prompt": f"{n}?", "answer": "x" if n == 9 else n, "level": n % 3} for n in range(40)]
    file = folder / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


@pytest.mark.parametrize(
    ("where", "code", "said"),
    [
        ("level in [1, 2]", 0, "dataset.where 'level in [1, 2]': 26 of 40 train rows kept"),
        ("level == 7", 2, "keeps none of 40 train rows"),
        ("levle == 1", 2, "did you mean 'level'?"),
        ("level = 1", 2, "cannot be read"),
    ],
)
def test_a_dry_run_says_what_is_kept(
    where: str, code: int, said: str, tmp_path: Path, command: Callable[..., tuple[int, str]]
) -> None:
    words = ("--dataset", write(tmp_path), "--set", f"dataset.where={where}", "--dry-run")
    got, output = command(
        "train", "--algo", "grpo", "--reward", "verifier", *words, "--set", "trainer.rollout_batch_size=8"
    )
    assert (got, output.count(said)) == (code, 1), output


def test_a_row_that_is_left_out_is_not_checked_and_another_is_by_its_line(
    tmp_path: Path, command: Callable[..., tuple[int, str]]
) -> None:
    file = write(tmp_path)  # row 10 has a reference that is no number, and level 0
    words = ("train", "--algo", "grpo", "--reward", "gsm8k", "--dry-run", "--set", "trainer.rollout_batch_size=8")
    code, output = command(*words, "--set", f"dataset={{name: jsonl, path: {file}, where: level > 0}}")
    assert code == 0, output
    code, output = command(*words, "--set", f"dataset={{sources: [{{path: {file}, name: jsonl, where: level < 1}}]}}")
    assert code == 2
    assert "rows.jsonl, line 10 (1 of" in output


def test_a_run_counts_what_was_left_out(tmp_path: Path, command: Callable[..., tuple[int, str]]) -> None:
    words = (
        "train",
        "--algo",
        "grpo",
        "--reward",
        "verifier",
        "--dataset",
        write(tmp_path),
        "--run-dir",
        tmp_path / "r",
    )
    sets = (
        "trainer.steps=1",
        "trainer.rollout_batch_size=8",
        "threads=1",
        "dataset.where=level > 0",
        "trainer.eval_every=0",
    )
    code, output = command(*words, *(word for text in sets for word in ("--set", text)))
    assert code == 0, output
    summary = json.loads((tmp_path / "r/summary.json").read_text())
    assert summary["dropped"]["rows_left_out_by_where"] == 14
    plan = json.loads((tmp_path / "r/plan.json").read_text())
    assert any(name.endswith("rows.jsonl") for name in plan["inputs"])
