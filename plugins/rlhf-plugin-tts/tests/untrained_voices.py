"""Small codecs and voices that nobody trained: whole, loadable, and they speak noise."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

WORDS = ("<pad>", "<end>", "<unk>", "<speak>", "say:", "voice:", *"abcdefghijklmnopqrstuvwxyz.,!?'")
SIZE = 16
"""Codes of a codebook."""
SMALL: dict[str, Any] = {"num_hidden_layers": 2, "hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 24}
DECODER: dict[str, Any] = {
    "vocab_size": SIZE + 4,
    "max_position_embeddings": 128,
    "num_hidden_layers": 2,
    "ffn_dim": 24,
    "num_attention_heads": 2,
    "hidden_size": 16,
    "num_codebooks": 2,
    "pad_token_id": SIZE,
    "bos_token_id": SIZE + 1,
    "eos_token_id": SIZE,
    "initializer_factor": 0.3,
}
TEXT: dict[str, Any] = {"model_type": "t5", "vocab_size": 40, "d_model": 12, "d_kv": 6, "d_ff": 16, "num_layers": 1}


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


def untrained_dia(folder: Path, seed: int = 0) -> tuple[Path, Path]:
    """Folders of a Dia of two codebooks, the second three steps late, and of its codec."""
    import torch
    from transformers import DiaConfig, DiaForConditionalGeneration, DiaTokenizer

    torch.manual_seed(seed)
    encoder = {**SMALL, "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 128}
    decoder = {**SMALL, "num_key_value_heads": 1, "head_dim": 8, "max_position_embeddings": 128, "vocab_size": SIZE + 4}
    decoder |= {"cross_num_attention_heads": 2, "cross_head_dim": 8, "cross_num_key_value_heads": 2}
    decoder |= {"cross_hidden_size": 16, "num_channels": 2, "initializer_range": 0.3}
    decoder |= {"eos_token_id": SIZE, "pad_token_id": SIZE + 1, "bos_token_id": SIZE + 2}
    config = DiaConfig(
        encoder_config={**encoder, "initializer_range": 0.3}, decoder_config=decoder, delay_pattern=[0, 3]
    )
    DiaForConditionalGeneration(config).save_pretrained(folder / "dia")
    DiaTokenizer().save_pretrained(str(folder / "dia"))
    untrained_codec("dac").save_pretrained(folder / "dac")
    return folder / "dia", folder / "dac"


def untrained_csm(folder: Path, seed: int = 0) -> tuple[Path, Path]:
    """Folders of a CSM of two codebooks, with a tokenizer of letters, and of its codec."""
    import torch
    from tokenizers import AddedToken, Regex, Tokenizer, models, pre_tokenizers
    from transformers import CsmConfig, CsmForConditionalGeneration, PreTrainedTokenizerFast

    torch.manual_seed(seed)
    codec = untrained_codec("mimi")
    small = {**SMALL, "num_key_value_heads": 1, "vocab_size": SIZE + 3, "num_codebooks": 2, "initializer_range": 0.3}
    depth = {**small, "num_hidden_layers": 1, "hidden_size": 8, "backbone_hidden_size": 16}
    config = CsmConfig(
        **small,
        text_vocab_size=48,
        max_position_embeddings=128,
        depth_decoder_config={**depth, "max_position_embeddings": 3},
        codec_config=codec.config.to_dict(),
        codebook_pad_token_id=SIZE + 2,
        pad_token_id=0,
        bos_token_id=1,
        audio_token_id=2,
        audio_eos_token_id=2,
    )
    CsmForConditionalGeneration(config).save_pretrained(folder / "csm")
    names = ["<pad>", "<|begin_of_text|>", "<|end_of_text|>", "<unk>", *"abcdefghijklmnopqrstuvwxyz .,[]0123456789"]
    words = Tokenizer(models.WordLevel({name: n for n, name in enumerate(names)}, "<unk>"))
    words.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")  # pyright: ignore[reportAttributeAccessIssue]
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", unk_token="<unk>")
    marks: Any = {"bos_token": AddedToken(names[1], special=True), "eos_token": AddedToken(names[2], special=True)}
    tokenizer.add_special_tokens(marks)
    tokenizer.save_pretrained(folder / "csm")
    codec.save_pretrained(folder / "mimi")
    return folder / "csm", folder / "mimi"


def write_untrained_parler(folder: Path, seed: int = 0) -> tuple[Path, Path]:
    """Folders of a model, with a tokenizer of letters, and of a codec."""
    import torch
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    from rlhf_plugin_tts.parler.config import ParlerConfig
    from rlhf_plugin_tts.parler.stream import ParlerStream

    torch.manual_seed(seed)
    text = {**TEXT, "num_heads": 2, "dropout_rate": 0.0}
    config = ParlerConfig(vocab_size=40, text_encoder=text, audio_encoder={"model_type": "dac"}, decoder=dict(DECODER))
    ParlerStream(config).save_pretrained(folder / "parler")
    letters = {letter: n for n, letter in enumerate(["<pad>", "</s>", "<unk>", *"abcdefghijklmnopqrstuvwxyz .,"])}
    words = Tokenizer(models.WordLevel(letters, "<unk>"))
    words.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")  # pyright: ignore[reportAttributeAccessIssue]
    names = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
    PreTrainedTokenizerFast(tokenizer_object=words, **names).save_pretrained(folder / "parler")
    untrained_codec("dac").save_pretrained(folder / "dac")
    return folder / "parler", folder / "dac"


def write_untrained_voice(folder: Path, codes: int = 32, seed: int = 0) -> Path:
    """A small voice that nobody trained, for tests: whole, loadable, and it speaks noise."""
    import numpy as np
    import torch

    from rlhf_plugin_tts.pocket_voice.analysis import CEPSTRA
    from rlhf_plugin_tts.pocket_voice.codec import PocketCodec
    from rlhf_plugin_tts.pocket_voice.folder import new_model, write_voice

    torch.manual_seed(seed)
    draw = np.random.default_rng(seed)
    book = draw.normal(0, 0.5, (codes, CEPSTRA)) / (1 + np.arange(CEPSTRA))
    book[:, 0] -= 6.0
    write_voice(folder, new_model(codes, hidden=32, layers=1), PocketCodec(book.astype(np.float32)))
    return folder
