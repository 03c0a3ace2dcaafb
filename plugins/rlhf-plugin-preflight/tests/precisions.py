"""Prints planned and measured bytes of a short run in float32, in mixed precision, and on two ranks: that gather layers
in 16 bits, or that divide each layer; forks for each."""

from __future__ import annotations

import json
import sys

from rlhf_core.models import ModelConfig, load_tokenizer
from scripts.bench._memory_run import plan_and_measure
from scripts.bench.memory_plan import FSDP, SIXTEEN_BITS, names_of, rows, settings_of


def four_heads(folder: str) -> str:
    """A random model as small as pocket, whose heads two ranks can divide."""
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = load_tokenizer(ModelConfig())
    sizes = {"hidden_size": 160, "intermediate_size": 432, "num_hidden_layers": 4, "num_attention_heads": 4}
    config = LlamaConfig(vocab_size=len(tokenizer), **sizes, tie_word_embeddings=True, bos_token_id=1, eos_token_id=2)
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


if __name__ == "__main__":
    row = rows()["sft, one process"]
    settings = settings_of("pocket", row)
    found = {
        chosen: plan_and_measure(names_of("pocket", row), (*settings, f"trainer.precision={chosen}"))
        for chosen in ("fp32", "bf16")
    }
    found["gathered in 16 bits"] = plan_and_measure(names_of("pocket", row), (*settings, *FSDP, *SIXTEEN_BITS), 2)
    divided, names = (*FSDP, "strategy.tensor_parallel=2"), names_of(four_heads(sys.argv[1]), row)
    found["layers divided"] = plan_and_measure(names, (*settings, *divided), 2)
    print(json.dumps(found))
