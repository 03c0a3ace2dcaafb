"""Loading, formatting, the reference policy, and what is written to disk."""

from __future__ import annotations

import copy
import json
import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub import constants
from transformers import AutoModelForCausalLM, AutoTokenizer

from rlhf_core.models.config import LoraSettings, ModelConfig
from rlhf_core.models.load import load_options, load_policy, load_tokenizer
from rlhf_core.models.prompt_format import Formatter, end_ids
from rlhf_core.models.reference import Reference
from rlhf_core.models.save import add_lora, load_weights, save_model
from rlhf_core.models.sources import Source
from rlhf_core.training.forward import completion_logprobs
from rlhf_core.types.errors import ModelError

TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
USER = ({"role": "user", "content": "the cat"},)


@pytest.fixture
def folder(tmp_path: Path, model: Any, tokenizer: Any) -> Path:
    save_model(model, tokenizer, tmp_path / "model")
    return tmp_path / "model"


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return model(input_ids=torch.tensor([[1, 2, 3, 4]])).logits


def train_a_little(model: Any, steps: int = 3) -> None:
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.02)
    for _ in range(steps):
        (-completion_logprobs(model, [(1, 2)], [(3, 4, 5)]).logprobs_BT.sum()).backward()
        optimizer.step()
        optimizer.zero_grad()


def test_a_folder_loads_and_reloads_in_plain_transformers(folder: Path, model: Any) -> None:
    loaded = load_policy(ModelConfig(path=str(folder)))
    named = len(loaded.tokenizer)  # the model has rows for more
    assert torch.equal(logits(loaded.model)[..., :named], logits(model)[..., :named])
    assert not loaded.model.training
    assert loaded.context == 128
    assert load_policy(ModelConfig(path=str(folder), max_context=40)).context == 40
    assert load_policy(ModelConfig(path=str(folder), dtype="bfloat16")).model.dtype == torch.bfloat16
    plain = AutoModelForCausalLM.from_pretrained(folder)
    assert torch.equal(logits(plain), logits(model))
    assert AutoTokenizer.from_pretrained(folder).pad_token_id == AutoTokenizer.from_pretrained(folder).eos_token_id


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
def test_an_incomplete_folder_names_the_missing_file(folder: Path, name: str) -> None:
    (folder / name).unlink()
    with pytest.raises(ModelError, match=f"has no {name}"):
        load_policy(ModelConfig(path=str(folder)))


def test_a_missing_shard_is_named(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    index = {"weight_map": {"a": "model-00001-of-00002.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelError, match=r"has no model-00001-of-00002\.safetensors"):
        load_policy(ModelConfig(path=str(folder)))


def test_pickled_weights_are_not_loaded(folder: Path, model: Any) -> None:
    (folder / "model.safetensors").unlink()
    torch.save(model.state_dict(), folder / "pytorch_model.bin")
    with pytest.raises(ModelError, match="pickle"):
        load_policy(ModelConfig(path=str(folder)))


def test_a_damaged_file_is_explained(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"\x00" * 100)
    with pytest.raises(ModelError, match="is cut short or damaged"):
        load_policy(ModelConfig(path=str(folder)))


def test_a_foreign_tokenizer_is_noticed(folder: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_tokens([f"<extra{i}>" for i in range(100)])
    tokenizer.save_pretrained(folder)
    with pytest.raises(ModelError, match=r"tokens but the model embeds only 320"):
        load_policy(ModelConfig(path=str(folder)))


@pytest.mark.parametrize(
    ("path", "word"),
    [("./nowhere", "no model folder"), ("/nowhere/at/all", "no model folder"), ("nowhere.gguf", "no file")],
)
def test_paths_that_do_not_exist(path: str, word: str) -> None:
    with pytest.raises(ModelError, match=word) as caught:
        load_policy(ModelConfig(path=path))
    assert caught.value.exit_code == 2
    assert caught.value.fix


def test_an_unreachable_hub_is_explained(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ModelError, match="Hugging Face hub") as caught:
        load_policy(ModelConfig(path="nobody/nothing"))
    assert "'pocket' work without network" in str(caught.value)


def test_modules_import_without_torch() -> None:
    code = (
        "import sys, rlhf_core.models.load, rlhf_core.models.config, "
        "rlhf_core.models.prompt_format, rlhf_core.models.sources, rlhf_plugin_native.config\n"
        "print([m for m in ('torch', 'transformers', 'peft') if m in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"


def test_formats(tokenizer: Any, caplog: pytest.LogCaptureFixture) -> None:
    raw = Formatter(tokenizer, "auto")
    assert tokenizer.decode(raw.encode([{"role": "system", "content": "hello"}, *USER])) == "hello\nthe cat"
    with pytest.raises(ModelError, match="no chat template") as caught:
        Formatter(tokenizer, "chat")
    assert "prompt_format=raw" in str(caught.value)
    templated = copy.deepcopy(tokenizer)
    templated.chat_template = TEMPLATE
    assert templated.decode(Formatter(templated, "auto").encode(USER)) == "<user>the cat<assistant>"
    with caplog.at_level(logging.WARNING):
        assert templated.decode(Formatter(templated, "raw").encode(USER)) == "the cat"
    assert "chat template" in caplog.text
    templated.chat_template = "{{ raise_exception('roles must alternate') }}"
    with pytest.raises(ModelError, match="roles must alternate"):
        Formatter(templated, "chat").encode(USER)


def test_end_ids_may_be_a_list(model: Any, tokenizer: Any) -> None:
    model.generation_config.eos_token_id = [7, 9]
    assert end_ids(model, tokenizer) == (7, 9, tokenizer.eos_token_id)
    model.generation_config.eos_token_id = 7
    assert end_ids(model, tokenizer) == (7, tokenizer.eos_token_id)


def test_reference_is_the_model_before_training(new_model: Any) -> None:
    model = new_model("llama")
    before = logits(model)
    reference = Reference.of(model)
    train_a_little(model)
    with reference.active() as frozen:
        assert torch.equal(logits(frozen), before)
    assert not any(p.requires_grad for p in frozen.parameters())
    assert not torch.allclose(logits(model), before)


def test_with_lora_the_reference_is_the_adapter_switched_off(new_model: Any) -> None:
    model = new_model("llama")
    before = logits(model)
    adapted = add_lora(model, LoraSettings(r=4))
    reference = Reference.of(adapted)
    torch.testing.assert_close(logits(adapted), before)
    train_a_little(adapted)
    trained = logits(adapted)
    assert not torch.allclose(trained, before)
    with reference.active() as same:
        assert same is adapted, "no second copy"
        assert torch.equal(logits(same), before)
    assert torch.equal(logits(adapted), trained)


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_adapters_are_merged_into_a_plain_model(new_model: Any, tokenizer: Any, tmp_path: Path, kind: str) -> None:
    adapted = add_lora(new_model(kind), LoraSettings(r=4))
    train_a_little(adapted)
    state = {k: v.clone() for k, v in adapted.state_dict().items()}
    save_model(adapted, tokenizer, tmp_path, merge=True)
    assert all(torch.equal(v, state[k]) for k, v in adapted.state_dict().items()), "saving changed the model"
    plain = AutoModelForCausalLM.from_pretrained(tmp_path)
    torch.testing.assert_close(logits(plain), logits(adapted), atol=1e-5, rtol=1e-5)
    assert not (tmp_path / "adapter_config.json").exists()


@pytest.mark.parametrize("lora", [None, LoraSettings(r=4)])
def test_checkpoint_weights_come_back_bit_for_bit(new_model: Any, tokenizer: Any, tmp_path: Path, lora: Any) -> None:
    torch.manual_seed(0)
    model = new_model("llama")
    base = {k: v.clone() for k, v in model.state_dict().items()}
    model = add_lora(model, lora) if lora else model
    train_a_little(model)
    save_model(model, tokenizer, tmp_path)
    fresh = new_model("llama")
    fresh.load_state_dict(base)
    fresh = add_lora(fresh, lora) if lora else fresh
    load_weights(fresh, tmp_path)
    assert torch.equal(logits(fresh), logits(model))


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_adapters_are_merged_from_the_gathered_weights(
    new_model: Any, tokenizer: Any, tmp_path: Path, kind: str
) -> None:
    """Where a strategy shards the weights, those in memory are not whole; only the gathered ones count."""
    from rlhf_core.models.save import merged_weights

    adapted = add_lora(new_model(kind, tokenizer.eos_token_id), LoraSettings(r=3))
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_B" in name:
                parameter.normal_()
    whole = {k: v.clone() for k, v in adapted.state_dict().items()}
    want = {k: v.clone() for k, v in merged_weights(adapted, adapted.state_dict()).items()}
    with torch.no_grad():
        for parameter in adapted.parameters():
            parameter.zero_()
    got = dict(merged_weights(adapted, whole))
    assert got.keys() == want.keys()
    assert all(torch.equal(got[k], want[k]) for k in want)


def test_target_modules_that_match_nothing(new_model: Any) -> None:
    with pytest.raises(ModelError, match="target_modules") as caught:
        add_lora(new_model("llama"), LoraSettings(target_modules=("no_such_layer",)))
    assert "q_proj" in str(caught.value)


def test_load_tokenizer_alone(folder: Path) -> None:
    assert load_tokenizer(ModelConfig(path=str(folder))).eos_token == "<end>"


def test_weights_that_are_missing_are_no_random_ones_and_left_over_ones_are_named(folder: Path, caplog: Any) -> None:
    from safetensors.torch import load_file, save_file

    file, name = folder / "model.safetensors", "model.layers.0.mlp.down_proj.weight"
    weights = load_file(file)
    save_file({**weights, name.replace("0", "77"): weights[name].clone()}, file, {"format": "pt"})
    load_policy(ModelConfig(path=str(folder)))
    assert "holds 1 weights that its config.json has no place for, such as model.layers.77." in caplog.text
    del weights[name]
    save_file(weights, file, {"format": "pt"})
    with pytest.raises(ModelError, match=f"lacks 1 of its model's weights: {name}"):
        load_policy(ModelConfig(path=str(folder)))


def test_without_a_network_the_hub_is_asked_once_and_local_copies_serve(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(ModelError, match="the Hugging Face hub could not be reached"):
        load_policy(ModelConfig(path="nobody/nothing"))
    assert "Retry" not in capfd.readouterr().err
    config = ModelConfig(path="nobody/nothing")
    assert load_options(config, Source("nobody/nothing", local=False))["local_files_only"]
