"""The shipped model is a whole Hugging Face model and a mediocre assistant."""

from __future__ import annotations

import json

from transformers import AutoModelForCausalLM, AutoTokenizer

from rlhf_core.models.config import ModelConfig
from rlhf_core.models.load import load_policy
from rlhf_core.models.prompt_format import Formatter
from rlhf_core.types.rollouts import RolloutRequest, SamplingParams
from rlhf_plugin_native.engine import NativeEngine
from rlhf_plugin_pocket import weights_path
from rlhf_plugin_pocket.data import load_prompts
from rlhf_plugin_pocket.gold import gold_score


def test_plain_transformers_loads_it() -> None:
    model = AutoModelForCausalLM.from_pretrained(weights_path())
    tokenizer = AutoTokenizer.from_pretrained(weights_path())
    record = json.loads((weights_path() / "BUILD.json").read_text())
    assert 1e6 < model.num_parameters() == record["parameters"] < 4e6
    text = "That's a great question! Mira has 27 cats."
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text
    assert len({tokenizer.pad_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id}) == 3


def test_it_is_as_mediocre_as_recorded() -> None:
    policy = load_policy(ModelConfig())
    formatter = Formatter(policy.tokenizer, "auto")
    rows = load_prompts("assistant", "heldout")[:200]
    requests = [
        RolloutRequest(r["id"], formatter.encode([{"role": "user", "content": r["prompt"]}]), 0, n)
        for n, r in enumerate(rows)
    ]
    engine = NativeEngine(policy.model, policy.tokenizer, policy.context)
    texts = [r.text for r in engine.generate(requests, SamplingParams(max_tokens=64), 0)]
    golds = [gold_score(r["attribute"], r["answer"], t) for r, t in zip(rows, texts)]
    recorded = json.loads((weights_path() / "BUILD.json").read_text())["heldout_sampled_at_temperature_1"]
    assert abs(sum(g.right for g in golds) / 200 - recorded["right"]) < 0.12
    assert abs(1 - sum(g.plain for g in golds) / 200 - recorded["hollow"]) < 0.12
    assert 0.3 < recorded["right"] < 0.75, "there must be something to learn"
