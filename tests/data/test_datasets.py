"""Rows of every common form become the right prompts, pairs and demonstrations; what is dropped is counted."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rlhf_core.data.datasets import Datasets
from rlhf_core.types.errors import DatasetError
from rlhf_core.types.rollouts import Sample

Make = Callable[..., Datasets]
Write = Callable[..., str]


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def said(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


def all_of(datasets: Make, path: str, **settings: Any) -> Datasets:
    return datasets(name="jsonl", path=path, heldout_fraction=0, **settings)


def test_columns_template_system_and_meta(datasets: Make, write: Write) -> None:
    path = write("gsm/train.jsonl", [{"question": "2 + 2?", "answer": "easy #### 4", "level": 1, "cases": ["a"]}])
    (prompt,) = all_of(
        datasets,
        path,
        columns={"prompt": "question", "tests": "cases"},
        answer_pattern="#### (.+)",
        prompt_template="Q: {prompt}\nA:",
        system_prompt="Be brief.",
    ).prompts("train")
    assert prompt.messages == ({"role": "system", "content": "Be brief."}, user("Q: 2 + 2?\nA:"))
    assert (prompt.id, prompt.source, prompt.answer) == ("gsm/train/000000", "gsm", "4")
    assert prompt.meta == {"level": 1, "tests": ["a"], "prompt": "2 + 2?"}


def test_u2028_inside_json_is_not_a_line_end(datasets: Make, write: Write) -> None:
    path = write("a.jsonl", [json.dumps({"prompt": "one\u2028two\u0085three"}, ensure_ascii=False) + "\n"])
    assert all_of(datasets, path).prompts("train")[0].text == "one\u2028two\u0085three"


def test_byte_order_mark_and_windows_line_ends(datasets: Make, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'\xef\xbb\xbf{"prompt": "a"}\r\n{"prompt": "b"}\r\n')
    assert [p.text for p in all_of(datasets, str(tmp_path / "a.jsonl")).prompts("train")] == ["a", "b"]


@pytest.mark.parametrize(
    ("row", "turns"),
    [
        ({"prompt": "Hi"}, (user("Hi"),)),
        ({"prompt": [user("Hi")]}, (user("Hi"),)),
        ({"messages": [user("Hi"), said("Yes?"), user("Go")]}, (user("Hi"), said("Yes?"), user("Go"))),
        (
            {"conversations": [{"from": "human", "value": "Hi"}], "system": "S"},
            ({"role": "system", "content": "S"}, user("Hi")),
        ),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]}, (user("Hi"),)),
        ({"instruction": "Add.", "input": "1 2"}, (user("Add.\n\n1 2"),)),
        (
            {"instruction": "And now?", "history": [["Hi", "Yes?"]], "system": "S"},
            ({"role": "system", "content": "S"}, user("Hi"), said("Yes?"), user("And now?")),
        ),
        ({"chosen": "\n\nHuman: Hi\n\nAssistant: A", "rejected": "\n\nHuman: Hi\n\nAssistant: B"}, (user("Hi"),)),
    ],
)
def test_prompt_forms(datasets: Make, write: Write, row: dict[str, Any], turns: tuple[dict[str, str], ...]) -> None:
    (prompt,) = all_of(datasets, write("a.jsonl", [row])).prompts("train")
    assert prompt.messages == turns


def test_a_column_inside_a_mapping_is_named_with_dots(datasets: Make, write: Write, refused: Any) -> None:
    row = {"prompt": [user("2 + 3?")], "reward_model": {"ground_truth": "5"}, "extra_info": {"tests": ["a"]}}
    columns = {"answer": "reward_model.ground_truth", "tests": "extra_info.tests"}
    (prompt,) = all_of(datasets, write("a.jsonl", [row]), columns=columns).prompts("train")
    assert (prompt.answer, list(prompt.meta["tests"])) == ("5", ["a"])
    columns = {"answer": "reward_model.truth"}
    refused(lambda: all_of(datasets, write("a.jsonl", [row]), columns=columns).prompts("train"), "reward_model.truth")


@pytest.mark.parametrize("key", ["images", "audio", "videos"])
def test_what_a_turn_holds_beside_its_text_is_not_lost(datasets: Make, write: Write, refused: Any, key: str) -> None:
    lost, whole = ({"messages": [user("a"), {**said("b"), key: value}]} for value in (["x"], None))
    path = write("a.jsonl", [lost, whole])
    refused(lambda: all_of(datasets, path).demonstrations("train"), f"a turn has {key}", f"{path}, line 1")
    (row,) = all_of(datasets, write("b.jsonl", [whole])).demonstrations("train")
    assert row.completion == "b"


def test_a_completion_of_several_turns_keeps_them_all(datasets: Make, write: Write) -> None:
    row = {"prompt": "a", "completion": [said("b"), user("c"), said("d")]}
    (read,) = all_of(datasets, write("a.jsonl", [row])).demonstrations("train")
    assert (read.prompt, read.completion) == ((user("a"), said("b"), user("c")), "d")


def test_final_answer_of_a_conversation_is_cut_and_counted(datasets: Make, write: Write) -> None:
    loaded = all_of(datasets, write("a.jsonl", [{"messages": [user("Hi"), said("Hello")]}]))
    assert loaded.prompts("train")[0].messages == (user("Hi"),)
    assert loaded.counts == {"prompts_final_turn_removed": 1}


PAIR_FORMS = [
    {"prompt": "Hi", "chosen": "good", "rejected": "bad"},
    {"chosen": [user("Hi"), said("good")], "rejected": [user("Hi"), said("bad")]},
    {"chosen": "\n\nHuman: Hi\n\nAssistant: good", "rejected": "\n\nHuman: Hi\n\nAssistant: bad"},
    {"prompt": [user("Hi")], "chosen": [said("good")], "rejected": [said("bad")]},
    {
        "conversations": [{"from": "human", "value": "Hi"}],
        "chosen": {"from": "gpt", "value": "good"},
        "rejected": {"from": "gpt", "value": "bad"},
    },
    {"prompt": "Hi", "chosen": [user("Hi"), said("good")], "rejected": [user("Hi"), said("bad")]},
]


@pytest.mark.parametrize("row", PAIR_FORMS)
def test_pair_forms(datasets: Make, write: Write, row: dict[str, Any]) -> None:
    (pair,) = all_of(datasets, write("a.jsonl", [row])).pairs("train")
    assert (pair.prompt, pair.chosen, pair.rejected) == ((user("Hi"),), "good", "bad")


def test_a_completion_that_quotes_a_dialogue_is_not_a_transcript(datasets: Make, write: Write) -> None:
    text = "Here is one:\n\nHuman: Hi\n\nAssistant: Hello"
    (pair,) = all_of(datasets, write("a.jsonl", [{"prompt": "Show.", "chosen": text, "rejected": "no"}])).pairs("train")
    assert (pair.prompt, pair.chosen) == ((user("Show."),), text)


def test_unusable_pairs_are_dropped_and_counted(datasets: Make, write: Write) -> None:
    good = [{"prompt": f"p{i}", "chosen": "a", "rejected": "b"} for i in range(7)]
    bad = [
        {"prompt": "p", "chosen": "a", "rejected": "a"},
        {"prompt": "p", "chosen": " ", "rejected": "b"},
        {"chosen": [user("x"), said("a")], "rejected": [user("y"), said("b")]},
    ]
    path = write("a.jsonl", [*good, *bad])
    loaded = all_of(datasets, path, max_dropped_fraction=0.3)
    assert len(loaded.pairs("train")) == len(loaded.pairs("train")) == 7
    assert loaded.counts == {"pairs_identical": 1, "pairs_empty_completion": 1, "pairs_prompt_mismatch": 1}
    with pytest.raises(DatasetError, match=r"3 of 10 rows of 'a' cannot be used\n.*line 8\n.*are the same"):
        all_of(datasets, path, max_dropped_fraction=0.2).pairs("train")


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": "Hi", "completion": "good"},
        {"messages": [user("Hi"), said("good")]},
        {"instruction": "Hi", "output": "good"},
        {"question": "Hi", "answer": "good"},
        PAIR_FORMS[1],
        PAIR_FORMS[2],
    ],
)
def test_demonstration_forms(datasets: Make, write: Write, row: dict[str, Any]) -> None:
    (demo,) = all_of(datasets, write("a.jsonl", [row])).demonstrations("train")
    assert (demo.prompt, demo.completion) == ((user("Hi"),), "good")


def test_unpaired_responses_come_from_labels_and_from_pairs(datasets: Make, write: Write) -> None:
    rows = [
        {"id": "a", "prompt": "Hi", "completion": "Go.", "label": False},
        {"id": "b", "prompt": "Hi", "chosen": "Hello.", "rejected": "No."},
    ]
    loaded = all_of(datasets, write("a.jsonl", rows))
    unpaired = loaded.unpaired("train")
    assert [(r.completion, r.desirable) for r in unpaired] == [("Go.", False), ("Hello.", True), ("No.", False)]


@pytest.mark.parametrize("by", ["id", "place"])
def test_heldout_by_hash_of_id(datasets: Make, write: Write, by: str) -> None:
    rows = [{"id": f"r{i}", "prompt": f"p{i}"} for i in range(400)]
    loaded = datasets(name="jsonl", path=write("a.jsonl", rows), heldout_fraction=0.1, heldout_by=by)
    held = {p.id for p in loaded.prompts("heldout")}
    train = {p.id for p in loaded.prompts("train")}
    assert held.isdisjoint(train)
    assert len(held | train) == 400
    assert 20 <= len(held) <= 60
    shuffled = datasets(
        name="jsonl",
        path=write("b/a.jsonl", [*rows[200:], {"id": "new", "prompt": "x"}, *rows[:200]]),
        heldout_fraction=0.1,
        heldout_by=by,
    )
    # an id keeps its side wherever its row moves
    assert {p.id for p in shuffled.prompts("heldout")} - {"a/new"} == held


def test_own_heldout_file_is_used_whole(datasets: Make, write: Write) -> None:
    loaded = datasets(
        name="jsonl",
        path=write("a/train.jsonl", [{"prompt": "t"}] * 50),
        heldout_path=write("a/test.jsonl", [{"prompt": "h"}] * 3),
    )
    assert [len(loaded.prompts(s)) for s in ("train", "heldout")] == [50, 3]


def test_limit_is_counted(datasets: Make, write: Write) -> None:
    loaded = all_of(datasets, write("a.jsonl", [{"prompt": f"p{i}"} for i in range(10)]), limit=4)
    assert [p.text for p in loaded.prompts("train")] == ["p0", "p1", "p2", "p3"]
    assert loaded.counts == {"rows_beyond_limit": 6}


def test_parquet_with_values_that_json_lacks(datasets: Make, tmp_path: Path) -> None:
    import datetime

    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = [{"prompt": "a", "when": datetime.date(2026, 1, 1), "n": 1}]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    loaded = datasets(name="parquet", path=str(tmp_path / "a.parquet"), heldout_fraction=0)
    assert loaded.prompts("train")[0].meta == {"n": 1}
    assert loaded.counts == {"columns_not_json": 1}


@pytest.mark.parametrize("form", ["folder", "saved", "file"])
def test_hub_reads_local_copies(
    datasets: Make, write: Write, tmp_path: Path, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import datasets as hub

    monkeypatch.setattr(hub.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    rows = {s: [{"question": f"{s} {i}", "answer": str(i)} for i in range(5)] for s in ("train", "test")}
    if form == "saved":
        hub.DatasetDict({s: hub.Dataset.from_list(r) for s, r in rows.items()}).save_to_disk(str(tmp_path / "set"))
    else:
        for split, found in rows.items():
            write(f"set/{split}.jsonl", found)
    path = str(tmp_path / "set" / ("train.jsonl" if form == "file" else ""))
    options = {} if form == "file" else {"heldout_split": "test"}
    loaded = datasets(name="hub", path=path, columns={"prompt": "question"}, heldout_fraction=0, **options)
    assert [(p.text, p.answer) for p in loaded.prompts("train")] == [(f"train {i}", str(i)) for i in range(5)]
    assert [p.text for p in loaded.prompts("heldout")] == ([] if form == "file" else [f"test {i}" for i in range(5)])
    if form != "file":
        with pytest.raises(DatasetError, match="validation"):
            datasets(name="hub", path=path, split="validation").prompts("train")


@pytest.mark.parametrize("name", ["a.csv", "a.csv.gz", "a.tsv", "A.TSV"])
def test_tables_are_read_by_the_ending_of_their_name(
    datasets: Make, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import datasets as hub

    monkeypatch.setattr(hub.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    mark = "\t" if "tsv" in name.lower() else ","
    text = f"prompt{mark}answer\none, two{mark}5\n".replace("one, two", '"one, two"').encode()
    (tmp_path / name).write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
    loaded = datasets(name=str(tmp_path / name), heldout_fraction=0)
    assert [(p.text, p.answer) for p in loaded.prompts("train")] == [("one, two", "5")]


@pytest.mark.parametrize("ending", ["csv", "tsv"])
def test_tables_of_a_folder_are_read_as_written_too(datasets: Make, tmp_path: Path, ending: str) -> None:
    mark = "\t" if ending == "tsv" else ","
    for split, cells in {"train-1": ["007"], "train-2": ["NA", "1.10"], "test": ["True"]}.items():
        rows = "".join(f"{split}?{mark}{cell}\n" for cell in cells)
        (tmp_path / f"{split}.{ending}").write_text(f"prompt{mark}answer\n{rows}")
    loaded = datasets(name="hub", path=str(tmp_path), heldout_split="test")
    assert [p.answer for p in loaded.prompts("train")] == ["007", "NA", "1.10"]
    assert [p.answer for p in loaded.prompts("heldout")] == ["True"]
    with pytest.raises(DatasetError, match="no split 'tain'"):
        datasets(name="hub", path=str(tmp_path), split="tain[:1]").prompts("train")


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


def test_a_verdict_is_of_the_last_answer_whatever_its_weight(datasets: Make, write: Write) -> None:
    turns = [("user", "q"), ("assistant", "good"), ("user", "again"), ("assistant", "bad")]
    messages = [{"role": role, "content": text} for role, text in turns]
    row = {"messages": [*messages[:3], {**messages[3], "weight": 0}], "label": False}
    loaded = datasets(name=write("a.jsonl", [row]), heldout_fraction=0)
    assert [(r.completion, r.desirable) for r in loaded.unpaired("train")] == [("bad", False)]
    assert [r.completion for r in loaded.demonstrations("train")] == ["good"]


@pytest.mark.parametrize("side", ["chosen", "rejected"])
def test_a_pair_whose_answer_is_not_to_be_learned_is_dropped(side: str, datasets: Make, write: Write) -> None:
    def turns(answer: str, weight: int = 1) -> list[dict[str, Any]]:
        last = {"role": "assistant", "content": answer, "weight": weight}
        return [*({"role": r, "content": c} for r, c in (("user", "q"), ("assistant", "a"), ("user", "again"))), last]

    kept = {"chosen": turns("good"), "rejected": turns("bad")}
    path = write("a.jsonl", [kept, {**kept, side: turns("other", 0)}])
    loaded = all_of(datasets, path, max_dropped_fraction=0.5)
    assert [(p.chosen, p.rejected) for p in loaded.pairs("train")] == [("good", "bad")]
    assert sum(loaded.counts.values()) == 1
