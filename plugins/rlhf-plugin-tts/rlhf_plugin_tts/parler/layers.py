"""The decoder of Parler-TTS, with the names of its own package (parler-tts 0.2.3, Apache-2.0, Lyth and King 2024).

Suffixes: ``_B`` rows, ``_M`` positions of the decoder, ``_N`` keys, ``_H`` hidden, ``_A`` heads, ``_D`` head width.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.activations import ACT2FN

Store = Callable[[int, Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor, Tensor, Tensor]]
"""(layer, new keys and values of the decoder, those of the description) -> all that there are."""


def rotate(x_BAMD: Tensor, angles_BMD: Tensor) -> Tensor:
    half = x_BAMD.shape[-1] // 2
    turned = torch.cat((-x_BAMD[..., half:], x_BAMD[..., :half]), -1)
    angles = angles_BMD[:, None]
    return x_BAMD * angles.cos().to(x_BAMD.dtype) + turned * angles.sin().to(x_BAMD.dtype)


class Attention(nn.Module):
    def __init__(self, config: Any, key_heads: int) -> None:
        super().__init__()
        width, self.heads, self.key_heads = config.hidden_size, config.num_attention_heads, key_heads
        self.head_dim = width // self.heads
        self.k_proj = nn.Linear(width, key_heads * self.head_dim, bias=False)
        self.v_proj = nn.Linear(width, key_heads * self.head_dim, bias=False)
        self.q_proj = nn.Linear(width, width, bias=False)
        self.out_proj = nn.Linear(width, width, bias=False)

    def keys_values(self, x_BMH: Tensor) -> tuple[Tensor, Tensor]:
        """``[B, A, M, D]`` each."""
        return tuple(p(x_BMH).unflatten(-1, (self.key_heads, -1)).transpose(1, 2) for p in (self.k_proj, self.v_proj))  # pyright: ignore[reportReturnType]

    def queries(self, x_BMH: Tensor) -> Tensor:
        """``[B, A, M, D]``."""
        return self.q_proj(x_BMH).unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def attend(self, query_BAMD: Tensor, key_BAND: Tensor, value_BAND: Tensor, seen_BMN: Tensor) -> Tensor:
        """``[B, M, H]``; where nothing is seen, zeros."""
        grouped = self.heads != self.key_heads
        seen = seen_BMN[:, None] | ~seen_BMN.any(-1)[:, None, :, None]
        out = F.scaled_dot_product_attention(query_BAMD, key_BAND, value_BAND, attn_mask=seen, enable_gqa=grouped)
        return self.out_proj(out.transpose(1, 2).flatten(2))


class Layer(nn.Module):
    """Self-attention, attention to the description, two linear layers."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        width = config.hidden_size
        self.self_attn = Attention(config, config.num_key_value_heads)
        self.activation_fn = ACT2FN[config.activation_function]
        self.self_attn_layer_norm = nn.LayerNorm(width)
        self.encoder_attn = Attention(config, config.num_cross_attention_key_value_heads)
        self.encoder_attn_layer_norm = nn.LayerNorm(width)
        self.fc1 = nn.Linear(width, config.ffn_dim, bias=False)
        self.fc2 = nn.Linear(config.ffn_dim, width, bias=False)
        self.final_layer_norm = nn.LayerNorm(width)

    def forward(
        self,
        x_BMH: Tensor,
        stored: tuple[Tensor, Tensor],
        described: tuple[Tensor, Tensor],
        seen_BMN: Tensor,
        seen_described_BMN: Tensor,
        angles_BMD: Tensor | None,
    ) -> Tensor:
        normed = self.self_attn_layer_norm(x_BMH)
        query = self._turned(self.self_attn.queries(normed), angles_BMD)
        x_BMH = x_BMH + self.self_attn.attend(query, *stored, seen_BMN)
        query = self._turned(self.encoder_attn.queries(self.encoder_attn_layer_norm(x_BMH)), angles_BMD)
        x_BMH = x_BMH + self.encoder_attn.attend(query, *described, seen_described_BMN)
        return x_BMH + self.fc2(self.activation_fn(self.fc1(self.final_layer_norm(x_BMH))))

    def keys_values(self, x_BMH: Tensor, angles_BMD: Tensor | None) -> tuple[Tensor, Tensor]:
        """Of the decoder's positions."""
        key, value = self.self_attn.keys_values(self.self_attn_layer_norm(x_BMH))
        return self._turned(key, angles_BMD), value

    @staticmethod
    def _turned(x_BAMD: Tensor, angles_BMD: Tensor | None) -> Tensor:
        return x_BAMD if angles_BMD is None else rotate(x_BAMD, angles_BMD)


class Positions(nn.Module):
    """Sinusoidal embeddings; a weight that is saved and never trained."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        half = config.hidden_size // 2
        rates = torch.exp(torch.arange(half).float() * -(math.log(10000) / (half - 1)))
        angles = torch.arange(config.max_position_embeddings).float()[:, None] * rates
        self.weights = nn.Parameter(torch.cat([angles.cos(), angles.sin()], 1), requires_grad=False)

    def forward(self, places_BM: Tensor) -> Tensor:
        """``[B, M, H]``."""
        return self.weights[places_BM.clamp(max=len(self.weights) - 1)]


class Decoder(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        self.config = config
        self.embed_tokens = nn.ModuleList(
            [nn.Embedding(config.vocab_size + 1, config.hidden_size) for _ in range(config.num_codebooks)]
        )
        if not config.rope_embeddings:
            self.embed_positions = Positions(config)
        self.layers = nn.ModuleList([Layer(config) for _ in range(config.num_hidden_layers)])
        self.layer_norm = nn.LayerNorm(config.hidden_size)

    def run(
        self,
        x_BMH: Tensor,
        places_BM: Tensor,
        described_BNH: Tensor | None,
        seen_BMN: Tensor,
        seen_described_BMN: Tensor,
        store: Store,
    ) -> Tensor:
        """Hidden states ``[B, M, H]``."""
        config, angles_BMD = self.config, None
        if config.rope_embeddings:
            width = config.hidden_size // config.num_attention_heads
            rates = config.rope_theta ** -(torch.arange(0, width, 2, device=x_BMH.device).float() / width)
            angles_BMD = (places_BM[..., None].float() * rates).repeat(1, 1, 2)
        else:
            x_BMH = x_BMH + self.embed_positions(places_BM).to(x_BMH.dtype)
        nothing = x_BMH.new_zeros(x_BMH.shape[0], config.num_key_value_heads, 0, 0)
        for n, module in enumerate(self.layers):
            layer: Any = module
            about = (nothing, nothing) if described_BNH is None else layer.encoder_attn.keys_values(described_BNH)
            pair = layer.keys_values(x_BMH, angles_BMD)
            key, value, about_key, about_value = store(n, *pair, *about)
            x_BMH = layer(x_BMH, (key, value), (about_key, about_value), seen_BMN, seen_described_BMN, angles_BMD)
        return self.layer_norm(x_BMH)
