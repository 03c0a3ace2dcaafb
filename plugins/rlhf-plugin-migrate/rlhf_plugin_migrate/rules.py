"""Values that are not simply copied; each rule takes the case, the run's counterpart, the key and its value, and
returns our settings by dotted key, or, as text, why nothing is set (``Lost`` where the user has to choose)."""

from __future__ import annotations

import math
from typing import Any

from rlhf_core.config import ConfigError
from rlhf_plugin_migrate.case import Case, Lost, Settings
from rlhf_plugin_migrate.targets import dataset_component


def betas(case: Case, target: str, key: str, value: Any) -> Settings | str:
    first, second = case.number("adam_beta1", default=0.9), case.number("adam_beta2", default=0.999)
    return {target: [first, second]}


def warmup(case: Case, target: str, key: str, value: Any) -> Settings | str:
    """Updates as they are; a share of the run's updates where their number is known."""
    share = case.number(key, default=0)
    if "ratio" not in key and share >= 1 and case.get("lr_scheduler_type") != "constant":
        return {target: int(share)}
    steps = case.get("max_steps", "trainer.total_training_steps")
    if share == 0 or case.get("lr_scheduler_type") == "constant":
        return {target: 0}  # transformers' `constant` has no warmup; `constant_with_warmup` has
    if not isinstance(steps, int) or steps < 1:
        return Lost(f"a share, and the number of updates is not given: set {target} to {share:g} of them")
    exact = share * steps  # transformers and OpenRLHF round a part of an update up, verl leaves it out
    return {target: int(exact) if "optim." in key else math.ceil(exact)}


def trl_update(case: Case) -> int:
    """Sequences of an optimizer update of TRL, over all processes."""
    each = case.integer("per_device_train_batch_size", default=8)
    update = each * case.integer("gradient_accumulation_steps", default=1) * case.processes
    return update // max(1, case.integer("num_mini_batches", default=1)) if case.algorithm == "ppo" else update


def trl_rollouts(case: Case) -> int:
    """Completions that TRL samples at a time, over all processes."""
    accumulated = case.integer("gradient_accumulation_steps", default=1)
    each = case.integer("per_device_train_batch_size", default=8) * case.processes
    batch = each * case.integer("steps_per_generation", default=accumulated)
    return case.integer("generation_batch_size", default=batch)


def trl_updates_of_step(case: Case) -> int:
    """Optimizer updates of TRL for each batch that it samples, which is one step here."""
    reuse = case.integer("num_iterations", default=1)
    return max(1, trl_rollouts(case) // max(1, trl_update(case)) * reuse)


def trl_batch(case: Case, target: str, key: str, value: Any) -> Settings | str:
    """Sequences of an update, and of a rollout batch where the policy samples."""
    each = case.integer("per_device_train_batch_size", default=8)
    settings: Settings = {target: trl_update(case), "trainer.micro_batch_size": each}
    if target.endswith("train_batch_size"):
        settings["trainer.rollout_batch_size"] = trl_rollouts(case)
    return settings


def trl_accumulation(case: Case, target: str, key: str, value: Any) -> Settings | str:
    """Said by the batch sizes; alone, accumulation multiplies TRL's eight sequences, and mini-batches divide them."""
    sizes = {"per_device_train_batch_size", "gradient_accumulation_steps"} - {key}
    if case.get(*sizes) is None and case.integer(key, default=1) > 1:
        return trl_batch(case, target, key, value)
    return "counted in the batch size"


def trl_steps(case: Case, target: str, key: str, value: Any) -> Settings | str:
    """Updates; a step of ours is all updates from one rollout batch."""
    updates = trl_updates_of_step(case) if target == "trainer.steps" else 1
    return {target: math.ceil(case.integer(key, default=1) / updates)}


def trl_every(case: Case, target: str, key: str, value: Any) -> Settings | str:
    """As :func:`trl_steps`; a share of the run has no counterpart."""
    each = case.number(key, default=1)
    if each < 1:
        return Lost(f"{value}: a share; ours counts steps")
    updates = trl_updates_of_step(case) if case.targets.exists("trainer.steps") else 1
    return {target: max(1, round(each / updates))}


def epochs(case: Case, target: str, key: str, value: Any) -> Settings | str:
    """Passes over the rows, unless the length of an on-policy run is said otherwise too."""
    total = case.get("total_episodes", "trainer.total_training_steps", "max_steps")
    said = case.targets.exists("trainer.steps") and isinstance(total, int) and total > 0
    return "the number of updates says it" if said else {target: value}


def trl_episodes(case: Case, target: str, key: str, value: Any) -> Settings | str:
    """Rollouts of the whole run."""
    return {target: math.ceil(case.integer(key, default=1) / trl_rollouts(case))}


def trl_steps_per_generation(case: Case, target: str, key: str, value: Any) -> Settings | str:
    """Said by the rollout batch size."""
    return {target: trl_rollouts(case)}


def vespo(case: Case, target: str, key: str, value: Any) -> Settings | str:
    sign, first, second = ("pos", 2.0, 3.0) if "pos" in key else ("neg", 3.0, 2.0)
    pair = [case.number(f"vespo_k_{sign}", default=first), case.number(f"vespo_lambda_{sign}", default=second)]
    return {target: pair}


def trackers(case: Case, target: str, key: str, value: Any) -> Settings | str:
    """Names, or a switch or a key that is called after the tracker."""
    names = [value] if isinstance(value, str) else list(value) if isinstance(value, list) else []
    ours = [name for name in ("wandb", "tensorboard") if name in names or (value and name in key)]
    return {target: ours} if ours else {}


def reward_path(case: Case, target: str, key: str, value: Any) -> Settings | str:
    """A reward model; reward functions are Python, as names without a folder or an organisation are."""
    (path,) = value if isinstance(value, list) and len(value) == 1 else (value,)
    if key == "reward_funcs" and not (isinstance(path, str) and "/" in path):
        return Lost("from Python train(reward=function), or rlhf plugins new NAME --kind reward; several: composite")
    return {"reward.name": "bradley_terry", "reward.path": path}


def dataset_mixer(case: Case, target: str, key: str, value: Any) -> Settings | str:
    """One data set whole; shares of several have no counterpart."""
    if isinstance(value, dict) and len(value) == 1 and {*value.values()} <= {1, None}:
        return {target: next(iter(value))}
    return Lost("several data sets, or a part of one: list them as dataset.sources, each with its weight")


def dataset_splits(case: Case, target: str, key: str, value: Any) -> Settings | str:
    """The first to train on, the second held out."""
    splits = value if isinstance(value, list) else [value]
    settings: Settings = dict(zip((target, "dataset.heldout_split"), splits))
    return settings if len(splits) <= 2 else Lost(f"{len(splits)} splits: list them as dataset.sources")


def chat_template(case: Case, target: str, key: str, value: Any) -> Settings | str:
    """A file, or one of our names."""
    if value in ("chatml", "plain") or str(value).endswith((".jinja", ".jinja2", ".txt")):
        return {target: value}
    return Lost("write the template to a file and name it")


def tokenizer(case: Case, target: str, key: str, value: Any) -> Settings | str:
    """Nothing where it is the model's own."""
    if value == case.get("model_name_or_path", "model"):
        return "the model's own"
    return Lost("a tokenizer comes with its model: save both in one folder, and name it")


def one_file(case: Case, target: str, key: str, value: Any) -> Settings | str:
    if isinstance(value, list) and len(value) != 1:
        return Lost(f"{len(value)} files: list them as dataset.sources")
    return {target: value[0] if isinstance(value, list) else value}


def verl_files(case: Case, target: str, key: str, value: Any) -> Settings | str:
    """A file, and where verl's rows keep the answer."""
    files = one_file(case, target, key, value)
    if isinstance(files, str) or case.algorithm == "sft":
        return files
    has_columns = dataset_component(str(files[target])) in ("parquet", "jsonl")
    return {**files, "dataset.columns.answer": "reward_model.ground_truth"} if has_columns else files


def verl_completions(case: Case, target: str, key: str, value: Any) -> Settings | str:
    """Prompts times completions where the policy samples."""
    return {target: case.integer(key, default=1) * (1 if target == "trainer.batch_size" else case.group)}


def openrlhf_train_batch(case: Case, target: str, key: str, value: Any) -> Settings | str:
    """Completions of an update; no more than a rollout batch has."""
    size = case.integer(key, default=128)
    if target == "trainer.batch_size":
        return {target: size}
    rollouts = case.integer("rollout.batch_size", "rollout_batch_size", default=1024) * case.group
    return {target: min(size, rollouts)}


def said_by_algorithm(case: Case, target: str, key: str, value: Any) -> Settings | str:
    """The algorithm was chosen by it."""
    grouped = value in ("reinforce_baseline", "reinforce_plus_plus_baseline")
    return {target: case.algorithm, **({"advantage.baseline": "group"} if grouped else {})}


def overlong(case: Case, target: str, key: str, value: Any) -> Settings | str:
    """A share of the completion's limit."""
    names = ("data.max_response_length", "rollout.max_new_tokens", "generate_max_len")
    limit = case.number(*names, default=0)
    return {target: round(case.number(key, default=0) / limit, 4)} if limit else "the completion's limit is not given"


def low_high(case: Case, target: str, key: str, value: Any) -> Settings | str:
    if not isinstance(value, list) or len(value) != 2:
        raise ConfigError(f"{key}: {value!r} is not two numbers", fix="for example 0.2 0.28")
    return {"loss.clip_range": value[0], "loss.clip_range_high": value[1]}


def input_template(case: Case, target: str, key: str, value: Any) -> Settings | str:
    return {target: str(value).replace("{}", "{prompt}")} if "{}" in str(value) else Lost(f"{value!r} has no {{}}")


def label_key(case: Case, target: str, key: str, value: Any) -> Settings | str:
    """KTO's verdict, or the reference answer."""
    return {"dataset.columns.label" if case.algorithm == "kto" else target: value}


def installed(case: Case, kind: str, name: str, settings: Settings | None = None) -> Settings | str:
    """A component of another distribution, or that it is missing."""
    if all(entry.name != name for entry in case.targets.registry.entries(kind)):
        return Lost(f"{kind}.name={name}: install the plugin that has it")
    return {f"{kind}.name": name, **(settings or {})}


def vllm(case: Case, target: str, key: str, value: Any) -> Settings | str:
    """vLLM in the training process, or with servers."""
    if value in (False, 0, "hf"):
        return "the native engine samples"
    if value not in (True, "vllm") and not isinstance(value, int):
        return Lost(f"{value}: no engine is called so here")
    colocated = key.endswith("rollout.name") or (key == "use_vllm" and case.get("vllm_mode") != "server")
    return installed(case, "rollout", "vllm_colocated" if colocated else "vllm")


def strategy(case: Case, target: str, key: str, value: Any) -> Settings | str:
    """FSDP2, or DeepSpeed's ZeRO."""
    if key == "deepspeed":
        return installed(case, "strategy", "deepspeed")
    if not value or (key == "fsdp" and value == "no"):
        return "off"
    is_fsdp = key == "fsdp" or value in ("fsdp", "fsdp2")
    return installed(case, "strategy", "fsdp") if is_fsdp else Lost(f"{value}: no strategy is called so here")


def zero_stage(case: Case, target: str, key: str, value: Any) -> Settings | str:
    """DeepSpeed with that stage; stage 0 divides nothing."""
    stage = case.integer(key, default=0)
    return installed(case, "strategy", "deepspeed", {"strategy.stage": stage}) if stage else {target: "ddp"}
