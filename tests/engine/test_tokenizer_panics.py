"""A regular expression of tokenizer.json that the tokenizers library gives up on is refused, and the file named."""

from __future__ import annotations

import copy
import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rlhf_core.models.config import ModelConfig
from rlhf_core.models.load import load_tokenizer
from rlhf_core.models.prompt_format import Formatter
from rlhf_core.models.sources import resolve_model
from rlhf_core.types.errors import ModelError

AS, WORDS = "(a+)+b", "([xyz]+)+b"
"""Two that try every way to cut a text; the second only of certain words."""
SPELL = "xyzzy" * 12


def split(pattern: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def replace(pattern: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": {"Regex": pattern}, "content": "x"}


@pytest.fixture
def model(tmp_path: Path) -> Callable[..., Path]:
    """``model(pre_tokenizer={...})``: the pocket model with another tokenizer."""

    def make(**parts: Any) -> Path:
        folder = Path(shutil.copytree(resolve_model("pocket").path, tmp_path / "model"))
        file = folder / "tokenizer.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), **parts}))
        for manifest in folder.glob("*manifest*"):
            manifest.unlink()
        return folder

    return make


@pytest.mark.parametrize("parts", [{"pre_tokenizer": split(AS)}, {"normalizer": replace(AS)}], ids=["split", "replace"])
def test_it_is_refused_before_anything_is_read(
    model: Callable[..., Path], command: Callable[..., tuple[int, str]], parts: dict[str, Any]
) -> None:
    folder = model(**parts)
    with pytest.raises(ModelError, match=f"the tokenizer of '{folder}' cannot read or write a text") as caught:
        load_tokenizer(ModelConfig(path=str(folder)))
    assert "retry-limit" in str(caught.value)
    assert "tokenizer.json" in str(caught.value)
    code, err = command("train", "--algo", "sft", "--model", folder, "--run-dir", folder.parent / "run")
    assert code == 2
    assert "tokenizer.json" in err
    assert not (folder.parent / "run").exists()


def test_one_that_fails_on_certain_words_names_itself_where_they_come(model: Callable[..., Path]) -> None:
    tokenizer = load_tokenizer(ModelConfig(path=str(model(pre_tokenizer=split(WORDS)))))
    prompt = [{"role": "user", "content": SPELL}]
    for call in (
        lambda: tokenizer.encode(SPELL),
        lambda: tokenizer([SPELL, "a"]),
        lambda: Formatter(tokenizer, "auto").encode(prompt),
        lambda: copy.deepcopy(tokenizer).encode(SPELL),
        lambda: pickle.loads(pickle.dumps(tokenizer)).encode(SPELL),
    ):
        with pytest.raises(ModelError, match="gave up: Onig"):
            call()
    assert tokenizer.encode("What is 2 + 3?")
