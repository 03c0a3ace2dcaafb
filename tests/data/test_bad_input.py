"""Every bad dataset is refused in one message that says what, where and what to do; nothing is dropped in silence."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rlhf_core.data.datasets import Datasets
from rlhf_core.data.settings import spell_dataset

Make = Callable[..., Datasets]
Refused = Callable[..., None]
Write = Callable[..., str]
GOOD = [{"prompt": f"question {i}"} for i in range(4)]


def test_missing_file(datasets: Make, write: Write, tmp_path: Path, refused: Refused) -> None:
    write("train.jsonl", GOOD)
    path = tmp_path / "trian.jsonl"
    refused(
        lambda: datasets(name="jsonl", path=str(path)).prompts("train"), str(path), "does not exist", "'train.jsonl'"
    )
    refused(lambda: datasets(name="jsonl", path=str(tmp_path)).prompts("train"), "is a folder", "train.jsonl", "hub")
    refused(lambda: datasets(name="parquet", path="no/where.parquet").prompts("train"), "there is no folder 'no'")


@pytest.mark.parametrize("text", ["", "\n\n", "[]"])
def test_empty_file(datasets: Make, write: Write, text: str, refused: Refused) -> None:
    refused(lambda: datasets(name="jsonl", path=write("a.jsonl", [text])).prompts("train"), "a.jsonl' is empty")


def test_broken_line_names_file_and_line(datasets: Make, write: Write, refused: Refused) -> None:
    path = write("a.jsonl", [GOOD[0], "\n", '{"prompt": "half\n'])
    refused(lambda: datasets(name="jsonl", path=path).prompts("train"), f"{path}:3", "not valid JSON", "half")
    path = write("b.json", ['[{"prompt": "a"},\n {"prompt": }]'])
    refused(lambda: datasets(name="jsonl", path=path).prompts("train"), f"{path}:2", "not valid JSON")


def test_a_key_that_occurs_twice_is_refused(datasets: Make, write: Write, refused: Refused) -> None:
    """Readers of JSON keep the last value without a word."""
    path = write("a.jsonl", [GOOD[0], '{"prompt": "a", "answer": "1", "answer": "2"}\n'])
    refused(lambda: datasets(name="jsonl", path=path).prompts("train"), f"{path}:2", "the key 'answer' occurs twice")
    path = write("b.json", ['[{"prompt": "a", "meta": {"k": 1, "k": 2}}]'])
    refused(lambda: datasets(name="jsonl", path=path).prompts("train"), "the key 'k' occurs twice")


def test_row_that_is_no_object(datasets: Make, write: Write, refused: Refused) -> None:
    path = write("a.jsonl", [GOOD[0], '"text"\n'])
    refused(lambda: datasets(name="jsonl", path=path).prompts("train"), f"{path}:2", "expected an object, got str")


def test_file_that_is_not_text(datasets: Make, tmp_path: Path, refused: Refused) -> None:
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(b'{"prompt": "x"}\n' * 99)[:-12])
    refused(
        lambda: datasets(name="jsonl", path=str(tmp_path / "a.jsonl.gz")).prompts("train"), "cannot be read", "whole"
    )
    (tmp_path / "a.jsonl").write_bytes(b"\xff\xfe\x00")
    refused(lambda: datasets(name="jsonl", path=str(tmp_path / "a.jsonl")).prompts("train"), "cannot be read", "UTF-8")
    (tmp_path / "a.parquet").write_bytes(b"PAR2")
    refused(lambda: datasets(name="parquet", path=str(tmp_path / "a.parquet")).prompts("train"), "not a Parquet file")


def test_mapped_column_missing(datasets: Make, write: Write, refused: Refused) -> None:
    path = write("a.jsonl", [{"questoin": "2 + 2?", "answer": "4"}])
    refused(
        lambda: datasets(name="jsonl", path=path, columns={"prompt": "question"}, heldout_fraction=0).prompts("train"),
        "no column 'question'",
        f"{path}, line 1",
        "answer, questoin",
        "did you mean 'questoin'?",
    )


def test_column_missing_in_one_row(datasets: Make, write: Write, refused: Refused) -> None:
    path = write("a.jsonl", [GOOD[0], {"answer": "4"}])
    refused(
        lambda: datasets(name="jsonl", path=path, heldout_fraction=0).prompts("train"),
        "no column 'prompt'",
        f"{path}, line 2",
        "dataset.columns={prompt: NAME}",
    )


@pytest.mark.parametrize("row", [{"prompt": "  "}, {"messages": [{"role": "user", "content": ""}]}])
def test_empty_prompt(datasets: Make, write: Write, row: dict[str, Any], refused: Refused) -> None:
    path = write("a.jsonl", [GOOD[0], "\n", row])
    refused(
        lambda: datasets(name="jsonl", path=path, heldout_fraction=0).prompts("train"),
        "prompt is empty",
        f"{path}, line 3",
    )


USER, SAID = {"role": "user", "content": " "}, {"role": "assistant", "content": "x"}


@pytest.mark.parametrize("system", [None, "Be brief."])
@pytest.mark.parametrize(
    ("kind", "row"),
    [
        ("demonstrations", {"prompt": " ", "completion": "x"}),
        ("demonstrations", {"messages": [SAID]}),
        ("demonstrations", {"messages": [USER, SAID]}),
        ("demonstrations", {"conversations": [{"from": "gpt", "value": "x"}]}),
        ("demonstrations", {"instruction": "", "output": "x"}),
        ("pairs", {"prompt": "", "chosen": "x", "rejected": "y"}),
        ("pairs", {"chosen": [USER, SAID], "rejected": [USER, {**SAID, "content": "y"}]}),
        ("pairs", {"chosen": "\n\nHuman: \n\nAssistant: x", "rejected": "\n\nHuman: \n\nAssistant: y"}),
    ],
)
def test_empty_prompt_of_an_answer(
    datasets: Make, write: Write, kind: str, row: dict[str, Any], system: str | None, refused: Refused
) -> None:
    path = write("a.jsonl", [{"prompt": "Hi", "completion": "x", "chosen": "x", "rejected": "y"}, row])
    loaded = datasets(name="jsonl", path=path, heldout_fraction=0, system_prompt=system)
    refused(lambda: getattr(loaded, kind)("train"), "prompt is empty", f"{path}, line 2")


def test_malformed_turn(datasets: Make, write: Write, refused: Refused) -> None:
    path = write("a.jsonl", [{"messages": [{"role": "narrator", "content": "x"}]}])
    refused(
        lambda: datasets(name="jsonl", path=path, heldout_fraction=0).prompts("train"), "narrator", f"{path}, line 1"
    )
    path = write("b.jsonl", [{"messages": []}])
    refused(
        lambda: datasets(name="jsonl", path=path, heldout_fraction=0).prompts("train"), "no turns", f"{path}, line 1"
    )


def test_duplicate_id_names_both_places(datasets: Make, write: Write, refused: Refused) -> None:
    path = write("a.jsonl", [{"id": 7, "prompt": "a"}, {"id": 8, "prompt": "b"}, {"id": 7, "prompt": "c"}])
    refused(
        lambda: datasets(name="jsonl", path=path, heldout_fraction=0).prompts("train"),
        "'a/7' occurs twice",
        f"{path}, line 1",
        f"{path}, line 3",
    )


def test_answer_pattern(datasets: Make, write: Write, refused: Refused) -> None:
    path = write("a.jsonl", [{"prompt": "a", "answer": "#### 1"}, {"prompt": "b", "answer": "it is 1"}])
    settings = {"name": "jsonl", "path": path, "heldout_fraction": 0}
    refused(
        lambda: datasets(**settings, answer_pattern="#### (.+)").prompts("train"), "does not match", f"{path}, line 2"
    )
    refused(lambda: datasets(**settings, answer_pattern="#### .+"), "has no group")
    refused(lambda: datasets(**settings, answer_pattern="(("), "not a regular expression")


def test_an_answer_pattern_that_backtracks_for_ever_is_refused(
    datasets: Make, write: Write, refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rlhf_core.data.schema.PATTERN_TIMEOUT_S", 0.2)
    path = write("slow.jsonl", [{"prompt": "?", "answer": "a" * 60 + "b"}])
    settings = {"name": "jsonl", "path": path, "heldout_fraction": 0}
    refused(
        lambda: datasets(**settings, answer_pattern="((?:a|a)+)$").prompts("train"),
        "needs more than",
        f"{path}, line 1",
    )


def test_template_without_prompt(datasets: Make, write: Write, refused: Refused) -> None:
    refused(lambda: datasets(name="jsonl", path=write("a.jsonl", GOOD), prompt_template="Q: {question}"), "{prompt}")


def test_two_sources_of_one_name(datasets: Make, write: Write, refused: Refused) -> None:
    one = {"name": "jsonl", "path": write("a.jsonl", GOOD)}
    refused(lambda: datasets(sources=[one, one]), "two sources are called 'a'", "label")


def test_hub_out_of_reach(datasets: Make, monkeypatch: pytest.MonkeyPatch, refused: Refused) -> None:
    import datasets as hub

    monkeypatch.setattr(hub.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    refused(
        lambda: datasets(name="no-one/no-such-set").prompts("train"),
        "'no-one/no-such-set'",
        "cannot be loaded",
        "without a network",
    )
    refused(lambda: datasets(name="hub", path="./no/such/folder").prompts("train"), "there is no folder or file")


def test_a_hub_that_does_not_answer_is_asked_once(
    datasets: Make, monkeypatch: pytest.MonkeyPatch, refused: Refused
) -> None:
    import socket

    from rlhf_core.models import sources as hub

    asked: list[object] = []

    def no_address(*address: object, **_: object) -> None:
        asked.append(address)
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", False)
    monkeypatch.setattr(socket, "getaddrinfo", no_address)
    hub._answers.cache_clear()
    refused(lambda: datasets(name="no-one/no-such-set").prompts("train"), "cannot be loaded", "without a network")
    assert len(asked) == 1
    hub._answers.cache_clear()


def test_what_lies_on_disk_is_a_path(
    datasets: Make, refused: Refused, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import datasets as hub

    rows = [{"prompt": f"{n} + {n}?"} for n in range(4)]
    monkeypatch.chdir(tmp_path)
    hub.Dataset.from_list(rows).save_to_disk("saved")
    hub.Dataset.from_list(rows).to_csv("rows.csv")
    for name in ("saved", "rows.csv", "./rows.csv", str(tmp_path / "saved")):
        texts = [p.text for p in datasets(name=name, heldout_fraction=0.0).prompts("train")]
        assert texts == [row["prompt"] for row in rows], name
    refused(lambda: datasets(name="other.csv").prompts("train"), "there is no folder or file 'other.csv'")
    (tmp_path / "gsm8k").mkdir()
    assert spell_dataset({"name": "gsm8k"}) == {"name": "gsm8k"}, "an installed data set is meant first"


def test_no_rows_left_to_train_on(datasets: Make, write: Write, refused: Refused) -> None:
    path = write("a.jsonl", GOOD)
    refused(
        lambda: datasets(name="jsonl", path=path, heldout_fraction=0.999999).prompts("train"), "no rows to train on"
    )
