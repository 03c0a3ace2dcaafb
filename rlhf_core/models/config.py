"""Which model to load, and how."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic import Field, field_validator, model_validator

from rlhf_core.models.paths import ModelPath
from rlhf_core.plugins.component import Config
from rlhf_core.types.errors import ConfigError


class LoraSettings(Config):
    """Low-rank adapters through peft (Hu et al. 2021). The reference policy is the adapter switched off."""

    r: int = Field(default=16, ge=1)
    """Rank of each adapter."""
    alpha: float = Field(default=32.0, gt=0)
    """An adapter's output is scaled by ``alpha / r``."""
    rslora: bool = False
    """Scale by ``alpha / sqrt(r)`` instead (Kalajdzievski 2023)."""
    dora: bool = False
    """Learn the length of each row of the weight beside its direction (Liu et al. 2024)."""
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """Of an adapter's input, in passes with gradient only. The drawn masks depend on how an update is cut. Not for a
    policy that samples what it learns from, whose tokens must have the same logprobs in every pass."""
    modules_to_save: tuple[str, ...] = ()
    """Names of modules that are trained whole, such as ``lm_head``."""
    target_modules: str | tuple[str, ...] = "all-linear"
    """Names of the layers that get an adapter, as peft reads them; ``all-linear``: every linear layer but the head, and
    in a mixture of experts neither the router nor experts that are one tensor."""


class ExpertSettings(Config):
    """A mixture of experts: what is learned of its routers, and what of the sampler's choices (rlhf-plugin-experts)."""

    train_router: bool = False
    """Train what chooses experts; otherwise it is frozen, which keeps the choices of sampler and trainer together."""
    balance_loss: float = Field(default=0.0, ge=0)
    """Coefficient of the load-balancing loss, which is added to that of any algorithm. It is that of each sequence
    (DeepSeek-V3, eq. 17), so that no micro-batch, packing or padding changes its gradient."""
    replay: bool = False
    """Force on the update the experts that the native engine chose for each token and layer (Ma et al. 2025)."""


class ModelConfig(Config):
    """A model: a hub id, a folder in Hugging Face form, a run, a checkpoint, a ``.gguf`` file, or ``pocket``."""

    path: ModelPath = "pocket"
    """A run stands for its final model, a checkpoint for its weights; both may be LoRA adapters."""
    revision: str | None = None
    """Branch, tag or commit of a model of the hub; None takes its main branch."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """What the weights are kept and trained in. ``trainer.precision=bf16`` computes in bfloat16 on float32 weights."""
    lora: LoraSettings | None = None
    """Train adapters instead of all weights."""
    experts: ExpertSettings = ExpertSettings()
    quantize: Literal["nf4"] | None = None
    """Keep the weights of linear layers in 4 bits (QLoRA, Dettmers et al. 2023), through bitsandbytes, under adapters.
    The extra ``qlora`` installs it."""
    prompt_format: Literal["auto", "chat", "raw"] = "auto"
    """``chat`` uses the tokenizer's template, ``raw`` plain text, ``auto`` the template if there is one."""
    chat_template: str | None = None
    """Instead of the tokenizer's own, or for a model without: ``plain``, ``chatml``, ``hh``, or a file with a Jinja
    template. ``keep_thinking`` lets the model's own (Qwen 3, GLM 4.5, ...) keep the reasoning of earlier turns; a
    plugin adds others (group ``rlhf.chat_template``). It is saved with the model. Conversations of several turns need
    one; raw text has no roles."""
    chat_template_kwargs: Mapping[str, bool | int | float | str] = {}
    """Variables of the chat template, such as ``{enable_thinking: false}``. They are written into the template that is
    saved with the model, so that everything that reads it uses the same; a row's column of this name comes first."""
    assistant_prefix: str = ""
    """How every answer begins, such as ``<think>``: a part of the prompt, which the policy goes on from, saved with the
    template. Completions, and what scores them, are without it."""
    tool_format: str = "auto"
    """How the model writes tool calls: ``hermes``, ``llama3``, ``mistral``, ``qwen_xml``, ``plain``, or what a plugin
    adds (group ``rlhf.tool_format``). ``auto`` takes the first that reads what the chat template writes."""
    max_context: int | None = Field(default=None, ge=2)
    """Upper limit on prompt + completion tokens; None takes the model's own (with LongRoPE, its original context)."""
    attention: Literal["sdpa", "eager"] = "sdpa"
    """transformers' implementation: torch's fused attention, or plain matrix products, which a model without fused
    attention (Gemma 2, gpt-oss) gets in any case."""
    gradient_checkpointing: bool | Literal["selective", "offload"] = False
    """Compute each layer again in the backward pass: less memory, a slower update, the same gradient; ``selective``
    only its norms and the activations of unfused feed-forwards. ``offload`` keeps what layers are given in the host's
    memory meanwhile, not on the card."""
    trust_remote_code: bool = False
    """Run Python code that comes with the model."""

    @property
    def attention_or_eager(self) -> str | None:
        """As transformers takes it: None is fused attention for those models that have it."""
        return None if self.attention == "sdpa" else self.attention

    @field_validator("chat_template")
    @classmethod
    def _template(cls, value: str | None) -> str | None:
        from rlhf_core.models.chat_templates import read_template

        return None if value is None else read_template(value)

    @field_validator("tool_format")
    @classmethod
    def _known_format(cls, value: str) -> str:
        from rlhf_core.data.tools import check_format

        return check_format(value)

    @model_validator(mode="after")
    def _combined(self) -> ModelConfig:
        if self.quantize is not None and self.lora is None:
            raise ConfigError(
                f"model.quantize {self.quantize} without model.lora",
                why="weights of 4 bits cannot be trained, only adapters on them",
                fix="--set model.lora.r=16, or leave model.quantize out",
            )
        given = [name for name in ("chat_template", "chat_template_kwargs", "assistant_prefix") if getattr(self, name)]
        if given and self.prompt_format == "raw":
            raise ConfigError(
                f"model.{given[0]} is given, but model.prompt_format is raw",
                why="raw text uses no template",
                fix="leave one of them out",
            )
        return self
