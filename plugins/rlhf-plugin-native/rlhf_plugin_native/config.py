"""The native engine's options."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from rlhf_core.config import ComponentConfig


class NativeRolloutConfig(ComponentConfig):
    """Samples with the policy itself, in process. Works with any transformers causal language model."""

    name: str = "native"
    component: ClassVar[str] = "rlhf_plugin_native.engine:NativeEngine.from_config"
    gives_support: ClassVar[bool] = True
    """Rollouts of truncated sampling say what each draw could choose from."""
    max_concurrent: int = Field(256, ge=1)
    """Most completions decoded together; the others wait, prompts of like length together, and enter as these end."""
    max_batch_tokens: int | None = Field(None, ge=1)
    """Most cached positions (prompt + ``max_tokens``, over the completions decoded together); bounds memory."""
    keep_mib: int = Field(2048, ge=0)
    """Most MiB of keys and values that are kept between the turns of episodes (agent ``multi_turn``), so that only new
    tokens are read; 0 keeps none. Episodes that do not fit read their context anew at every turn."""
    compile: bool = False
    """Compile the decoding step: all of one completion alone, which takes some seconds at the start, and the attention
    of several, with a C++ compiler, on x86 processors, for models of Llama's layout. On a card, instead, the model's
    own step is captured as a CUDA graph: of completions of one turn, where torch's attention (sdpa) sees all positions
    in all layers, and not while rollouts are sampled ahead."""
