"""`rlhf generate` and `rlhf eval` through vLLM: what the native engine samples greedily, from the weights sent."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

PROMPTS = ("--prompt", "What is 2 + 3?", "--prompt", "Name a colour.", "--temperature", 0, "--max-tokens", 12, "--json")
SUMS = ("prompts", "--dataset", "pocket/arithmetic", "--verifier", "numeric", "--limit", 6, "--max-tokens", 8)


def test_generate_asks_the_server(call: Callable[..., Any], serve: Callable[..., Any]) -> None:
    server = serve()
    native = call("generate", *PROMPTS)
    asked = call("generate", *PROMPTS, "--engine", server.url)
    assert (native.code, asked.code) == (0, 0), asked.err
    texts = [[one["completions"][0]["text"] for one in json.loads(ran.out)] for ran in (native, asked)]
    assert texts[0] == texts[1]
    assert server.weights.endswith(":0"), "the weights were sent"


@pytest.mark.slow
def test_eval_asks_the_server_and_its_folder_says_so(
    call: Callable[..., Any], serve: Callable[..., Any], tmp_path: Path
) -> None:
    server, out = serve(), tmp_path / "e"
    ran = call("eval", *SUMS, "--engine", server.url, "--out", out, "--json")
    assert ran.code == 0, ran.err
    native = call("eval", *SUMS, "--out", tmp_path / "n", "--json")
    rows = [[json.loads(line)["completion"] for line in (p / "rows.jsonl").open()] for p in (out, tmp_path / "n")]
    assert rows[0] == rows[1]
    assert json.loads((out / "settings.json").read_text())["engine"] == "vllm"
    again = call("eval", *SUMS, "--out", out)
    assert (again.code, "engine: 'vllm' then, None now" in again.err, native.code) == (2, True, 0)


@pytest.mark.parametrize(
    ("engine", "said"),
    [
        (("http://127.0.0.1:9",), "no vLLM answers at http://127.0.0.1:9"),
        (("vllm",), "no vLLM server is named"),
        (("vlm",), "did you mean 'vllm'"),
    ],
)
@pytest.mark.parametrize("words", [("generate", "--prompt", "Why?"), ("eval", *SUMS)])
def test_a_server_that_is_not_there_is_refused(
    words: tuple[Any, ...], engine: tuple[str, ...], said: str, call: Callable[..., Any], tmp_path: Path
) -> None:
    more = ("--out", tmp_path / "x")
    ran = call(*words, "--engine", *engine, *more)
    assert ran.code == 2
    assert said in ran.err
