"""Small codecs and codec voices that nobody trained, for tests: whole, loadable, and they speak noise."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

WORDS = ("<pad>", "<end>", "<unk>", "<speak>", "say:", "voice:", *"abcdefghijklmnopqrstuvwxyz.,!?'")
SIZE = 16
"""Codes of a codebook."""


def untrained_codec(family: str) -> Any:
    """A codec of a family, with 16 codes in each codebook and 64 samples a frame or about so."""
    hf: Any = import_module("transformers")

    encoder: Any = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    dac: Any = {"encoder_hidden_size": 8, "downsampling_ratios": (8, 8), "decoder_hidden_size": 16}
    dac["codebook_size"] = SIZE
    if family == "dac":
        return hf.DacModel(hf.DacConfig(**dac, n_codebooks=2, codebook_dim=4, sampling_rate=4000))
    if family == "mimi":
        small: Any = {"upsampling_ratios": [8, 8], "num_filters": 4, "codebook_size": SIZE, "codebook_dim": 8}
        small |= {
            "vector_quantization_hidden_dimension": 8,
            "num_quantizers": 2,
            "upsample_groups": 16,
            "num_key_value_heads": 2,
        }
        return hf.MimiModel(hf.MimiConfig(**encoder, **small, frame_rate=187.5))
    if family == "encodec":
        small: Any = {"upsampling_ratios": (8, 8), "num_filters": 4, "codebook_size": SIZE, "num_lstm_layers": 1}
        return hf.EncodecModel(hf.EncodecConfig(target_bandwidths=(3.0,), hidden_size=8, **small))
    if family == "xcodec":
        conv = {"conv_dim": (8, 8), "conv_kernel": (10, 8), "conv_stride": (8, 8)}
        hubert = hf.HubertConfig(**encoder, **conv, num_conv_pos_embeddings=16, num_conv_pos_embedding_groups=2)
        inner = {"acoustic_model_config": hf.DacConfig(**dac), "semantic_model_config": hubert}
        return hf.XcodecModel(hf.XcodecConfig(target_bandwidths=(2.0,), codebook_size=SIZE, **inner))
    if family in ("xcodec2", "neucodec"):
        config: Any = hf.Xcodec2Config if family == "xcodec2" else hf.NeuCodecConfig
        model: Any = hf.Xcodec2Model if family == "xcodec2" else hf.NeuCodecModel
        semantic = hf.Wav2Vec2BertConfig(**encoder, feature_projection_input_dim=8, output_hidden_size=16)
        small: Any = {"quantization_dim": 48, "quantization_levels": (4, 4), "downsampling_ratios": (8, 8)}
        small |= {**encoder, "hidden_size": 32, "head_dim": 16, "encoder_hidden_size": 4, "num_key_value_heads": 2}
        return model(config(**small, semantic_model_config=semantic))
    raise ValueError(family)


def untrained_language_model(folder: Path, codes: int, special: bool = False, seed: int = 0) -> Path:
    """A Llama with ``codes`` tokens named ``<|s_0|>`` and on, and its tokenizer.

    Args:
        folder: where it is written.
        codes: how many.
        special: whether they are special tokens of the tokenizer.
        seed: of the weights.
    """
    import torch
    from tokenizers import AddedToken, Regex, Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, "<unk>"))
    words.pre_tokenizer = pre_tokenizers.Split(Regex("say:|voice:|."), "isolated")  # pyright: ignore[reportAttributeAccessIssue]
    names: list[Any] = [AddedToken(f"<|s_{n}|>", special=special, normalized=False) for n in range(codes)]
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="<pad>", eos_token="<end>", unk_token="<unk>", model_max_length=512
    )
    speak: list[Any] = [AddedToken("<speak>", special=True, normalized=False)]
    tokenizer.add_tokens([*speak, *names], special_tokens=special)
    torch.manual_seed(seed)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=1,
            num_attention_heads=2,
            num_key_value_heads=2,
            max_position_embeddings=512,
            pad_token_id=0,
            eos_token_id=1,
            bos_token_id=None,
        )
    )
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
