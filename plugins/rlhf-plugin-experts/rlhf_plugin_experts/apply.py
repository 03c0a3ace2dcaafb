"""``model.experts`` on a loaded policy."""

from __future__ import annotations

from typing import Any

from rlhf_core.config import BuildContext, ConfigError
from rlhf_core.models import LoadedModel, ModelError, split_lm_head
from rlhf_plugin_experts.balance import BalanceTerm
from rlhf_plugin_experts.routers import find_routers
from rlhf_plugin_experts.watch import RouterWatch


def apply(ctx: BuildContext, policy: LoadedModel) -> None:
    """Freeze or train the routers, measure them, add the load-balancing loss, and replay what the sampler chose.

    Raises:
        ModelError: the model has no routers, or not of a form in which its choices can be read.
        ConfigError: a setting that this run cannot keep.
    """
    settings, model = ctx.config.model.experts, policy.model
    base: Any = model.get_base_model() if hasattr(model, "get_base_model") else model
    routers, asked = find_routers(base), settings.balance_loss > 0 or settings.replay or settings.train_router
    if not routers and asked:
        raise ModelError(
            f"model.experts is set, but {type(base).__name__} has no router that can be read",
            why="a router is the module beside `experts` with a weight, `top_k` and `num_experts`",
            fix="leave model.experts out",
        )
    if not routers:
        return
    trained = _set_trained(ctx, model, routers)
    if settings.balance_loss and not trained:
        raise ConfigError(
            "model.experts.balance_loss needs routers that are trained",
            why="they are frozen, so that nothing would learn to balance",
            fix="--set model.experts.train_router=true, under model.lora with the router in target_modules (`gate`)",
        )
    if not hasattr(ctx.config.trainer, "sampling") or split_lm_head(base, linear=True) is None:
        if settings.balance_loss or settings.replay:
            raise ConfigError(
                "model.experts.balance_loss and replay are for policies whose logits are their head's",
                why=f"{type(base).__name__} changes its logits after the head, or this run trains no policy",
                fix="leave them out",
            )
        return
    if settings.replay:
        _check_replay(ctx)
    watch = RouterWatch(base, routers, strict=settings.replay or settings.balance_loss > 0, replay=settings.replay)
    base.__dict__["watch_rows"], base.__dict__["loss_terms"] = watch, (BalanceTerm(watch, settings.balance_loss),)


def _set_trained(ctx: BuildContext, model: Any, routers: list[Any]) -> bool:
    """Whether routers are trained; says it."""
    wanted = ctx.config.model.experts.train_router
    own = {id(p) for router in routers for n, p in router.named_parameters() if "lora_" not in n}
    if not hasattr(model, "peft_config"):
        for parameter in (p for p in model.parameters() if id(p) in own):
            parameter.requires_grad_(wanted)
        ctx.session.say(f"routers of {len(routers)} layers: {'trained' if wanted else 'frozen'}")
        return wanted
    adapters = [n for n, p in model.named_parameters() if "lora_" in n and p.requires_grad]
    adapted = any(_of_router(name, model, own) for name in adapters)
    experts = any("expert" in name and not _of_router(name, model, own) for name in adapters)
    kinds = {"experts": experts, "routers": adapted}
    ctx.session.say("; ".join(f"{kind}: {'adapted' if is_so else 'frozen'}" for kind, is_so in kinds.items()))
    if wanted and not adapted:
        raise ConfigError(
            "model.experts.train_router under model.lora needs an adapter of the router",
            fix="name it in model.lora.target_modules, such as `gate`, or leave train_router out",
        )
    return adapted


def _of_router(name: str, model: Any, own: set[int]) -> bool:
    owner = model.get_submodule(name.partition(".lora_")[0])
    return any(id(p) in own for p in owner.parameters())


def _check_replay(ctx: BuildContext) -> None:
    trainer, rollout = ctx.config.trainer, getattr(ctx.config, "rollout", None)
    what = ""
    if getattr(rollout, "name", None) != "native" or not hasattr(trainer, "group_size"):
        what = "a run that does not sample with the native engine"
    elif getattr(trainer, "batches_ahead", 0):
        what = "rollouts that are sampled ahead (trainer.rollouts.max_staleness)"
    elif ctx.world_size > 1 and (getattr(trainer, "updates_per_step", 1) > 1 or trainer.micro_batch_tokens):
        what = "several processes that send each other completions (several updates a step, micro_batch_tokens)"
    if what:
        raise ConfigError(
            f"model.experts.replay cannot be used with {what}",
            why="what the sampler chose is kept in the process that sampled",
            fix="leave model.experts.replay out",
        )
