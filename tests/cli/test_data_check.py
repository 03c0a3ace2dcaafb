"""`rlhf data check`: what it finds in a file, and what it refuses."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlhf_core.cli.main import main
from rlhf_core.models import Formatter, ModelConfig, ModelError, load_tokenizer, resolve_model
from rlhf_plugin_preflight.datacheck.duplicates import (
    BANDS,
    LOOKED_AT,
    NEAR,
    ROWS_OF_BAND,
    Shingles,
    candidates,
    jaccard,
    near_duplicates,
    shingles_of,
    signatures,
)
from rlhf_plugin_preflight.datacheck.items import Item
from rlhf_plugin_preflight.datacheck.lengths import Measure, tokens_of

Check = Callable[..., tuple[int, Any]]
STORY = "the quick brown fox jumps over the lazy dog while seven green parrots watch from a tall old oak tree"
CALLS = [{"id": "1", "function": {"name": "weather", "arguments": "{city"}}]


@pytest.fixture
def check(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Check:
    """``check(rows, "--algo", "sft", ...)`` -> (exit code, JSON; or text with ``text=True``)."""
    monkeypatch.chdir(tmp_path)

    def run(rows: Iterable[Any], *options: str, text: bool = False) -> tuple[int, Any]:
        write("train.jsonl", rows)
        with pytest.raises(SystemExit) as done:
            main(["data", "check", "train.jsonl", *options, *(() if text else ("--json",))])
        out, err = capsys.readouterr()
        code = int(done.value.code or 0)
        return code, out if text else json.loads(out) if out else err

    return run


def write(name: str, rows: Iterable[Any]) -> None:
    Path(name).write_text("".join(row if isinstance(row, str) else json.dumps(row) + "\n" for row in rows))


def demo(question: str, answer: str = "5", **more: Any) -> dict[str, Any]:
    return {"prompt": question, "completion": answer, **more}


def turns(*texts: str, **more: Any) -> dict[str, Any]:
    roles = ("user", "assistant") * len(texts)
    said = [{"role": role, "content": text} for role, text in zip(roles, texts)]
    return {"messages": [*said[:-1], {**said[-1], **more}]}


ALL = ("--set", "dataset.heldout_fraction=0")


def test_all_broken_rows_are_named_with_their_lines(check: Check) -> None:
    rows = [
        demo("What is 2 + 3?"),
        "{oops\n",
        turns("Hi", "I look it up.", tool_calls=CALLS),
        "[1]\n",
        {"messages": [{"role": "alien", "content": "Hi"}]},
        turns("Why?", "Because.", images=["a.png"]),
        demo("", "5"),
        {"answer": "5"},
    ]
    code, result = check(rows, "--algo", "sft", *ALL)
    assert code == 2
    told = {(row.get("where", ""), row["what"]) for row in result["broken"]}
    assert told == {
        ("", "train.jsonl:2: not valid JSON: Expecting property name enclosed in double quotes"),
        ("", "train.jsonl:4: expected an object, got list"),
        ("train.jsonl, line 3", "the arguments of a call of 'weather' are not valid JSON"),
        ("train.jsonl, line 5", "a turn is not {role: user | assistant | system | tool, content: text}"),
        ("train.jsonl, line 6", "a turn has images besides its text, which training cannot read"),
        ("train.jsonl, line 7", "the prompt is empty"),
        ("train.jsonl, line 8", "dataset 'jsonl' has no column 'prompt'"),
    }
    assert result["train"] == 1
    _, text = check(rows, "--algo", "sft", *ALL, "--broken", "2", text=True)
    assert "broken rows: 7" in text
    assert "  line 2: not valid JSON" in text
    assert "and 5 more; --broken 7 shows all" in text


def test_training_refuses_broken_calls_with_the_same_words(check: Check, capsys: pytest.CaptureFixture[str]) -> None:
    check([turns("Hi", "I look it up.", tool_calls=CALLS)], "--algo", "sft")
    with pytest.raises(SystemExit) as done:
        main(["train", "--algo", "sft", "--dataset", "train.jsonl", "--run-dir", "run"])
    err = capsys.readouterr().err
    assert done.value.code == 2
    assert "the arguments of a call of 'weather' are not valid JSON" in err
    assert "train.jsonl, line 1" in err


def test_forms_and_columns(check: Check) -> None:
    rows = [demo("a", note=1), turns("b", "c"), {"instruction": "d", "input": "e", "output": "f", "tools": []}]
    code, result = check(rows, "--algo", "sft", *ALL)
    assert code == 0
    assert result["forms"] == {"prompt + completion": 1, "messages": 1, "Alpaca + output": 1}
    assert result["columns"]["read"] == {
        "prompt": 1,
        "completion": 1,
        "messages": 1,
        "instruction": 1,
        "input": 1,
        "output": 1,
    }
    assert result["columns"]["ignored"] == {"note": 1, "tools": 1}
    _, result = check([{"prompt": "a", "answer": "1", "note": 1}], "--algo", "grpo", *ALL)
    assert (result["reads"], result["columns"]["carried"]) == ("prompts", {"note": 1})


def test_rows_beyond_the_limit_are_counted_and_not_looked_at(check: Check) -> None:
    rows = [demo("a"), demo("b"), demo("c", note=1), {"x": 1}]
    code, result = check(rows, "--algo", "sft", *ALL, "--set", "dataset.limit=2")
    assert (code, result["rows"], result["forms"]) == (0, 4, {"prompt + completion": 2})
    assert (result["counts"], result["columns"]["ignored"]) == ({"rows_beyond_limit": 2}, {})


def test_rows_without_use_are_told_by_reason_and_line(check: Check) -> None:
    rows = [{"prompt": f"q {i}", "chosen": "a", "rejected": "b"} for i in range(20)]
    rows[7] = {"prompt": "q", "chosen": "a", "rejected": "a"}
    code, result = check(rows, "--algo", "dpo", *ALL)
    assert (code, result["train"], result["counts"]) == (0, 19, {"pairs_identical": 1})
    assert [(row["where"], row["reason"]) for row in result["dropped"]] == [("train.jsonl, line 8", "pairs_identical")]


def test_lengths_and_what_is_beyond_the_limit(check: Check) -> None:
    rows = [demo("What is 2 + 3?"), demo("What is 2 + 3? " * 60)]
    code, result = check(rows, "--algo", "sft", *ALL, "--set", "trainer.max_length=100")
    lengths = result["lengths"]["train"]
    assert (code, lengths["limit"], lengths["beyond"], lengths["becomes"]) == (0, 100, 1, "dropped")
    assert lengths["min"] < 32
    assert sum(row["rows"] for row in lengths["histogram"]) == 2
    _, text = check(rows, "--algo", "sft", *ALL, "--set", "trainer.max_length=100", text=True)
    assert "training would refuse to start: dataset.max_dropped_fraction is 10%" in text
    pair = {"prompt": "Hi", "chosen": "yes " * 200, "rejected": "no"}
    _, result = check([pair], "--algo", "reward_model", *ALL)
    assert result["lengths"]["train"]["becomes"] == "truncated"
    _, result = check([{"prompt": "Hi " * 200}], "--algo", "grpo", *ALL)
    assert result["lengths"]["train"]["limit"] == 256 - 48


def test_a_share_of_the_rows_is_as_long_as_is_said(check: Check) -> None:
    rows = [demo("What is 2 + 3?"), demo("What is 3 + 4?"), demo("What is 2 + 3? " + STORY * 3)]
    found = check(rows, "--algo", "sft", *ALL)[1]["lengths"]["train"]
    assert found["min"] == found["p50"] < found["max"], "two of three rows are as long"
    assert found["p95"] == found["p99"] == found["max"], "two of three rows are not 95 %"
    assert f"half up to {found['min']}, 95% up to {found['max']}" in check(rows, "--algo", "sft", *ALL, text=True)[1]


def test_duplicates_exact_near_and_of_prompts(check: Check) -> None:
    rows = [
        *(demo(f"Tell me number {i}.", str(i)) for i in range(30)),
        demo("Tell me number 3.", "3"),
        demo("Tell me  number 4.", "four"),
        demo(STORY),
        demo(STORY.replace("tall", "small")),
    ]
    _, result = check(rows, "--algo", "sft", *ALL)
    found = result["duplicates"]
    assert (found["exact"]["rows"], found["same_prompt"]["rows"], found["near"]["rows"]) == (1, 2, 0)
    assert found["exact"]["examples"] == [["train.jsonl, line 4", "train.jsonl, line 31"]]
    longer = f"{STORY} {STORY.replace('fox', 'cat')} and so the long day ended for all of them in the wood"
    _, result = check([demo(longer), demo(longer.replace("oak", "elm", 1)), demo("x")], "--algo", "sft", *ALL)
    (pair,) = result["duplicates"]["near"]["examples"]
    assert pair["where"] == ["train.jsonl, line 1", "train.jsonl, line 2"]
    assert 0.8 <= pair["similarity"] < 1


def test_held_out_rows_that_training_asks_too(check: Check, tmp_path: Path) -> None:
    write("held.jsonl", [demo("What is 1 + 1?", "2"), demo(f"{STORY} {STORY} and then it slept.")])
    rows = [demo("What is  1 + 1?", "two"), demo(f"{STORY} {STORY} and then it ate.")]
    _, result = check(rows, "--algo", "sft", "--set", "dataset.heldout_path=held.jsonl")
    overlap = result["duplicates"]["overlap"]
    assert (overlap["rows"], overlap["near_rows"]) == (1, 1)
    assert ["held.jsonl, line 1", "train.jsonl, line 1"] in overlap["examples"]
    _, result = check(rows, "--algo", "sft", "--heldout", "held.jsonl")
    assert result["counts"] == {"train_rows_held_out": 1}
    assert result["duplicates"]["overlap"]["rows"] == 0


def test_contamination(check: Check) -> None:
    bench = [{"question": f"{STORY} how many parrots?"}, {"question": "Is a whale a fish?"}, {"question": "unseen"}]
    write("bench.jsonl", bench)
    rows = [
        demo("Repeat it.", f"Well: {STORY.upper()}, and so on"),
        demo("is a whale a fish", "no"),
        demo("whale", "?"),
    ]
    code, result = check(rows, "--algo", "sft", *ALL, "--against", "bench.jsonl", "--ngram", "8")
    (found,) = result["contamination"]
    assert (code, found["prompts"], found["shared"], found["contained"], found["training_rows"]) == (0, 3, 2, 2, 2)
    assert {(e["where"], e["benchmark"]) for e in found["examples"]} == {
        ("train.jsonl, line 1", "bench.jsonl, line 1"),
        ("train.jsonl, line 2", "bench.jsonl, line 2"),
    }
    _, result = check(rows, "--algo", "sft", *ALL, "--against", "gsm8k=bench.jsonl", text=False)
    assert "answer" in str(result)  # the benchmark's own form needs the answer column


def test_words_that_many_prompts_share_are_not_contamination(check: Check) -> None:
    write("bench.jsonl", [{"question": f"{STORY} {i}"} for i in range(20)])
    _, result = check([demo(f"{STORY} again")], "--algo", "sft", *ALL, "--against", "bench.jsonl")
    assert result["contamination"][0]["shared"] == 0


def test_a_verifier_is_asked_about_every_row(check: Check) -> None:
    rows = [{"prompt": "2 + 3?", "answer": "5"}, {"prompt": "2 + 4?", "answer": "six"}]
    code, result = check(rows, "--algo", "grpo", "--reward", "verifier", *ALL)
    assert (code, [row["where"] for row in result["broken"]]) == (2, ["train.jsonl, line 2"])


def test_a_trainer_that_reads_more_of_a_row_is_asked(check: Check) -> None:
    rows = [{"prompt": "a", "steps": ["1", "2"], "labels": [True, True]}, {"prompt": "b", "steps": ["1"], "labels": []}]
    code, result = check(rows, "--algo", "prm", *ALL)
    assert (code, [row["what"] for row in result["broken"]]) == (2, ["1 steps but 0 labels"])


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ((), ("no algorithm chosen",)),
        (("--algo", "stf"), ("sft",)),
        (("--algo", "sft", "--against", "gsmk"), ("there is no benchmark 'gsmk'", "gsm8k")),
        (("--algo", "sft", "--against", "nope.jsonl"), ("nope.jsonl", "does not exist")),
        (("--algo", "sft", "--against", "train.jsonl", "--ngram", "2"), ("--ngram",)),
        (("--algo", "sft", "--model", "nowhere/at/all"), ("nowhere/at/all",)),
        (("--algo", "sft", "--set", "dataset.columns={prompt: nothing}"), ("no column 'nothing'", "line 1")),
    ],
)
def test_bad_input(check: Check, options: tuple[str, ...], parts: tuple[str, ...]) -> None:
    code, said = check([demo("a")], *options)
    assert code == 2
    assert all(part in str(said) for part in parts), said


@pytest.mark.slow
def test_gsm8k_is_found_in_itself(test_data: Path, check: Check) -> None:
    test = test_data / "gsm8k" / "test.jsonl.gz"
    import gzip

    with gzip.open(test, "rt") as file:
        rows = [json.loads(line) for line in file][:200]
    code, result = check(
        [turns(row["question"], row["answer"]) for row in rows], "--algo", "sft", *ALL, "--against", f"gsm8k={test}"
    )
    (found,) = result["contamination"]
    assert (code, found["prompts"], found["contained"]) == (0, 1319, 200)


def test_a_conversation_that_the_model_cannot_be_given_is_broken(check: Check) -> None:
    code, result = check(
        [turns("a", "b", "c", "d"), turns("a", "b")], "--algo", "sft", "--set", "model.prompt_format=raw", *ALL
    )
    assert code == 2
    (row,) = result["broken"]
    assert row["where"] == "train.jsonl, line 1"
    assert "cannot be written without a chat template" in row["what"]


@pytest.mark.parametrize("model", ["pocket", "pocket-tools"])
@given(data=st.data())
@settings(max_examples=40, deadline=None)
def test_rows_tokenized_together_are_as_long_as_one_by_one(model: str, data: st.DataObject) -> None:
    """Whatever stands in a row: names of special tokens, calls, several turns, several completions, nothing."""
    formatter = Formatter(tokenizer_of(model), "auto")
    specials = st.sampled_from([*formatter.text.specials, "<tool_call>", " ", "\n"])
    text = st.one_of(st.text(max_size=20), st.lists(st.one_of(specials, st.text(max_size=5)), max_size=4).map("".join))
    asked = st.lists(text.map(lambda t: {"role": "user", "content": t}), min_size=1, max_size=1).map(tuple)
    replies = st.lists(text, max_size=3).map(tuple)
    row = st.tuples(asked, replies).map(lambda parts: Item("row", *parts))
    rows = data.draw(st.lists(row, max_size=8))
    measure = Measure.__new__(Measure)
    measure.formatter, measure.limit, measure.becomes, measure.why = formatter, 1 << 30, "", ""
    refused: list[Any] = []
    together = measure.lengths(rows, refused).counts
    alone: list[int] = []
    for item in rows:
        with suppress(ModelError):
            alone.append(tokens_of(item, formatter))
    assert sorted(together) == sorted(alone)
    assert len(refused) == len(rows) - len(alone)


@functools.cache
def tokenizer_of(model: str) -> Any:
    return load_tokenizer(ModelConfig(path=model))


def test_tokenizing_together_is_what_happens(check: Check, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlhf_plugin_preflight.datacheck.lengths.tokens_of", None)
    code, report = check([demo(f"What is {n} + 1?") for n in range(20)], "--algo", "sft", *ALL)
    assert (code, report["lengths"]["train"]["min"]) == (0, 14)


def test_a_tokenizer_that_needs_no_torch_is_read_without_it(check: Check) -> None:
    write("train.jsonl", [demo(f"What is {n} + 1?") for n in range(20)])
    code = (
        "import sys; from rlhf_core.cli.main import main\n"
        "try: main(['data', 'check', 'train.jsonl', '--algo', 'sft'])\n"
        "except SystemExit as done: assert not done.code\n"
        "assert 'transformers' in sys.modules and 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("model", ["pocket", "pocket-tools", "pocket-voice"])
def test_the_light_reader_reads_what_autotokenizer_does(model: str) -> None:
    from transformers import AutoTokenizer

    ours, theirs = load_tokenizer(ModelConfig(path=model)), AutoTokenizer.from_pretrained(resolve_model(model).path)
    assert type(ours) is type(theirs)
    assert ours.backend_tokenizer.to_str() == theirs.backend_tokenizer.to_str()
    assert ours.special_tokens_map == theirs.special_tokens_map
    assert ours.init_kwargs == theirs.init_kwargs


def found_one_by_one(shingles: Sequence[frozenset[int]]) -> list[tuple[int, int]]:
    """The pairs of texts with a band in common, by comparing each text with the buckets so far."""
    buckets: dict[tuple[int, bytes], list[int]] = {}
    pairs: set[tuple[int, int]] = set()
    for index in (i for i, texts in enumerate(shingles) if texts):
        signature = signatures([shingles[index]])[0]
        for band in range(BANDS):
            part = signature[band * ROWS_OF_BAND : (band + 1) * ROWS_OF_BAND]
            bucket = buckets.setdefault((band, part.tobytes()), [])
            pairs |= {(other, index) for other in bucket}
            if len(bucket) < LOOKED_AT:
                bucket.append(index)
    return sorted(pairs)


TEXTS = st.lists(st.lists(st.sampled_from("abcdefgh"), max_size=12).map(" ".join), max_size=60)


@given(words=TEXTS)
@settings(max_examples=60, deadline=None)
def test_candidates_are_those_that_one_by_one_comparison_finds(words: list[str]) -> None:
    shingles = [shingles_of(text) for text in words]
    assert candidates(shingles) == found_one_by_one(shingles)


@given(words=TEXTS, ours=st.integers(0, 60))
@settings(max_examples=60, deadline=None)
def test_near_duplicates_of_ours_and_across_are_found_in_one_pass(words: list[str], ours: int) -> None:
    shingles = Shingles(words)
    among, across = near_duplicates(shingles, ours)
    assert near_duplicates(Shingles(words[:ours]), ours) == (among, [])
    similar = [p for p in candidates(shingles) if jaccard(shingles[p[0]], shingles[p[1]]) >= NEAR]
    assert {p.second for p in across} == {second for first, second in similar if first < ours <= second}
    assert all(pair.first < ours <= pair.second for pair in across)
