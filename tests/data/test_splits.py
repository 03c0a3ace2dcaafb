"""Splits of a data set by name, and slices of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from rlhf_core.data.datasets import Datasets

Make = Callable[..., Datasets]


@pytest.mark.parametrize(("split", "kept"), [("train[:1]", "a"), ("train[50%:]", "cd"), ("train[:1]+train[3:]", "ad")])
def test_slices_of_a_split(datasets: Make, tmp_path: Path, split: str, kept: str) -> None:
    import datasets as hub

    (tmp_path / "folder").mkdir()
    for file in (tmp_path / "folder" / "train.csv", tmp_path / "one.csv"):
        file.write_text("prompt\na\nb\nc\nd\n")
    hub.DatasetDict({"train": hub.Dataset.from_list([{"prompt": c} for c in "abcd"])}).save_to_disk(tmp_path / "saved")
    (tmp_path / "one.jsonl").write_text("".join(f'{{"prompt": "{c}"}}\n' for c in "abcd"))
    for name in ("folder", "one.csv", "one.jsonl", "saved"):
        loaded = datasets(name="hub", path=str(tmp_path / name), split=split, heldout_fraction=0)
        assert "".join(p.text for p in loaded.prompts("train")) == kept, name


@pytest.mark.parametrize(("part", "kept"), [("", "abcd"), ("[:2]", "ab")])
def test_a_saved_split_may_have_any_name(datasets: Make, tmp_path: Path, part: str, kept: str) -> None:
    import datasets as hub

    rows = hub.Dataset.from_list([{"prompt": c} for c in "abcd"])
    hub.DatasetDict({"train-sft": rows}).save_to_disk(tmp_path / "saved")
    loaded = datasets(name="hub", path=str(tmp_path / "saved"), split=f"train-sft{part}", heldout_fraction=0)
    assert "".join(p.text for p in loaded.prompts("train")) == kept


def test_cells_of_a_table_are_texts_as_they_are_written(datasets: Make, write: Write) -> None:
    cells = ["007", "1.10", "NA", "None", "True", "5", "12345678901234567890123", "x" * 200_000]
    lines = [f"q{n}?,{cell}\n" for n, cell in enumerate(cells)]
    loaded = datasets(name=write("a.csv", ["\ufeffprompt,answer\n", *lines, "\n", "blank?,\n"]), heldout_fraction=0)
    assert [p.answer for p in loaded.prompts("train")] == [*cells, None]
    head = "prompt,answer\n"
    for text, says in {"": "empty", head: "empty", head + "a, b,1\n": "b.csv:2", head + '"a,1\n': "repair"}.items():
        with pytest.raises(DatasetError, match=says):
            datasets(name=write("b.csv", [text])).prompts("train")


def test_a_file_whose_name_does_not_say_what_it_holds_is_refused(datasets: Make, tmp_path: Path) -> None:
    (tmp_path / "rows").write_text("prompt,answer\n1,2\n")
    with pytest.raises(DatasetError, match=r"nothing says what the file '.*rows' holds") as caught:
        datasets(name=str(tmp_path / "rows")).prompts("train")
    assert ".csv" in caught.value.fix


def test_gold_stays_with_its_source(datasets: Make) -> None:
    loaded = datasets(name="pocket", subset="assistant", prompt_template="Please: {prompt}")
    prompt = loaded.prompts("heldout")[0]
    assert loaded.has_gold(prompt)
    assert prompt.answer is None
    assert set(prompt.meta) == {"prompt"}  # without the template; nothing of the gold score
    right = loaded.demonstrations("heldout")[0]
    assert right.prompt == prompt.messages
    good, bad = (loaded.gold(Sample(prompt, text)) for text in (right.completion, "I do not know that at all."))
    assert good is not None
    assert bad is not None
    assert good["value"] == 1.0 > bad["value"]


def test_sources_without_gold_say_so(datasets: Make, write: Write) -> None:
    loaded = all_of(datasets, write("a.jsonl", [{"prompt": "x"}]))
    (prompt,) = loaded.prompts("train")
    assert not loaded.has_gold(prompt)
    assert loaded.gold(Sample(prompt, "x")) is None


def test_a_source_may_have_its_own_reward(datasets: Make, write: Write) -> None:
    loaded = datasets(
        sources=[
            {"name": "jsonl", "path": write("a.jsonl", [{"prompt": "x"}])},
            {"name": "pocket", "subset": "arithmetic", "reward": {"name": "verifier", "timeout_s": 2}},
        ]
    )
    rewards = loaded.own_rewards()
    assert set(rewards) == {"pocket/arithmetic"}
    assert rewards["pocket/arithmetic"].model_dump()["timeout_s"] == 2


def read(path: Path) -> list[dict[str, Any]]:
    text = gzip.decompress(path.read_bytes()).decode()
    return json.loads(text) if text.startswith("[") else [json.loads(line) for line in text.split("\n") if line]


def transcript_of(prompt: tuple[Any, ...], completion: str) -> str:
    names = {"user": "Human", "assistant": "Assistant"}
    turns = [*prompt, said(completion)]
    return "".join(f"\n\n{names[t['role']]}: {t['content']}" for t in turns)


def test_real_hh_rlhf(datasets: Make, test_data: Path) -> None:
    path = test_data / "hh_rlhf" / "pairs.jsonl.gz"
    loaded = datasets(name="jsonl", path=str(path), heldout_fraction=0)
    pairs, rows = loaded.pairs("train"), read(path)
    assert loaded.counts == {"pairs_prompt_mismatch": 2, "pairs_empty_completion": 4}
    assert len(pairs) == len(rows) - 6 == 1706
    for pair in pairs:
        row = rows[int(pair.id.rpartition("/")[2])]
        for side in ("chosen", "rejected"):
            assert "".join(transcript_of(pair.prompt, getattr(pair, side)).split()) == "".join(row[side].split())


@pytest.mark.slow
def test_real_gsm8k(datasets: Make, test_data: Path) -> None:
    folder = test_data / "gsm8k"
    loaded = datasets(
        name="jsonl",
        path=str(folder / "train.jsonl.gz"),
        heldout_path=str(folder / "test.jsonl.gz"),
        columns={"prompt": "question"},
        answer_pattern="#### (.+)",
    )
    rows = {"train": read(folder / "train.jsonl.gz"), "heldout": read(folder / "test.jsonl.gz")}
    for split, count in (("train", 7473), ("heldout", 1319)):
        prompts = loaded.prompts(split)
        assert len(prompts) == count
        given = [(r["question"], r["answer"].split("#### ")[1]) for r in rows[split]]
        assert [(p.text, p.answer) for p in prompts] == given
        assert prompts[17].id == f"gsm8k/{'train' if split == 'train' else 'test'}/000017"


def test_real_sharegpt_pairs(datasets: Make, test_data: Path) -> None:
    path = test_data / "preference_demo" / "dpo.json.gz"
    pairs, rows = datasets(name="jsonl", path=str(path), heldout_fraction=0).pairs("train"), read(path)
    assert len(pairs) == 300
    for pair, row in zip(pairs, rows):
        assert [t["content"] for t in pair.prompt] == [t["value"] for t in row["conversations"]]
        assert (pair.chosen, pair.rejected) == (row["chosen"]["value"], row["rejected"]["value"])
