"""Models that are not there, not whole, or do not fit the request."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Refused = Callable[..., str]


def test_no_such_folder(refused: Refused) -> None:
    refused("--model", "./modle", says=("there is no model folder './modle'",))


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
def test_incomplete(refused: Refused, model_folder: Path, name: str) -> None:
    (model_folder / name).unlink()
    refused("--model", model_folder, says=(f"model folder '{model_folder}' has no {name}",))


def test_weights_cut_short(refused: Refused, model_folder: Path) -> None:
    weights = model_folder / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:1000])
    refused("--model", model_folder, says=(f"'{weights}' is cut short or damaged", "it ends within its header"))
    weights.write_bytes(whole[:-1])
    refused("--model", model_folder, says=(f"has {len(whole) - 1} bytes, its header describes {len(whole)}",))


def test_chat_template_missing(refused: Refused, model_folder: Path) -> None:
    (model_folder / "chat_template.jinja").unlink()
    settings = model_folder / "tokenizer_config.json"
    settings.write_text(json.dumps({k: v for k, v in json.loads(settings.read_text()).items() if k != "chat_template"}))
    refused(
        "--model",
        model_folder,
        "--set",
        "model.prompt_format=chat",
        says=("tokenizer has no chat template", "model.prompt_format=raw"),
    )


def test_max_tokens_beyond_the_context(refused: Refused) -> None:
    refused("--set", "trainer.sampling.max_tokens=999", says=("max_tokens 999 leaves no room", "256"))


def test_lora_on_no_layer(refused: Refused) -> None:
    refused("--set", "model.lora.target_modules=q_porj", says=("target_modules", "q_porj", "q_proj"))


VISION = {
    "model_type": "llava",
    "text_config": {"model_type": "llama"},
    "vision_config": {"model_type": "clip_vision_model"},
}


@pytest.mark.parametrize(
    ("config", "why"),
    [
        (VISION, "it reads images or sound"),
        ({"model_type": "t5", "architectures": ["T5Model"], "is_encoder_decoder": True}, "T5Model, which cannot"),
        ({"model_type": "vit"}, "has no causal language model"),
    ],
    ids=["vision", "encoder-decoder", "no text"],
)
def test_a_model_that_does_not_write_text_after_text_is_refused_before_it_is_loaded(
    config: dict[str, Any], why: str, refused: Refused, model_folder: Path
) -> None:
    (model_folder / "config.json").write_text(json.dumps(config))
    refused("--model", model_folder, says=(why, "give a"))
