"""Ways to use a number of cards: which train, which serve the rollout engine, what each holds, and the commands."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from rlhf_core.config import ConfigError, UserError
from rlhf_plugin_preflight.memory.amounts import readable
from rlhf_plugin_preflight.memory.engine import CardsAsked, EngineLayout, engine_memory
from rlhf_plugin_preflight.memory.footprint import Footprint, footprint
from rlhf_plugin_preflight.memory.plan import MemoryPlan, placement_of, plan_for

if TYPE_CHECKING:
    from rlhf_core.config import BuildContext, RunConfig

Resolve = Callable[[Sequence[str]], "RunConfig"]
"""Settings beside the user's -> the run."""
DIVIDED = "strategy=fsdp"
"""What is tried where a run names no strategy and ddp does not fit."""


@dataclass(frozen=True)
class Question:
    """What is asked: bytes of each card, of main memory of each machine (None: not compared), and tokens of prompts
    (None: the data's)."""

    cards: int
    per_machine: int
    device: int
    host: int | None = None
    prompt: int | None = None
    model: str = "MODEL"
    """What servers are started with."""
    words: Sequence[str] = ()
    """Of ``rlhf train`` with the user's options."""


@dataclass(frozen=True)
class Split:
    engine: EngineLayout
    settings: Sequence[str]
    """Of the run: the engine's and the strategy."""
    plan: MemoryPlan
    """Of a card that trains."""
    refusal: str = ""
    """Why the cards cannot be used so; empty where they can."""
    commands: Sequence[str] = ()

    def as_json(self, cards: int) -> dict[str, Any]:
        one = self.engine
        return {
            "train": one.train,
            "serve": cards - one.train,
            "servers": one.servers,
            "cards_of_a_server": one.cards,
            "strategy": self.plan.placement.strategy,
            "peak": self.plan.peak,
            "peak_phase": self.plan.peak_phase,
            "server_weights": one.weights,
            "server_cache": one.cache,
            "cached_tokens": one.tokens,
            "fits": not self.refusal,
            "why_not": self.refusal or None,
            "commands": list(self.commands),
        }


def propose(ctx: BuildContext, resolve: Resolve, question: Question) -> list[Split]:
    """Every way to use the cards, one for each engine and number of cards that train; ``ctx`` is of the run as the user
    has it.

    Raises:
        ConfigError: the run samples nothing, no installed engine says how it would use cards, or the cards are no
            whole machines.
    """
    run, registry = ctx.config, ctx.registry
    if not run.samples_itself:
        raise ConfigError(
            f"{run.trainer.name} learns from data that is there: no card would serve", fix="leave out --splits"
        )
    if question.cards > question.per_machine and question.cards % question.per_machine:
        raise ConfigError(
            f"{question.cards} cards are not whole machines of {question.per_machine}",
            fix="change --ranks or --ranks-per-node",
        )
    engines = {entry.name: registry.load("rollout", entry.name) for entry in registry.entries("rollout")}
    able: dict[str, Any] = {name: cls for name, cls in engines.items() if hasattr(cls, "layouts")}
    if not able:
        raise ConfigError("no installed rollout engine says how it would use cards", fix="pip install rlhf-plugin-vllm")
    planner = Planner(ctx, resolve, question, next(iter(able)))
    cards = planner.cards_asked()
    kinds: dict[tuple[str, int], list[Split]] = {}
    for name in sorted(able, key=lambda name: name != "vllm_colocated"):
        for layout in able[name].layouts(cards):
            tried = kinds.setdefault((name, layout.train), [])
            if not tried or tried[-1].refusal:
                tried.append(planner.split(layout))
    best = [next((s for s in tried if not s.refusal), tried[0]) for tried in kinds.values()]
    return [replace(s, commands=commands(s, question)) for s in best]


class Planner:
    """Plans the trainer of each layout; what does not depend on the layout is rehearsed once."""

    def __init__(self, ctx: BuildContext, resolve: Resolve, question: Question, engine: str) -> None:
        self.ctx, self.question = ctx, question
        self.resolve = lambda settings: computing_on_cards(resolve(settings))
        self._engine, self._rehearsed = engine, dict[Any, Footprint]()

    def cards_asked(self) -> CardsAsked:
        """The question that engines are put."""
        run = self.resolve([f"rollout.name={self._engine}"])
        base, model = self._footprint(run, self.question.cards), self.ctx.config.model
        assert base.facts is not None
        half = getattr(run.trainer, "precision", "fp32") != "fp32" or model.dtype == "bfloat16"
        return CardsAsked(
            self.question.cards,
            self.question.per_machine,
            base.facts,
            heads=base.model.heads,
            kv_heads=base.model.kv_heads,
            model=self.question.model,
            dtype="bfloat16" if half else "float32",
            lora_rank=0 if model.lora is None else model.lora.r,
            quantized=model.quantize is not None,
            ahead=bool(getattr(run.trainer, "batches_ahead", 0)),
            own=self.ctx.config.rollout,
        )

    def split(self, layout: EngineLayout) -> Split:
        """The first strategy with which it fits: the run's own, else ddp, then fsdp; the last one where none does."""
        named = getattr(self.ctx.config.strategy, "name", "auto") not in ("auto", "single", "ddp")
        tried = [self._with(layout, more) for more in ((), *([] if named or layout.train == 1 else [(DIVIDED,)]))]
        return next((split for split in tried if not split.refusal), tried[-1])

    def _with(self, layout: EngineLayout, more: Sequence[str]) -> Split:
        settings, ranks = [*layout.settings, *more], layout.train
        run = self.resolve(settings)
        ctx = self.ctx.with_(config=run, world_size=ranks)
        held = self._footprint(run, ranks)
        plan = plan_for(held, placement_of(ctx), on_cpu=False)
        return Split(layout, settings, plan, self._refusal(ctx, layout, held, plan))

    def _refusal(self, ctx: BuildContext, layout: EngineLayout, held: Footprint, plan: MemoryPlan) -> str:
        if layout.refusal is not None:
            return _said(layout.refusal)
        error = refused(ctx)  # what one process is refused for as well is no fault of the layout
        if error is not None and str(error) != str(refused(ctx.with_(world_size=1))):
            return _said(error)
        if plan.peak > self.question.device:
            return f"a card that trains needs {readable(plan.peak)} in {plan.peak_phase}"
        if held.engine is not None and held.engine.refusal is not None:
            return _said(held.engine.refusal)
        on_machine = min(layout.train, self.question.per_machine)
        if self.question.host is not None and plan.host_peak * on_machine > self.question.host:
            return f"a machine needs {readable(plan.host_peak * on_machine)} of main memory"
        return ""

    def _footprint(self, run: RunConfig, ranks: int) -> Footprint:
        """Of a run that samples with an engine, on so many ranks."""
        trainer: Any = run.trainer
        if (
            trainer.gradient_accumulation_steps is not None
            and refused(self.ctx.with_(config=run, world_size=ranks)) is None
        ):
            trainer = trainer.micro_batches(ranks)
        share = max(1, -(-trainer.sequences_per_update() // ranks))
        size, more = min(trainer.micro_batch_size, share), trainer.micro_batch_size < share
        key = (size, more, repr(run.strategy))
        ctx = self.ctx.with_(config=run, world_size=ranks)
        if key not in self._rehearsed:
            self._rehearsed[key] = footprint(
                ctx, on_cpu=False, prompt=self.question.prompt, device=self.question.device
            )
        held = self._rehearsed[key]
        assert held.facts is not None
        facts = replace(held.facts, ranks=ranks)
        return replace(held, facts=facts, engine=engine_memory(run, facts))


def refused(ctx: BuildContext) -> UserError | None:
    """What the trainer and the strategy of a run say against so many processes."""
    trainer: Any = ctx.config.trainer
    try:
        trainer.micro_batches(ctx.world_size)
        trainer.check_rollouts(ctx)
        if ctx.config.strategy is not None:
            ctx.config.strategy.preflight(ctx)
    except UserError as error:
        return error
    return None


def computing_on_cards(run: Any) -> Any:
    """With what ``trainer.precision=auto`` is on a card, whatever this machine has."""
    if getattr(run.trainer, "precision", None) != "auto":
        return run
    precision = "bf16" if run.model.dtype == "float32" else "fp32"
    return run.model_copy(update={"trainer": run.trainer.model_copy(update={"precision": precision})})


def _said(error: UserError) -> str:
    return error.what + (f": {error.why}" if error.why else "")


def commands(split: Split, question: Question) -> list[str]:
    """Lines of shell: those that start servers, the run's, and the one that ends the servers."""
    train, each = split.engine.train, question.per_machine
    words = f"{shlex.join(question.words)} {expanded([w for s in split.settings for w in ('--set', s)])}"
    if question.cards <= each:
        if not split.engine.start:
            return [f"rlhf train {words} --nproc {train}"]
        cards = ",".join(map(str, range(train)))
        run = f"CUDA_VISIBLE_DEVICES={cards} rlhf train {words} --nproc {train}"
        return [*split.engine.start, run, "kill $(jobs -p)"]
    started = f"torchrun --nnodes {train // each} --nproc-per-node {each} --node-rank $MACHINE --master-addr $HOST_0"
    module = "--master-port 29500 -m rlhf_core.cli.main train"
    return [*split.engine.start, f'{started} {module} {words} --run-dir "$SHARED/run"']


def expanded(words: Sequence[str]) -> str:
    """Words of our own as a shell reads them, ``$NAME`` a variable."""
    special = re.compile("[$']")
    return " ".join('"' + w.replace('"', '\\"') + '"' if special.search(w) else shlex.quote(w) for w in words)


VARIABLES: Mapping[str, str] = {
    "$VLLM_PYTHON": "the interpreter of an environment with vLLM and rlhf-plugin-vllm",
    " MODEL ": "a folder or hub id with weights of that shape",
    "$HOST_": "HOST_0, HOST_1, ... are the machines' names, those that train first",
    "$MACHINE": "the machine's number, from 0",
    "$SHARED": "a folder that all machines see",
}
"""What commands leave open."""


def left_open(lines: Sequence[str]) -> list[str]:
    """What a reader has to fill in before the commands run."""
    text = " ".join(lines)
    return [f"{name.strip(' $_')}: {meaning}" for name, meaning in VARIABLES.items() if name in text]
