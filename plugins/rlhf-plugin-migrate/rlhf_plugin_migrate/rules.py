"""Values that are not simply copied; each rule takes the case, the run's counterpart, the key and its value, and
returns our settings by dotted key, or, as text, why nothing is set."""

from __future__ import annotations

import math
from typing import Any

from rlhf_core.config import ConfigError
from rlhf_plugin_migrate.case import Case, Settings
from rlhf_plugin_migrate.targets import dataset_component

KL = {"kl": "k1", "k1": "k1", "mse": "k2", "k2": "k2", "low_var_kl": "k3", "k3": "k3", "abs": None}
LOSSES = {"bnpo": "bnpo", "cispo": "cispo", "sapo": "sapo", "vespo": "vespo", "luspo": "luspo", "gspo": "gspo"}
REDUCTIONS = {"grpo": "sequence_mean", "dapo": "token_mean", "dr_grpo": "constant"}
PAIR_LOSSES = {
    **{name: name for name in ("sigmoid", "hinge", "ipo", "robust", "aot", "apo_zero", "apo_down", "discopop", "kto")},
    "exo_pair": "exo",
    "nca_pair": "nca",
    "bco_pair": "bco",
    "sppo_hard": "sppo",
    "aot_pair": "aot",
    "aot_unpaired": "aot_unpaired",
    "apo_zero_unpaired": "apo_zero_unpaired",
}


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
        return f"a share, and the number of updates is not given: set {target} to {share:g} of them"
    exact = share * steps  # transformers and OpenRLHF round a part of an update up, verl leaves it out
    return {target: int(exact) if "optim." in key else math.ceil(exact)}


def trl_update(case: Case) -> int:
    """Sequences of an optimizer update of TRL, over all processes."""
    each = case.whole("per_device_train_batch_size", default=8)
    update = each * case.whole("gradient_accumulation_steps", default=1) * case.processes
    return update // max(1, case.whole("num_mini_batches", default=1)) if case.algorithm == "ppo" else update


def trl_rollouts(case: Case) -> int:
    """Completions that TRL samples at a time, over all processes."""
    accumulated = case.whole("gradient_accumulation_steps", default=1)
    each = case.whole("per_device_train_batch_size", default=8) * case.processes
    batch = each * case.whole("steps_per_generation", default=accumulated)
    return case.whole("generation_batch_size", default=batch)


def trl_updates_of_step(case: Case) -> int:
    """Optimizer updates of TRL for each batch that it samples, which is one step here."""
    reuse = case.whole("num_iterations", default=1)
    return max(1, trl_rollouts(case) // max(1, trl_update(case)) * reuse)


def trl_batch(case: Case, target: str, key: str, value: Any) -> Settings | str:
    """Sequences of an update, and of a rollout batch where the policy samples."""
    each = case.whole("per_device_train_batch_size", default=8)
    settings: Settings = {target: trl_update(case), "trainer.micro_batch_size": each}
    if target.endswith("train_batch_size"):
        settings["trainer.rollout_batch_size"] = trl_rollouts(case)
    return settings


def trl_accumulation(case: Case, target: str, key: str, value: Any) -> Settings | str:
    """Said by the batch sizes; alone, it multiplies TRL's eight sequences."""
    if case.get("per_device_train_batch_size") is None and case.whole(key, default=1) > 1:
        return trl_batch(case, target, key, value)
    return "counted in the batch size"


def trl_mini_batches(case: Case, target: str, key: str, value: Any) -> Settings | str:
    """Said by the batch sizes; alone, it divides TRL's eight sequences."""
    sizes = ("per_device_train_batch_size", "gradient_accumulation_steps")
    if case.get(*sizes) is None and case.whole(key, default=1) > 1:
        return trl_batch(case, target, key, value)
    return "counted in the batch size"


def trl_steps(case: Case, target: str, key: str, value: Any) -> Settings | str:
    """Updates; a step of ours is all updates from one rollout batch."""
    updates = trl_updates_of_step(case) if target == "trainer.steps" else 1
    return {target: math.ceil(case.whole(key, default=1) / updates)}


def trl_every(case: Case, target: str, key: str, value: Any) -> Settings | str:
    """As :func:`trl_steps`; a share of the run has no counterpart."""
    each = case.number(key, default=1)
    if each < 1:
        return f"{value}: a share; ours counts steps"
    updates = trl_updates_of_step(case) if case.targets.exists("trainer.steps") else 1
    return {target: max(1, round(each / updates))}


def trl_episodes(case: Case, target: str, key: str, value: Any) -> Settings | str:
    """Rollouts of the whole run."""
    return {target: math.ceil(case.whole(key, default=1) / trl_rollouts(case))}


def trl_steps_per_generation(case: Case, target: str, key: str, value: Any) -> Settings | str:
    """Said by the rollout batch size."""
    return {target: trl_rollouts(case)}


def trl_loss_type(case: Case, target: str, key: str, value: Any) -> Settings | str:
    names = [value] if isinstance(value, str) else list(value) if isinstance(value, list) else []
    if len(names) != 1:
        return f"{value!r}: one loss at a time (beside dpo, trainer.sft.weight)"
    (name,) = names
    if case.algorithm in ("grpo", "rloo"):
        if name in REDUCTIONS:
            return {"trainer.reduction": REDUCTIONS[name]}
        return {"loss.name": LOSSES[name]} if name in LOSSES else f"no loss is called so here: {name}"
    if case.algorithm in ("dpo", "kto"):
        return {"loss.name": PAIR_LOSSES[name]} if name in PAIR_LOSSES else f"no loss is called so here: {name}"
    return {} if name == "nll" else f"no loss is called so here: {name}"


def scale_rewards(case: Case, target: str, key: str, value: Any) -> Settings | str:
    """By the group's standard deviation, not at all, or by the batch's."""
    if value == "batch":
        return {"advantage.name": "batch_norm"}
    return {target: "std" if value in (True, "group") else "none"}


def untruncated(case: Case, target: str, key: str, value: Any) -> Settings | str:
    """Training samples from the whole distribution."""
    if value in ((1, 1.0) if key.endswith("top_p") else (0, 0.0, -1)):
        return {}
    return f"{value!r}: training samples from the whole distribution, so that importance ratios are right"


def lora(case: Case, target: str, key: str, value: Any) -> Settings | str:
    """Only where adapters are asked for."""
    adapters = case.get("use_peft", default="lora_r" in case.settings)
    return {target: value} if adapters else "adapters are off"


def verl_lora(case: Case, target: str, key: str, value: Any) -> Settings | str:
    names = ("actor_rollout_ref.model.lora_rank", "model.lora_rank", "ds.lora.rank", "lora_rank")
    return {target: value} if case.number(*names, default=0) > 0 else "adapters are off"


def sync_every(case: Case, target: str, key: str, value: Any) -> Settings | str:
    """Only where the reference policy is renewed."""
    return trl_every(case, target, key, value) if case.get("sync_ref_model") else "sync_ref_model is off"


def vespo(case: Case, target: str, key: str, value: Any) -> Settings | str:
    sign, first, second = ("pos", 2.0, 3.0) if "pos" in key else ("neg", 3.0, 2.0)
    pair = [case.number(f"vespo_k_{sign}", default=first), case.number(f"vespo_lambda_{sign}", default=second)]
    return {target: pair}


def trackers(case: Case, target: str, key: str, value: Any) -> Settings | str:
    names = [value] if isinstance(value, str) else list(value or ())
    ours = [name for name in names if name in ("wandb", "tensorboard")]
    return {target: ours} if ours else {}


def wandb(case: Case, target: str, key: str, value: Any) -> Settings | str:
    return {target: ["wandb"]} if value else {}


def tensorboard(case: Case, target: str, key: str, value: Any) -> Settings | str:
    return {target: ["tensorboard"]} if value else {}


def reward_path(case: Case, target: str, key: str, value: Any) -> Settings | str:
    return {"reward.name": "bradley_terry", "reward.path": value}


def one_file(case: Case, target: str, key: str, value: Any) -> Settings | str:
    if isinstance(value, list) and len(value) != 1:
        return f"{len(value)} files: list them as dataset.sources"
    return {target: value[0] if isinstance(value, list) else value}


def verl_files(case: Case, target: str, key: str, value: Any) -> Settings | str:
    """A file, and where verl's rows keep the answer."""
    files = one_file(case, target, key, value)
    if isinstance(files, str) or case.algorithm == "sft":
        return files
    has_columns = dataset_component(str(files[target])) in ("parquet", "jsonl")
    return {**files, "dataset.columns.answer": "reward_model.ground_truth"} if has_columns else files


def verl_rollout_batch(case: Case, target: str, key: str, value: Any) -> Settings | str:
    """Prompts times completions where the policy samples."""
    return {target: case.whole(key, default=1) * (1 if target == "trainer.batch_size" else case.group)}


def verl_completions(case: Case, target: str, key: str, value: Any) -> Settings | str:
    """Prompts times completions."""
    return {target: case.whole(key, default=1) * case.group}


def openrlhf_train_batch(case: Case, target: str, key: str, value: Any) -> Settings | str:
    """Completions of an update; no more than a rollout batch has."""
    size = case.whole(key, default=128)
    if target == "trainer.batch_size":
        return {target: size}
    rollouts = case.whole("rollout.batch_size", "rollout_batch_size", default=1024) * case.group
    return {target: min(size, rollouts)}


def dynamic_tokens(case: Case, target: str, key: str, value: Any) -> Settings | str:
    """Only where batches are cut by tokens."""
    switches = ("actor_rollout_ref.actor.use_dynamic_bsz", "train.dynamic_batch_enable", "use_dynamic_batch")
    return {target: value} if case.get(*switches) else "batches are not cut by tokens"


def verl_loss_mode(case: Case, target: str, key: str, value: Any) -> Settings | str:
    if value in ("vanilla", "ppo"):
        return {}
    return {"loss.name": LOSSES[value]} if value in LOSSES else f"no loss is called so here: {value}"


def verl_kl_loss(case: Case, target: str, key: str, value: Any) -> Settings | str:
    return {target: "loss"} if value is True else "said by the coefficient"


def verl_kl_coef(case: Case, target: str, key: str, value: Any) -> Settings | str:
    return {target: value} if case.get("actor_rollout_ref.actor.use_kl_loss") else "use_kl_loss is off"


def verl_kl_reward(case: Case, target: str, key: str, value: Any) -> Settings | str:
    """Where the KL acts; the loss where both are on."""
    if case.get("actor_rollout_ref.actor.use_kl_loss"):
        return "the KL is in the loss" if value is not True else "ours is in one place: the loss"
    return {target: "reward"} if value is True else {"trainer.kl.coefficient": 0.0}


def verl_kl_reward_coef(case: Case, target: str, key: str, value: Any) -> Settings | str:
    """Only with a KL in the reward, and none in the loss."""
    on = case.get("algorithm.use_kl_in_reward") and not case.get("actor_rollout_ref.actor.use_kl_loss")
    return {target: value} if on else "use_kl_in_reward is off"


def verl_kl_type(case: Case, target: str, key: str, value: Any) -> Settings | str:
    on = case.get("actor_rollout_ref.actor.use_kl_loss")
    return _kl_estimator(target, value) if on else "use_kl_loss is off"


def verl_kl_penalty(case: Case, target: str, key: str, value: Any) -> Settings | str:
    on = case.get("algorithm.use_kl_in_reward") and not case.get("actor_rollout_ref.actor.use_kl_loss")
    return _kl_estimator(target, value) if on else "use_kl_in_reward is off"


def _kl_estimator(target: str, value: Any) -> Settings | str:
    ours = KL.get(str(value).rstrip("+"))
    return {target: ours} if ours else f"{value}: k1, k2 or k3"


def said_by_algorithm(case: Case, target: str, key: str, value: Any) -> Settings | str:
    """The algorithm was chosen by it."""
    grouped = value in ("reinforce_baseline", "reinforce_plus_plus_baseline")
    return {target: case.algorithm, **({"advantage.baseline": "group"} if grouped else {})}


def dynamic_sampling(case: Case, target: str, key: str, value: Any) -> Settings | str:
    return {f"{target}.max_rounds": 10} if value is True else "off"


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
    return {target: str(value).replace("{}", "{prompt}")} if "{}" in str(value) else f"{value!r} has no {{}}"


def label_key(case: Case, target: str, key: str, value: Any) -> Settings | str:
    """KTO's verdict, or the reference answer."""
    return {"dataset.columns.label" if case.algorithm == "kto" else target: value}


def installed(case: Case, kind: str, name: str, settings: Settings | None = None) -> Settings | str:
    """A component of another distribution, or that it is missing."""
    if all(entry.name != name for entry in case.targets.registry.entries(kind)):
        return f"{kind}.name={name}: install the plugin that has it"
    return {f"{kind}.name": name, **(settings or {})}


def vllm(case: Case, target: str, key: str, value: Any) -> Settings | str:
    """vLLM in the training process, or with servers."""
    if value in (False, 0, "hf"):
        return "the native engine samples"
    if value not in (True, "vllm") and not isinstance(value, int):
        return f"{value}: no engine is called so here"
    colocated = key.endswith("rollout.name") or (key == "use_vllm" and case.get("vllm_mode") != "server")
    return installed(case, "rollout", "vllm_colocated" if colocated else "vllm")


def strategy(case: Case, target: str, key: str, value: Any) -> Settings | str:
    """FSDP2, or DeepSpeed's ZeRO."""
    if key == "deepspeed":
        return installed(case, "strategy", "deepspeed")
    if not value or (key == "fsdp" and value == "no"):
        return "off"
    is_fsdp = key == "fsdp" or value in ("fsdp", "fsdp2")
    return installed(case, "strategy", "fsdp") if is_fsdp else f"{value}: no strategy is called so here"


def zero_stage(case: Case, target: str, key: str, value: Any) -> Settings | str:
    """DeepSpeed with that stage; stage 0 divides nothing."""
    stage = case.whole(key, default=0)
    return installed(case, "strategy", "deepspeed", {"strategy.stage": stage}) if stage else {target: "ddp"}
