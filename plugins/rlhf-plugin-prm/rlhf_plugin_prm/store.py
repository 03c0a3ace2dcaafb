"""A model of steps on disk: a one-label sequence classifier, and a card that says what its head was taught."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

from pydantic import ValidationError

from rlhf_core.config import Config
from rlhf_core.data import write_json
from rlhf_core.models import ModelConfig, ModelError
from rlhf_plugin_prm.examples import Target
from rlhf_plugin_prm.steps import Split

CARD = "steps.json"


class Card(Config):
    """What ``steps.json`` says."""

    target: Target
    """``steps``: the head was taught at every step; ``outcome``: at the last."""
    split: Split
    tokenizer: str
    """Hash of the tokenizer it was trained with."""
    max_length: int = 1024
    """Tokens of a solution in training; early versions did not keep it."""


def read_card(path: str) -> Card:
    file = Path(path).expanduser() / CARD
    if not file.is_file():
        raise ModelError(
            f"'{path}' holds no process or outcome reward model",
            why=f"{CARD} is not there",
            fix="rlhf train --algo prm, or --algo orm, writes one to RUN/final; a pairwise reward model "
            "is --reward bradley_terry",
        )
    try:
        return Card.model_validate_json(file.read_text())
    except ValidationError as error:
        raise ModelError(
            f"'{file}' does not say what the model was taught",
            why=str(error).splitlines()[0],
            fix=f"it needs target, split ({', '.join(get_args(Split))}) and tokenizer",
        ) from error


def save_model(
    net: Any,
    tokenizer: Any,
    folder: Path,
    target: Target,
    split: Split,
    weights: Mapping[str, Any] | None = None,
    max_length: int = 1024,
) -> None:
    """Write model, tokenizer and card; any program that reads sequence classifiers reads it as one."""
    from rlhf_plugin_reward.classifier_files import save_classifier

    save_classifier(net, tokenizer, folder, weights)
    card = Card(target=target, split=split, tokenizer=tokenizer_hash(str(folder)), max_length=max_length)
    write_json(folder / CARD, card.model_dump())


def load_model(path: str) -> tuple[Any, Any, Card]:
    """(network, tokenizer, card)."""
    from rlhf_plugin_reward.classifier_files import load_classifier

    card = read_card(path)
    if tokenizer_hash(path) != card.tokenizer:
        raise ModelError(
            f"the tokenizer in '{path}' is not the one this model was trained with",
            why="its hash differs from the one in steps.json",
            fix="copy the tokenizer files that were saved with these weights into the folder",
        )
    net, tokenizer = load_classifier(path)
    return net, tokenizer, card


def tokenizer_hash(path: str) -> str:
    """Hash of what turns a solution into ids."""
    from rlhf_plugin_reward.store import tokenizer_digest

    return tokenizer_digest(ModelConfig(path=path))
