"""A small Dia and a small CSM that nobody trained, for tests: whole, loadable, and they speak noise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rlhf_plugin_tts.codec_voice.untrained import SIZE, untrained_codec

SMALL: dict[str, Any] = {"num_hidden_layers": 2, "hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 24}


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
