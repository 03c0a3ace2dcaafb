"""A reward net on disk: transformers' sequence classifier, or its trunk alone. When it is saved, whole weights are
looked up by name: its own may be shards.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch

from rlhf_core.models import Formatter, ModelConfig, ModelError, check_finite, load_tokenizer, resolve_model
from rlhf_core.models.adapters import plain_name
from rlhf_core.models.four_bits import dequantized, numbers
from rlhf_core.models.layers.trunk_and_head import base_model, rounding_tolerance
from rlhf_core.models.save import write_transformer
from rlhf_core.models.tensor_files import ComputedWeights, is_lazy
from rlhf_plugin_reward.encoding import View, read_view, write_view
from rlhf_plugin_reward.net import RewardNet
from rlhf_plugin_reward.padding import taller, with_pad_token


def save_classifier(
    net: RewardNet, tokenizer: Any, folder: Path, weights: Mapping[str, Any] | None = None, view: View | None = None
) -> None:
    """Write a one-head net (``weights``: gathered from all ranks; None takes its own) so that
    ``AutoModelForSequenceClassification`` loads it with one label.
    """
    from transformers import AutoModelForSequenceClassification

    base = base_model(net.trunk)
    config = copy.deepcopy(base.config)
    tokenizer = with_pad_token(tokenizer)
    config.num_labels, config.pad_token_id = 1, tokenizer.pad_token_id
    config.get_text_config().pad_token_id, config.architectures = tokenizer.pad_token_id, None
    text = config.get_text_config()
    text.vocab_size = max(int(text.vocab_size), (tokenizer.pad_token_id or 0) + 1)
    weights = dequantized(net, net.state_dict() if weights is None else weights)
    trunk = trunk_weights(net.trunk, weights)
    with torch.device("meta"):
        model = AutoModelForSequenceClassification.from_config(config, dtype=next(base.parameters()).dtype)
    folder.mkdir(parents=True, exist_ok=True)
    write_transformer(model, classifier_weights(model, head_of(model), trunk, weights), folder)
    tokenizer.save_pretrained(folder)
    write_view(view or View(), folder)


def save_trunk(net: RewardNet, folder: Path, weights: Mapping[str, Any]) -> None:
    """Write the trunk alone, adapters folded in; ``weights`` are the whole net's."""
    base = base_model(net.trunk)
    write_transformer(base, trunk_weights(net.trunk, dequantized(net, weights)), folder)


def head_of(model: Any) -> Any:
    """The scalar head of a sequence classifier (``score`` or ``classifier``)."""
    head = getattr(model, "score", None) or getattr(model, "classifier", None)
    if not isinstance(head, torch.nn.Linear):
        raise ModelError(f"{type(model).__name__} has no linear scalar head", fix="give a decoder with a `score` layer")
    return head


def trunk_weights(trunk: Any, weights: Mapping[str, Any]) -> ComputedWeights:
    """Weights of a net's trunk under the names that they have without adapters, each computed when it is looked up."""
    base = base_model(trunk)
    prefix = "trunk." if base is trunk else "trunk.base_model.model."
    adapted = {name: layer for name, layer in base.named_modules() if hasattr(layer, "get_delta_weight")}
    layer_of = {f"{name}.{leaf}": name for name, layer in adapted.items() for leaf, _ in layer.named_parameters()}
    stored: dict[str, str] = {}
    for name in (key.removeprefix(prefix) for key in weights if key.startswith(prefix)):
        layer = layer_of.get(name)
        if layer is None and ".original_module." not in name:
            stored[plain_name(name)] = prefix + name
        elif layer is not None and name.startswith(f"{layer}.base_layer."):
            stored[f"{layer}.{name.removeprefix(f'{layer}.base_layer.')}"] = prefix + name

    def value(name: str, stored_name: str) -> torch.Tensor:
        layer, _, leaf = name.rpartition(".")
        if layer not in adapted:
            return weights[stored_name]
        return folded(adapted[layer], leaf, weights, f"{prefix}{layer}.")

    return ComputedWeights.of(weights, stored, value)


def folded(layer: Any, leaf: str, weights: Mapping[str, Any], prefix: str) -> torch.Tensor:
    """``W + (alpha / r) B A`` of an adapted layer, with DoRA of the trained length, to the bit as peft computes it when
    it merges."""
    if leaf != "weight" and not any(getattr(layer, "lora_bias", {}).values()):
        return weights[f"{prefix}base_layer.{leaf}"]
    packed = layer.get_base_layer().weight
    if hasattr(packed, "quant_state"):
        adapter = layer.active_adapters[0]
        weight = numbers(packed) + layer.get_delta_weight(adapter)
        if adapter not in layer.lora_magnitude_vector:
            return weight
        length = weights[f"{prefix}lora_magnitude_vector.{adapter}.weight"]
        return weight * (length.to(weight) / torch.linalg.norm(weight, dim=1)).unsqueeze(1)
    copied: dict[int, Any] = {}
    for name, parameter in layer.named_parameters():
        whole = weights[prefix + name].detach()
        copied[id(parameter)] = torch.nn.Parameter(whole if is_lazy(weights) else whole.clone(), requires_grad=False)
    merging = copy.deepcopy(layer, copied)
    merging.merge()
    return getattr(merging.get_base_layer(), leaf).detach()


def classifier_weights(model: Any, head: Any, trunk: Mapping[str, Any], weights: Mapping[str, Any]) -> ComputedWeights:
    """A net's gathered weights under the names that a sequence classifier gives them, in its order and number types."""
    prefix, shapes = f"{model.base_model_prefix}.", model.state_dict(keep_vars=True)

    def value(name: str) -> torch.Tensor:
        whole = weights["head.weight"] if shapes[name] is head.weight else trunk[name.removeprefix(prefix)]
        return taller(whole, shapes[name]).to(shapes[name].dtype)

    return ComputedWeights({name: partial(value, name) for name in shapes}, shapes)


def load_classifier(path: str, chat_template: str | None = None) -> tuple[RewardNet, Any]:
    """A reward model trained here or elsewhere, and its tokenizer."""
    tokenizer = load_tokenizer(ModelConfig(path=path, chat_template=chat_template))
    model = _load_model(path)
    if model.config.num_labels != 1:
        raise ModelError(
            f"reward model '{path}' has {model.config.num_labels} labels, a reward needs one",
            fix="give a sequence classifier that was trained with num_labels=1",
        )
    check_vocabulary(model, tokenizer, path)
    net = net_of_classifier(model).eval()
    text = model.config.get_text_config()
    if read_view(resolve_model(path).path).own:
        text.pad_token_id = None  # trained on the last token, whichever it is
    else:
        net.pad_id = text.pad_token_id
    check_pooling(net, model.eval(), tokenizer, path)
    return net, tokenizer


def net_of_classifier(model: Any) -> RewardNet:
    """Trunk and head of transformers' sequence classifier.

    Raises:
        ModelError: it has no linear scalar head.
    """
    return RewardNet(getattr(model, model.base_model_prefix), head_of(model))


def _load_model(path: str) -> Any:
    from transformers import AutoModelForSequenceClassification

    source = resolve_model(path)
    try:
        model, info = AutoModelForSequenceClassification.from_pretrained(
            source.path, use_safetensors=True, output_loading_info=True
        )
    except (OSError, ValueError, RuntimeError) as error:
        raise ModelError(
            f"reward model '{path}' cannot be loaded",
            why=str(error).splitlines()[0],
            fix="give a folder saved by AutoModelForSequenceClassification with one label",
        ) from error
    check_finite(model.state_dict(), path)
    missing_weights = [k for k in info["missing_keys"] if "score" in k or "classifier" in k]
    if missing_weights:
        raise ModelError(
            f"'{path}' is not a trained reward model",
            why=f"its weights lack {', '.join(missing_weights)}, as those of a language model do",
            fix="train one: rlhf train --algo reward_model",
        )
    return model


def check_vocabulary(model: Any, tokenizer: Any, path: str) -> None:
    """Refuse a tokenizer of another model: it has words past the embedding, except for unused special tokens."""
    rows, special = int(model.get_input_embeddings().weight.shape[0]), set(tokenizer.all_special_ids)
    beyond = sorted((i, word) for word, i in tokenizer.get_vocab().items() if i >= rows and i not in special)
    if beyond:
        raise ModelError(
            f"the tokenizer of '{path}' is not its model's",
            why=f"{len(beyond)} tokens, first {beyond[0][1]!r}, lie past the {rows} that the model embeds",
            fix="copy the tokenizer files that belong to these weights into the folder",
        )


PROBE = ("Is the sky blue?", "Yes, on most days it is.")


@torch.inference_mode()
def check_pooling(net: RewardNet, model: Any, tokenizer: Any, path: str) -> None:
    """Refuse a classifier whose own logit of a conversation is not ``head(last token)``, or of a model from elsewhere
    that of the last that is not padding: another token's, pooled, or changed after.
    """
    formatter = Formatter(tokenizer, "auto")
    question = [{"role": "user", "content": PROBE[0]}]
    ids = [*formatter.encode(question), *formatter.encode_answer(question, PROBE[1])]
    device = net.head.weight.device
    model_score = float(model(input_ids=torch.tensor([ids], device=device)).logits[0, 0])
    head_score = float(net([ids])[0, 0])
    if not abs(head_score - model_score) <= rounding_tolerance(net.trunk) * max(1.0, abs(model_score)):
        raise ModelError(
            f"reward model '{path}' does not score by a linear head on the last token",
            why=f"{type(model).__name__} gives a probe text {model_score:.4g}, "
            f"its head on the last token {head_score:.4g}",
            fix="use a decoder with a scalar head, or score with this one in a reward plugin of your own",
        )
