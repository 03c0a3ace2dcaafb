"""Scores are those of transformers' classifier of the same folder, whatever the tokenizer pads with."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer, PreTrainedModel

from rlhf_core.models import LoadedModel, ModelConfig, load_policy
from rlhf_plugin_reward.classifier_files import load_classifier, save_classifier
from rlhf_plugin_reward.encoding import Encoder, read_view
from rlhf_plugin_reward.net import RewardNet, fresh_net
from rlhf_plugin_reward.padding import with_pad_token, without_padding

PADS = {"eos": "<|end|>", "own": "<|pad|>", "text": "a"}
TEMPLATES = {
    "eos": None,
    "newline": "{% for m in messages %}<|user|>{{ m.content }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|user|>{% endif %}",
    "none": "",
}
TALKS = [(f"What is {n} + {n}?", answer) for n, answer in enumerate(["", "4", "I guess 5.", "Yes, it is so. " * 3])]


def policy_with(pad: str, template: str) -> LoadedModel:
    """The pocket model; without a pad token of its own where it pads with the end token."""
    policy = load_policy(ModelConfig())
    tokenizer = copy.deepcopy(policy.tokenizer)
    tokenizer.pad_token = PADS[pad]
    if TEMPLATES[template] is not None:
        tokenizer.chat_template = TEMPLATES[template] or None
    return LoadedModel(policy.model, tokenizer, policy.source, policy.context)


def batch_scores(folder: Path, rows: list[list[int]], side: str) -> torch.Tensor:
    """As anybody scores with that folder: padded by its tokenizer, pooled by its model."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model: PreTrainedModel = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    tokenizer.padding_side = side
    batch = tokenizer.pad({"input_ids": rows}, return_tensors="pt")
    with torch.inference_mode():
        return model(**batch).logits[:, 0]


def encoded(encoder: Encoder) -> list[list[int]]:
    return [list(encoder.encode([{"role": "user", "content": asked}], answer)) for asked, answer in TALKS]


@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize("pad", PADS)
def test_what_is_saved_scores_alike_in_transformers(pad: str, template: str, tmp_path: Path) -> None:
    policy = policy_with(pad, template)
    net = fresh_net(policy, 1, 0, "none").eval()
    rows = encoded(Encoder(policy.tokenizer, 256))
    with torch.inference_mode():
        want = net(rows)[:, 0]
    save_classifier(net, policy.tokenizer, tmp_path)
    got = batch_scores(tmp_path, rows, "right")
    assert torch.allclose(got, want, atol=1e-4)
    one_by_one = torch.cat([batch_scores(tmp_path, [row], "left") for row in rows])
    assert torch.allclose(one_by_one, want, atol=1e-4)
    again, tokenizer = load_classifier(str(tmp_path))
    assert encoded(Encoder(tokenizer, 256, read_view(tmp_path))) == rows
    with torch.inference_mode():
        assert torch.allclose(again(rows)[:, 0], want, atol=1e-4)


def test_a_tokenizer_without_a_special_token_to_spare_gets_a_pad_token_and_a_row(tmp_path: Path) -> None:
    policy = policy_with("eos", "eos")
    tokenizer: Any = policy.tokenizer
    specials = {i: t.content for i, t in tokenizer.added_tokens_decoder.items()}
    assert any("pad" in text for text in specials.values()), "the pocket model has one"
    assert with_pad_token(tokenizer).pad_token == "<|pad|>"
    bare = _without(tokenizer, "<|pad|>")
    assert with_pad_token(bare).pad_token_id == len(bare)
    net = fresh_net(policy, 1, 0, "none").eval()
    save_classifier(net, bare, tmp_path)
    weights = AutoModelForSequenceClassification.from_pretrained(tmp_path)
    assert weights.get_input_embeddings().weight.shape[0] == max(len(bare) + 1, net.trunk.config.vocab_size)
    rows = encoded(Encoder(bare, 256))
    with torch.inference_mode():
        assert torch.allclose(batch_scores(tmp_path, rows, "right"), net(rows)[:, 0], atol=1e-4)
    assert bare.pad_token == bare.eos_token, "the run's own tokenizer stays as it was"


def _without(tokenizer: Any, name: str) -> Any:
    """A tokenizer in which a special token is an ordinary word."""
    bare = copy.deepcopy(tokenizer)
    content = bare.backend_tokenizer.to_str().replace(name, "<|unused|>")
    return type(bare)(
        tokenizer_object=type(bare.backend_tokenizer).from_str(content),
        eos_token="<|end|>",
        pad_token="<|end|>",
        bos_token="<|bos|>",
        chat_template=tokenizer.chat_template,
    )


@pytest.mark.parametrize("pad", PADS)
@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_a_model_from_elsewhere_scores_as_transformers_pools(pad: str, kind: str, tmp_path: Path) -> None:
    tokenizer = policy_with(pad, "eos").tokenizer
    sizes = (
        {"n_embd": 32, "n_layer": 2, "n_head": 4} if kind == "gpt2" else {"hidden_size": 32, "intermediate_size": 64}
    )
    layers = {} if kind == "gpt2" else {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    torch.manual_seed(0)
    config = AutoConfig.for_model(
        kind, vocab_size=len(tokenizer), num_labels=1, pad_token_id=tokenizer.pad_token_id, **sizes, **layers
    )
    AutoModelForSequenceClassification.from_config(config).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    net, loaded = load_classifier(str(tmp_path))
    assert isinstance(net, RewardNet)
    rows = encoded(Encoder(loaded, 256, read_view(tmp_path)))
    with torch.inference_mode():
        assert torch.allclose(net(rows)[:, 0], batch_scores(tmp_path, rows, "right"), atol=1e-5)


@settings(max_examples=200, deadline=None)
@given(row=st.lists(st.integers(0, 3), min_size=1, max_size=8), pad=st.one_of(st.none(), st.integers(0, 3)))
def test_what_transformers_takes_for_padding(row: list[int], pad: int | None) -> None:
    kept = without_padding(row, pad)
    ids = torch.tensor(row)
    last = len(row) - 1 if pad is None else int((torch.arange(len(row)) * (ids != pad).int()).argmax())
    assert len(kept) - 1 == last
    assert list(kept) == row[: last + 1]
