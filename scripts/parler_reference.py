"""What parler-tts 0.2.3 itself says of a tiny model, for the tests of our port.

Run it where that package and the transformers that it pins are installed (not in this toolkit's environment):
``python parler_reference.py FILE``. The weights are a formula of their names, so that the record holds none.
"""

from __future__ import annotations

import json
import sys
import types
import zlib
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

DECODER: dict[str, Any] = {
    "vocab_size": 20,
    "max_position_embeddings": 64,
    "num_hidden_layers": 2,
    "ffn_dim": 24,
    "num_attention_heads": 2,
    "hidden_size": 16,
    "num_codebooks": 3,
    "dropout": 0.0,
    "pad_token_id": 16,
    "bos_token_id": 17,
    "eos_token_id": 16,
}
TEXT: dict[str, Any] = {"model_type": "t5", "vocab_size": 40, "d_model": 12, "d_kv": 6, "d_ff": 16, "num_layers": 1}
TEXT |= {"num_heads": 2, "dropout_rate": 0.0}
AUDIO: dict[str, Any] = {"model_type": "dac", "n_codebooks": 3, "codebook_size": 16, "downsampling_ratios": [4, 4]}
AUDIO |= {"encoder_hidden_size": 8, "decoder_hidden_size": 16, "codebook_dim": 4}
DESCRIPTION, PROMPT = [5, 9, 2, 1], [7, 3, 30, 1]
FRAMES = [[3, 1, 4], [1, 5, 9], [2, 6, 5], [3, 5, 8], [9, 7, 9]]


def fill(state: dict[str, torch.Tensor]) -> None:
    """Weights of a formula of their names; those of norms around one."""
    with torch.no_grad():
        for name, value in state.items():
            if name.endswith("embed_positions.weights"):
                continue
            named = name.replace("text_encoder.encoder.embed_tokens", "text_encoder.shared")
            phase = zlib.crc32(named.encode()) % 1000
            wave = torch.sin(torch.arange(value.numel(), dtype=torch.float64) * 0.7 + phase).reshape(value.shape)
            value.copy_((0.5 * wave + (1.0 if "norm" in name and name.endswith("weight") else 0.0)).to(value.dtype))


def delayed() -> list[list[int]]:
    """Labels ``[S, K]`` by the package's recipe: each codebook a step later, one end token, padding."""
    begin, end, books = DECODER["bos_token_id"], DECODER["eos_token_id"], DECODER["num_codebooks"]
    steps = len(FRAMES) + books
    rows = [[begin if s < k else end for k in range(books)] for s in range(steps)]
    for frame, codes in enumerate(FRAMES):
        for k, code in enumerate(codes):
            rows[frame + k][k] = code
    return rows


def main(file: Path) -> None:
    """Write the package's losses and logits."""
    for name in ("dac", "dac.model"):
        sys.modules.setdefault(name, types.ModuleType(name))
    sys.modules["dac.model"].DAC = object  # type: ignore[attr-defined]
    parler: Any = import_module("parler_tts")
    results = {}
    for rope in (False, True):
        config = parler.ParlerTTSConfig(
            vocab_size=40,
            text_encoder=dict(TEXT),
            audio_encoder=dict(AUDIO),
            decoder={**DECODER, "rope_embeddings": rope},
        )
        model = parler.ParlerTTSForConditionalGeneration(config).eval()
        fill({n: v for n, v in model.state_dict().items() if not n.startswith("audio_encoder")})
        model.config.pad_token_id, model.config.decoder_start_token_id = (
            DECODER["pad_token_id"],
            DECODER["bos_token_id"],
        )
        with torch.no_grad():
            out = model(
                input_ids=torch.tensor([DESCRIPTION]),
                prompt_input_ids=torch.tensor([PROMPT]),
                labels=torch.tensor([delayed()]),
                loss_reduction="sum",
            )
        logits = out.logits[:, -len(delayed()) :, :]
        names = sorted(n for n in model.state_dict() if not n.startswith("audio_encoder"))
        results["rope" if rope else "sinusoidal"] = {
            "codebook_losses": [float(loss) for loss in out.per_codebook_losses],
            "loss": float(out.loss),
            "logits_of_last_steps": logits[:, -2:, :].tolist(),
            "names": names,
        }
    versions = {n: import_module(n).__version__ for n in ("parler_tts", "transformers")}
    file.write_text(json.dumps({"versions": versions, **results}) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
