"""A GGUF file is read once; what it becomes is the same model, is kept, and is checked before it is read again."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from rlhf_core.models import ModelConfig, ModelError, load_policy, resolve_model
from rlhf_plugin_gguf import convert

WORDS = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "a", "b", "▁a", "ab", "▁ab"]
TEMPLATE = (
    "{% for m in messages %}[{{ m['role'] }}]{{ m['content'] }}</s>{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)


def write_gguf(file: Path, seed: int = 0, *, omit: str = "none") -> LlamaForCausalLM:
    """A small Llama in float32 with a SentencePiece vocabulary, as llama.cpp's converter writes one."""
    torch.manual_seed(seed)
    shape = LlamaConfig(
        vocab_size=len(WORDS), hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4
    )
    model = LlamaForCausalLM(shape).eval()
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_context_length(128)
    writer.add_embedding_length(32)
    writer.add_block_count(2)
    writer.add_feed_forward_length(64)
    writer.add_head_count(4)
    writer.add_head_count_kv(4)
    writer.add_layer_norm_rms_eps(shape.rms_norm_eps)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_dimension_count(8)
    writer.add_vocab_size(len(WORDS))
    writer.add_tokenizer_model("llama")
    writer.add_token_list(WORDS)
    writer.add_token_scores([-float(i) for i in range(len(WORDS))])
    kinds = [gguf.TokenType.UNKNOWN, *2 * [gguf.TokenType.CONTROL], *256 * [gguf.TokenType.BYTE]]
    writer.add_token_types([*kinds, *(len(WORDS) - len(kinds)) * [gguf.TokenType.NORMAL]])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_chat_template(TEMPLATE)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, 2)
    for name, tensor in model.state_dict().items():
        stem, _, leaf = name.rpartition(".")
        if omit not in name:
            writer.add_tensor(f"{names.get_name(stem)}.{leaf}", permuted(name, tensor).numpy().astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return model


def permuted(name: str, weight: torch.Tensor) -> torch.Tensor:
    """Rows of queries and keys as llama.cpp's rotary embedding pairs them."""
    if not re.search(r"[qk]_proj", name):
        return weight
    return weight.reshape(4, 2, 4, 32).swapaxes(1, 2).reshape(weight.shape)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RLHF_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "gguf"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    write_gguf(tmp_path / "small.gguf")
    return tmp_path / "small.gguf"


@pytest.fixture
def conversions(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Files that were read."""
    read, files = convert._read, list[Path]()

    def counted(file: Path) -> Any:
        files.append(file)
        return read(file)

    monkeypatch.setattr(convert, "_read", counted)
    return files


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return model(input_ids=torch.tensor([[1, 261, 262, 263]])).logits


def test_the_folder_is_the_model_of_the_file(cache: Path, tmp_path: Path) -> None:
    model = write_gguf(tmp_path / "small.gguf")
    loaded = load_policy(ModelConfig(path=str(tmp_path / "small.gguf")))
    torch.testing.assert_close(logits(loaded.model), logits(model), rtol=1e-5, atol=1e-6)
    assert loaded.source == str(tmp_path / "small.gguf"), "records name what the user named"
    assert loaded.tokenizer.chat_template == TEMPLATE
    assert loaded.tokenizer.eos_token_id == 2
    assert getattr(loaded.model.config, "quantization_config", None) is None
    folder = Path(resolve_model(str(tmp_path / "small.gguf")).path)
    assert folder.parent == cache
    assert torch.equal(logits(AutoModelForCausalLM.from_pretrained(folder)), logits(loaded.model))
    text = "ab a\nß"
    assert AutoTokenizer.from_pretrained(folder)(text)["input_ids"] == loaded.tokenizer(text)["input_ids"]


def test_a_file_is_read_once_under_any_name(
    cache: Path, file: Path, conversions: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    first = resolve_model(str(file)).path
    assert "small.gguf is converted to a model folder, once" in capsys.readouterr().err
    renamed = shutil.copy(file, file.with_name("renamed.gguf"))
    assert {resolve_model(str(path)).path for path in (file, renamed)} == {first}
    load_policy(ModelConfig(path=str(renamed)))
    assert conversions == [file]
    assert capsys.readouterr().err == ""


def test_another_content_under_the_same_name_is_read(cache: Path, file: Path, conversions: list[Path]) -> None:
    before = load_policy(ModelConfig(path=str(file))).model
    write_gguf(file, seed=1)
    after = load_policy(ModelConfig(path=str(file))).model
    assert not torch.equal(logits(before), logits(after))
    assert len(conversions) == len(list(cache.iterdir())) == 2


@pytest.mark.parametrize("harm", ["edit", "cut", "remove", "unlist"])
def test_a_damaged_folder_is_written_again(cache: Path, file: Path, conversions: list[Path], harm: str) -> None:
    want = logits(load_policy(ModelConfig(path=str(file))).model)
    weights = next(cache.glob("*/model.safetensors"))
    match harm:
        case "edit":
            content = bytearray(weights.read_bytes())
            content[-5] ^= 1
            weights.write_bytes(content)
        case "cut":
            os.truncate(weights, weights.stat().st_size - 100)
        case "remove":
            weights.unlink()
        case _:
            (weights.parent / "manifest.json").unlink()
    assert torch.equal(logits(load_policy(ModelConfig(path=str(file))).model), want)
    assert len(conversions) == 2


@pytest.mark.slow
def test_a_process_that_is_killed_leaves_no_folder(cache: Path, file: Path) -> None:
    code = (
        "import os, sys; from pathlib import Path; from transformers import PreTrainedTokenizerBase as T\n"
        "from rlhf_core.models import resolve_model\n"
        "T.save_pretrained = lambda *args, **kwargs: os.kill(os.getpid(), 9)\n"
        "resolve_model(sys.argv[1])"
    )
    done = subprocess.run([sys.executable, "-c", code, str(file)], capture_output=True, text=True, check=False)
    assert done.returncode == -9, done.stderr
    assert [path for path in cache.iterdir() if not path.name.startswith(".partial-")] == []
    load_policy(ModelConfig(path=str(file)))
    assert len(list(cache.iterdir())) == 1, "what the killed process left aside is gone"


def test_a_file_without_all_weights_is_refused(cache: Path, tmp_path: Path) -> None:
    write_gguf(tmp_path / "small.gguf", omit="layers.1.mlp.up_proj")
    with pytest.raises(ModelError, match=r"lacks 1 of its model's weights, such as model.layers.1.mlp.up_proj"):
        resolve_model(str(tmp_path / "small.gguf"))
    assert not cache.exists() or not list(cache.iterdir())


def test_files_that_are_none(cache: Path, file: Path) -> None:
    page = file.with_name("page.gguf")
    page.write_text("<html>")
    with pytest.raises(ModelError, match="not a GGUF file"):
        resolve_model(str(page))
    for content in (b"GGUF" + b"\x03\x00\x00\x00" * 3, file.read_bytes()[:-2000]):
        page.write_bytes(content)
        with pytest.raises(ModelError, match="cannot read the model in") as caught:
            resolve_model(str(page))
        assert caught.value.exit_code == 2


@pytest.mark.slow
def test_every_command_that_takes_a_model_takes_the_file(
    file: Path, rlhf: Callable[..., Any], conversions: list[Path]
) -> None:
    rows = [f'{{"prompt": "a {i}", "completion": "ab"}}' for i in range(20)]
    Path("demos.jsonl").write_text("\n".join(rows))
    run = ("--algo", "sft", "--model", file, "--dataset", "demos.jsonl", "--set", "trainer.max_steps=1")
    for words in (
        ("data", "check", "demos.jsonl", "--algo", "sft", "--model", file),
        ("memory", "plan", *run),
        ("train", *run, "--dry-run"),
        ("train", *run, "--run-dir", "run"),
        ("generate", "--model", file, "--prompt", "a", "--max-tokens", "2"),
    ):
        ran = rlhf(*words)
        assert ran.code == 0, f"{words}\n{ran.out}{ran.err}"
    assert len(conversions) == 1
    assert rlhf("push", file, "--to", "org/name", "--dry-run").code == 2
