"""Loads a policy: a hub id, a folder in Hugging Face form, a ``.gguf`` file, or ``pocket``; light to import."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rlhf_core.data.manifest import verify_files
from rlhf_core.models.chat_templates import set_template
from rlhf_core.models.config import ModelConfig
from rlhf_core.models.gradient_checkpointing import wake_checkpointing
from rlhf_core.models.modality import MODALITY_FILE, attach_modality, modality_of
from rlhf_core.models.paths import FORMS, near_names
from rlhf_core.models.sources import TOKENIZER_FILES, Source, hub_reachable, local_copy, resolve_model
from rlhf_core.types.errors import ModelError, error_line, error_text

log = logging.getLogger("rlhf.models")


@dataclass(frozen=True)
class LoadedModel:
    """A causal language model, its tokenizer, and how many tokens fit."""

    model: Any
    """A transformers causal LM in ``eval`` mode; wrapped by peft when LoRA was asked for."""
    tokenizer: Any
    """A transformers tokenizer. Its pad token may be its EOS, so nothing may infer lengths from ids."""
    source: str
    """The path as the user wrote it."""
    context: int
    """Prompt + completion tokens that the model (or ``model.max_context``) allows."""

    def run_on(self, device: Any, precision: Literal["fp32", "bf16", "fp16"] | None = None) -> None:
        """Move it to a ``torch.device``, if it has weights, and let it compute in ``precision``; None takes what a run
        takes by itself: bfloat16 on a card that has it, where weights are float32."""
        import torch

        from rlhf_core.models.precision import set_precision
        from rlhf_core.models.slices import has_meta_weights

        if not has_meta_weights(self.model):
            self.model.to(device)
        if precision is None and device.type == "cuda" and self.model.dtype == torch.float32:
            precision = "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else None
        set_precision(self.model, precision or "fp32")

    def save(self, folder: Path, weights: Mapping[str, Any] | None = None, *, merge: bool = False) -> None:
        """Write weights (None takes the model's own), config and tokenizer into a folder, which is made if it is not
        there. With ``merge`` adapters are folded into the weights, and the adapter itself lies in ``adapter/``.
        """
        from rlhf_core.models.save import save_model

        save_model(self.model, self.tokenizer, folder, weights, merge=merge)

    def load_weights(self, folder: Path) -> None:
        """Load a checkpoint's weights into the model, bit for bit.

        Raises:
            ModelError: names are missing or unexpected.
        """
        from rlhf_core.models.save import load_weights

        load_weights(self.model, folder)


def load_policy(config: ModelConfig, *, weights: bool = True) -> LoadedModel:
    """Load model and tokenizer on the CPU, with adapters if the config asks for them.

    The model is in eval mode and stays there: dropout would make sampled and trained logprobs mean different things.

    Args:
        config: which model.
        weights: False leaves them on disk, if they lie there as the model has them, until ``read_weights``; adapters
            have theirs.

    Raises:
        ModelError: not found, incomplete, unreadable, without a tokenizer, or the hub cannot be reached.
    """
    import torch

    from rlhf_core.models.layers.trunk_and_head import mask_ids_without_text
    from rlhf_core.models.prompt_format import stop_at_turn_ends
    from rlhf_core.models.template_writer import TemplateWriter

    torch.backends.cuda.enable_cudnn_sdp(False)  # cuDNN's attention plans anew for every length, at each token
    source = resolve_model(config.path)
    check_generates(config, source)
    tokenizer = load_tokenizer(config)
    model = (None if weights else _without_weights(config, source)) or _load_model(config, source)
    check_vocabulary(model, tokenizer, config.path)
    if modality_of(tokenizer) is None:
        mask_ids_without_text(model, tokenizer.get_vocab().values())
        if config.prompt_format != "raw" and tokenizer.chat_template:
            stop_at_turn_ends(model, TemplateWriter(tokenizer, chat=True))
    _note_choices(model, config)
    context = context_length(model, config)
    if config.gradient_checkpointing in (True, "offload"):
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    if config.lora is not None:
        from rlhf_core.models.save import add_lora
        from rlhf_core.models.slices import ValuesForAdapters

        with ValuesForAdapters(model):
            model = add_lora(model, config.lora)
        model.trained_from = (str(Path(config.path).expanduser()), source.revision or config.revision)
    model.eval()
    if config.gradient_checkpointing:
        wake_checkpointing(model, config.gradient_checkpointing)
    return LoadedModel(model, tokenizer, config.path, context)


def load_tokenizer(config: ModelConfig) -> Any:
    """The tokenizer of a model, with a pad token (the EOS if it has none of its own) and ``model.chat_template``.

    Raises:
        ModelError: cannot be loaded.
    """
    from rlhf_core.models.prompt_format import name_panics

    source = resolve_model(config.path)
    if source.local:
        verify_files(source.path)
    model_path, options = source.path, load_options(config, source)
    for folder in () if source.adapter is None else (Path(source.adapter), Path(source.adapter).parent):
        if any((folder / name).is_file() for name in TOKENIZER_FILES):  # saved with the adapter, or in its ``final/``
            verify_files(folder)
            model_path, options = str(folder), load_options(config, Source(str(folder)))
            break
    with failures_explained(config, source, "tokenizer"):
        tokenizer = _read_tokenizer(model_path, options)
        name_panics(tokenizer)
    if tokenizer.pad_token_id is None and tokenizer.eos_token_id is not None:
        tokenizer.pad_token = tokenizer.eos_token
    if Path(model_path).is_dir():
        attach_modality(tokenizer, Path(model_path))
    set_template(tokenizer, config, source.describe)
    return tokenizer


def _read_tokenizer(model_path: str, options: dict[str, Any]) -> Any:
    """As ``AutoTokenizer`` does, for which transformers imports torch and the model's code; of a folder whose tokenizer
    is all in ``tokenizer.json``, as transformers 5 notes when it writes one, without them.
    """
    file = Path(model_path) / "tokenizer_config.json"
    if file.is_file() and json.loads(file.read_text("utf-8")).get("tokenizer_class") == "TokenizersBackend":
        from transformers import PreTrainedTokenizerFast

        return PreTrainedTokenizerFast.from_pretrained(model_path)
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(model_path, **options)


def _load_model(config: ModelConfig, source: Source) -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    from rlhf_core.models.four_bits import quantization, settle
    from rlhf_core.models.tensor_files import check_finite

    options = {**load_options(config, source), **quantization(config)}
    with failures_explained(config, source):
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            source.path,
            dtype=getattr(torch, config.dtype),
            attn_implementation=config.attention_or_eager,
            use_safetensors=True,
            output_loading_info=True,
            **options,
        )
    model, info = loaded
    settle(model)
    check_finite(model.state_dict(), config.path)
    check_causal(model, config.path)
    _check_weights(info, config.path)
    if source.adapter is None:
        return model
    from rlhf_core.models.save import merge_adapter

    verify_files(source.adapter)
    return merge_adapter(model, source.adapter)


def _without_weights(config: ModelConfig, source: Source) -> Any:
    """The model with its weights left on disk; None where they cannot be read one by one."""
    from transformers import AutoModelForCausalLM

    from rlhf_core.models.slices import build_without_weights

    if source.adapter is not None or config.quantize is not None:
        return None
    options = load_options(config, source)
    with failures_explained(config, source):
        folder = Path(source.path) if source.local else local_copy(source.path, options)
        if (folder / MODALITY_FILE).is_file():
            return None
        model = build_without_weights(config, AutoModelForCausalLM, folder, options)
    if model is not None:
        model.name_or_path = source.path
    return model


def check_generates(config: ModelConfig, source: Source) -> None:
    """Refuse, by its ``config.json``, a model that is not one of text after text, before its weights are read."""
    from transformers import PreTrainedConfig
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    if (Path(source.path) / MODALITY_FILE).is_file():
        return  # a plugin says how its tokens become something else
    with failures_explained(config, source):
        settings = PreTrainedConfig.get_config_dict(source.path, **load_options(config, source))[0]
    name = str((settings.get("architectures") or [settings.get("model_type")])[0])
    causal = settings.get("model_type") in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES or "auto_map" in settings
    scores = name.endswith(("ForSequenceClassification", "ForTokenClassification"))
    kinds = {
        "it scores texts, as a reward model does; it has no language-model head": scores,
        "it is an encoder-decoder, which reads the prompt apart": not causal and settings.get("is_encoder_decoder"),
        "it reads images or sound": not causal and {"vision_config", "audio_config"} & settings.keys(),
    }
    for why in (text for text, is_so in kinds.items() if is_so):
        fix = "give a causal language model" + f"; score texts with: rlhf reward score --model {config.path}" * scores
        raise ModelError(f"'{config.path}' holds a {name}, which cannot generate text", why=why, fix=fix)


def _check_weights(info: Mapping[str, Any], path: str) -> None:
    """transformers draws weights that are not there at random, leaves out what it has no place for, and logs it."""
    missing, left_over = (sorted(info.get(f"{what}_keys") or ()) for what in ("missing", "unexpected"))
    if missing:
        raise ModelError(
            f"'{path}' lacks {len(missing)} of its model's weights: {', '.join(missing[:3])}",
            why="they would be random; config.json does not describe these weights, or files are missing",
            fix="copy or download the folder again",
        )
    if left_over:
        log.warning(
            "'%s' holds %d weights that its config.json has no place for, such as %s: they are left out",
            *(path, len(left_over), left_over[0]),
        )


def check_causal(model: Any, path: str) -> None:
    """transformers loads an encoder as a causal model too, and only logs that it is none."""
    from rlhf_core.models.layers.trunk_and_head import looks_ahead

    if looks_ahead(model):
        raise ModelError(
            f"'{path}' holds a {type(model).__name__}, an encoder: the output at a token depends on those after it",
            why="a policy predicts each token from the tokens before it",
            fix="give a causal language model; an encoder serves as a reward model only",
        )


def load_options(config: ModelConfig, source: Source) -> dict[str, Any]:
    """Arguments of every ``from_pretrained`` of this model."""
    options: dict[str, Any] = {"trust_remote_code": config.trust_remote_code}
    revision = config.revision if source.adapter is None else source.revision
    if revision is not None:
        options["revision"] = revision
    if not source.local and not hub_reachable():
        options["local_files_only"] = True
    return options


def context_length(model: Any, config: ModelConfig) -> int:
    """Tokens that fit: the model's limit, ``config.max_context``, or where rotary frequencies begin to change."""
    from rlhf_core.models.layers.trunk_and_head import length_limit, rope_type

    text = model.config.get_text_config()
    model_limit = getattr(text, "max_position_embeddings", None) or 1 << 30
    steady = length_limit(model)
    if steady is not None and steady < model_limit:
        if config.max_context is not None and min(config.max_context, model_limit) > steady:
            raise ModelError(
                f"model.max_context {config.max_context} is beyond {steady} tokens, where {rope_type(model)} rotary "
                f"embeddings of '{config.path}' change with the length of the longest sequence",
                why="logprobs and samples would depend on the other sequences of a batch",
                fix=f"--set model.max_context={steady} or less",
            )
        if config.max_context is None:
            log.warning(
                "the context of '%s' is %d tokens here, not %d: beyond that its %s rotary embeddings change with the "
                "length of the longest sequence of a batch",
                *(config.path, steady, model_limit, rope_type(model)),
            )
        model_limit = steady
    return min(model_limit, config.max_context or model_limit)


UNASKED = re.compile(
    "^((bos|eos|pad|decoder_start)_token_id|do_sample|max_length|transformers_version|_from_model_config|use_cache"
    "|output_.*|return_.*)$"
)
"""Names in a generation config that do not shape what is sampled, or are used."""


def _note_choices(model: Any, config: ModelConfig) -> None:
    """Say what is not as the model's files, or the settings, would have it."""
    if config.attention_or_eager is None and model.config._attn_implementation == "eager":
        log.warning("transformers has no fused attention for %s: model.attention=eager is taken", type(model).__name__)
    generation = getattr(model, "generation_config", None)
    settings = {} if generation is None else generation.to_diff_dict()
    if unused := [f"{name} {value}" for name, value in sorted(settings.items()) if not UNASKED.search(name)]:
        log.warning(
            "generation_config.json of '%s' asks for %s: not used; completions are sampled by the run's own `sampling` "
            "settings, from the model's own distribution where they say nothing",
            *(config.path, ", ".join(unused)),
        )


def check_vocabulary(model: Any, tokenizer: Any, path: str) -> None:
    """A tokenizer from another model shows up as ids past the embedding."""
    rows, highest = int(model.get_input_embeddings().weight.shape[0]), max(tokenizer.get_vocab().values(), default=-1)
    if max(len(tokenizer), highest + 1) > rows:
        raise ModelError(
            f"the tokenizer of '{path}' has {max(len(tokenizer), highest + 1)} tokens but the model embeds only {rows}",
            why="tokenizer and weights belong to different models",
            fix="copy the tokenizer files that belong to these weights into the folder",
        )


REMEDIES = {
    "attention implementation|attn_implementation": "--set model.attention=eager",
    "does not recognize this architecture|model type": "pip install -U transformers, if a newer one knows the "
    "model_type in config.json",
    "Unrecognized configuration class": "give a model that writes text alone: transformers has no causal language "
    "model for this config.json (it may read images or sound, or be an encoder)",
    "^(ImportError|ModuleNotFoundError)": "install the package that the error names",
    "out of memory|can't allocate memory|MemoryError": "take a smaller model, or --set model.dtype=bfloat16",
    "ize mismatch|ignore_mismatched_sizes": "use the weights that belong to config.json",
}
"""What an error says -> what to do about it, wherever the model lies."""


@contextmanager
def failures_explained(config: ModelConfig, source: Source, what: str = "model") -> Generator[None, None, None]:
    """Give what fails inside, which it can in as many ways as there are architectures, its most likely cause.

    Raises:
        ModelError: names the model, the cause and what to do.
    """
    try:
        yield
    except ModelError:
        raise
    except Exception as error:
        raise explain_failure(error, config, source, what) from error


def explain_failure(error: Exception, config: ModelConfig, source: Source, what: str) -> ModelError:
    """The error for the most likely cause."""
    text, why = error_text(error), error_line(error)
    if "trust_remote_code" in text:
        summary = f"'{config.path}' brings its own Python code"
        fix = "read that code, then set model.trust_remote_code=true"
    elif remedy := next((fix for cause, fix in REMEDIES.items() if re.search(cause, text)), ""):
        summary, fix = f"cannot load the {what} of '{config.path}'", remedy
    elif source.local:
        summary = f"cannot load the {what} from '{config.path}'"
        fix = "check that the folder holds a complete causal language model in Hugging Face form"
    else:
        return _no_hub_model(config, what, error, why)
    return ModelError(summary, where=source.describe, why=why, fix=fix)


def _no_hub_model(config: ModelConfig, what: str, error: BaseException, why: str) -> ModelError:
    from huggingface_hub import constants
    from huggingface_hub.errors import LocalEntryNotFoundError, OfflineModeIsEnabled

    causes = [error]
    while (cause := causes[-1].__cause__ or causes[-1].__context__) is not None and cause not in causes:
        causes.append(cause)
    if constants.HF_HUB_OFFLINE or any(isinstance(one, OfflineModeIsEnabled) for one in causes):
        reached = "there is no local copy of a model of that name from the Hugging Face hub"
        why = "HF_HUB_OFFLINE is set: nobody asked the hub"
    elif not hub_reachable() or any(isinstance(one, LocalEntryNotFoundError | ConnectionError) for one in causes):
        reached = "the Hugging Face hub could not be reached"
    else:
        reached = f"the Hugging Face hub gives no {what} of that name"
    return ModelError(
        f"there is no folder '{config.path}' here, and {reached}",
        where=f"looked for {FORMS}; local copies of hub models: {constants.HF_HUB_CACHE}",
        why=why,
        fix=f"{near_names(config.path)}check the spelling and the network; for a private model set HF_TOKEN; a local "
        "folder, a .gguf file and 'pocket' work without network",
    )
