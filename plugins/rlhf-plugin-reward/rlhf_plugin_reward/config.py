"""What the entry points name; importing this never imports torch."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from rlhf_core.config import BuildContext, ComponentConfig, ConfigError
from rlhf_core.data import DatasetError, DatasetSettings
from rlhf_core.models import ModelConfig, ModelError, ModelPath
from rlhf_core.training import OfflineTrainerConfig, OptimizerSettings


class BradleyTerryLossConfig(ComponentConfig):
    """``-log sigmoid(chosen - rejected - margin)`` (Bradley and Terry 1952; Ouyang et al. 2022)."""

    name: str = "bradley_terry"
    component: ClassVar[str] = "rlhf_plugin_reward.loss:BradleyTerry.from_config"
    consumes: ClassVar[str | None] = "pairs"
    label_smoothing: float = Field(default=0.0, ge=0, lt=0.5)
    """Share of labels believed to be wrong."""
    centring: float = Field(default=0.01, ge=0)
    """Weight of ``(chosen + rejected)^2``, which keeps scores near zero (Eisenstein et al. 2023)."""


class RewardTrainerConfig(OfflineTrainerConfig):
    """What every trainer of a head on a language model's trunk can be told."""

    optimizer: OptimizerSettings = OptimizerSettings(learning_rate=3e-4, warmup_steps=10, schedule="cosine")
    batch_size: int = Field(default=64, ge=1)
    micro_batch_size: int = Field(default=64, ge=1)
    eval_samples: int = Field(default=512, ge=0)
    train_trunk: Literal["full", "lora", "frozen"] = "full"
    """Which part of the trunk learns; the head always does. With ``model.lora`` it is those adapters."""
    max_length: int = Field(default=1024, ge=2)
    """Tokens of a conversation; what exceeds it is cut off and counted."""

    def preflight(self, ctx: BuildContext) -> None:
        super().preflight(ctx)
        if self.train_trunk != "full" and ctx.config.model.lora is not None:
            raise ConfigError(
                f"model.lora and trainer.train_trunk={self.train_trunk} exclude each other",
                fix="drop one: model.lora alone trains its adapters and the head",
            )


class RewardModelConfig(RewardTrainerConfig):
    """Train one reward model on preference pairs."""

    name: str = "reward_model"
    component: ClassVar[str] = "rlhf_plugin_reward.task:build_trainer"
    feeds: ClassVar[str | None] = "pairs"
    companions: ClassVar[Mapping[str, Any]] = {"dataset": "pocket/assistant", "loss": "bradley_terry"}
    truncation: Literal["left", "right"] = "left"
    """``left`` cuts the beginning of the prompt first, ``right`` the end of the answer. Saved with the model."""
    turns: Literal["all", "last"] = "all"
    """Score whole conversations, or the ``last`` user turn (and system turn) with the answer. Saved with the model."""

    def rehearsal(self, ctx: BuildContext, sizes: Sequence[tuple[int, Sequence[int]]]) -> tuple[Any, Sequence[Any]]:
        """Module and pairs of these lengths (prompt, both responses), for ``rlhf memory plan``."""
        from rlhf_plugin_reward.pairs import pair_rehearsal

        return pair_rehearsal(self, ctx, sizes)


class BradleyTerryConfig(ComponentConfig):
    """One reward model: a folder that ``AutoModelForSequenceClassification`` loads with one label."""

    name: str = "bradley_terry"
    component: ClassVar[str] = "rlhf_plugin_reward.reward:SingleReward.from_config"
    path: ModelPath
    max_length: int | None = Field(default=None, ge=2)
    """Tokens of a conversation; what exceeds it is cut off. None takes those it was trained with (for models from
    elsewhere as many as the model takes)."""
    chat_template: str | None = None
    """How a model from elsewhere writes conversations, where its tokenizer does not say: ``plain``, ``chatml`` or a
    file in Jinja. Such a model is given the text of the whole conversation as its template writes it."""
    truncation: Literal["left", "right"] | None = None
    """The side that is cut; None takes the one it was trained with (``left`` for models from elsewhere)."""
    turns: Literal["all", "last"] | None = None
    """What it sees of a conversation; None takes what it was trained on (``all`` for models from elsewhere)."""
    batch_tokens: int = Field(default=16384, ge=1)
    """Most tokens per forward, padding included where the model needs it; a CPU gets less at a time."""

    def preflight(self, ctx: BuildContext) -> None:
        check_reward_folder(self.path)


class EnsembleConfig(ComponentConfig):
    """K reward models and what to make of their disagreement."""

    name: str = "ensemble"
    component: ClassVar[str] = "rlhf_plugin_reward.ensemble:load_or_train"
    members: int = Field(default=3, ge=2)
    aggregate: Literal["mean_minus_std", "mean", "min", "median"] = "mean_minus_std"
    uncertainty_penalty: float = Field(default=0.5, ge=0)
    """lambda in ``mean - lambda * std`` over the members (population std)."""
    gate_quantile: float | None = Field(default=None, gt=0, lt=1)
    """Samples whose std exceeds this quantile of the held-out stds are not trained on (status ``gated``)."""
    path: ModelPath | None = None
    """A trained ensemble's folder, or None to train one (or find it in the cache)."""
    base_model: ModelConfig | None = None
    """Trunk to start from; None takes the policy's model."""
    sharing: Literal["none", "lora", "frozen"] = "none"
    """``none``: members are whole models of their own. ``lora``/``frozen``: one trunk, one forward, K stacked heads."""
    pairs: DatasetSettings | None = None
    """Preference pairs; None takes the run's dataset."""
    max_pairs: int = Field(default=4096, ge=2)
    """Of a mixture every source gives its weight's share; the pairs beyond are counted."""
    heldout_pairs: int = Field(default=512, ge=2)
    epochs: float = Field(default=1.0, gt=0)
    batch_size: int = Field(default=32, ge=1)
    micro_batch_size: int = Field(default=32, ge=1)
    optimizer: OptimizerSettings = OptimizerSettings(learning_rate=5e-4, warmup_steps=10, schedule="cosine")
    loss: BradleyTerryLossConfig = BradleyTerryLossConfig()
    max_length: int | None = Field(default=None, ge=2)
    """Tokens of a conversation; what exceeds it is cut off. Cut pairs are counted. None takes those it was trained
    with, 1024 for a new one."""
    truncation: Literal["left", "right"] | None = None
    """The side that is cut; None takes the one it was trained with, ``left`` for a new one."""
    turns: Literal["all", "last"] | None = None
    """What it sees of a conversation; None takes what it was trained on, ``all`` for a new one."""
    batch_tokens: int = Field(default=16384, ge=1)
    stall_timeout_s: float = Field(default=600.0, gt=0)
    """A process gives up when it does not see, for so long, the ensemble that the first one has written."""

    def base_of(self, policy: ModelConfig) -> ModelConfig:
        """The trunk to start from; of the policy's model whole weights, for an ensemble trains or shares those."""
        return self.base_model or policy.model_copy(update={"lora": None, "quantize": None})

    def memory_models(self, run: Any) -> Sequence[tuple[ModelConfig, int]]:
        """Members that are whole models, or the trunk that they share, for ``rlhf memory plan``."""
        return [(self.base_of(run.model), self.members if self.sharing == "none" else 1)]

    @model_validator(mode="after")
    def _one_set_of_adapters(self) -> EnsembleConfig:
        if self.sharing != "none" and self.base_model is not None and self.base_model.lora is not None:
            raise ConfigError(
                f"base_model.lora does not apply with sharing: {self.sharing}",
                fix="drop base_model.lora (sharing: lora brings adapters of its own), or use sharing: none",
            )
        return self

    def preflight(self, ctx: BuildContext) -> None:
        if self.path is None and self.pairs is None:
            check_pairs(ctx)
        if self.path is not None and not (Path(self.path).expanduser() / "ensemble.json").is_file():
            raise ModelError(
                f"'{self.path}' holds no ensemble", why="ensemble.json is not there", fix="check reward.path"
            )


def check_reward_folder(path: str) -> None:
    """Refuse a reward model folder that is not there."""
    folder = Path(path).expanduser()
    looks_local = folder.is_absolute() or path.startswith((".", "~")) or path.count("/") != 1
    looks_local = looks_local or folder.is_dir()
    if looks_local and not (folder / "config.json").is_file():
        part = (folder / "trained.safetensors").is_file()
        raise ModelError(
            f"'{path}' holds no reward model",
            why="a checkpoint of its training holds only what was trained" if part else "config.json is not there",
            fix="check reward.path; rlhf train --algo reward_model writes one to RUN/final",
        )
    file = folder / "config.json"
    try:
        classes = dict(json.loads(file.read_text("utf-8"))).get("architectures") if looks_local else None
    except (ValueError, TypeError) as error:
        what, why = f"'{path}' holds no reward model", f"that is no JSON object: {error}"
        raise ModelError(what, where=str(file), why=why, fix="copy or train it again") from error
    if classes and all(str(name).endswith(("ForCausalLM", "LMHeadModel")) for name in classes):
        raise ModelError(
            f"'{path}' is not a trained reward model but a language model",
            where=str(file),
            why=f"it is of class {classes[0]}",
            fix="train one: rlhf train --algo reward_model",
        )


def check_pairs(ctx: BuildContext) -> None:
    """Refuse a run's dataset of prompts alone, where an ensemble is to be trained on it; its first rows tell."""
    from rlhf_core.data import Datasets

    settings = ctx.config.dataset
    if any(source.source.downloads for source in settings.sources):
        return  # it is said when the rows are read
    try:
        Datasets(settings.model_copy(update={"limit": 20, "max_dropped_fraction": 1.0}), ctx).pairs("train")
    except DatasetError as error:
        if without_pairs(error):
            raise needs_pairs(error) from error


def without_pairs(error: DatasetError) -> bool:
    """Whether rows are no preference pairs, rather than pairs with something wrong."""
    return "has no column" in error.what or "no preference pairs" in error.what


def needs_pairs(error: DatasetError) -> DatasetError:
    return DatasetError(
        "reward 'ensemble' is trained on preference pairs, and the dataset of the run holds none",
        where=error.where,
        why=error.what + (f"; {error.why}" if error.why else ""),
        fix="give pairs beside the prompts: --set reward.pairs=FILE (columns prompt, chosen, rejected), or a trained "
        "ensemble: --set reward.path=FOLDER",
    )
