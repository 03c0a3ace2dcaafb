"""Runs a recipe's stages: what is cached is taken, what was interrupted goes on, the rest is made."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlhf_core.config import ConfigError, RlhfError, UserError
from rlhf_plugin_recipes.content import differences, key_of, key_parts
from rlhf_plugin_recipes.figures import figures_of
from rlhf_plugin_recipes.kinds import RESULT
from rlhf_plugin_recipes.process import INTERRUPTED, Start
from rlhf_plugin_recipes.read import Recipe, Stage
from rlhf_plugin_recipes.stage_plan import Made, StagePlan, command_words, plan_stage
from rlhf_plugin_recipes.store import LOG, Store
from rlhf_plugin_recipes.training import FILE, train_arguments


@dataclass
class Outcome:
    stage: Stage
    status: str
    """``done``, ``cached``, ``failed``, ``interrupted``, ``waiting`` or ``left out``."""
    folder: Path | None = None
    seconds: float | None = None
    figures: Mapping[str, Any] = field(default_factory=dict[str, Any])
    why: str = ""
    """Why it was made, or how it failed."""


class Execution:
    """One call of `rlhf recipe run`."""

    def __init__(
        self,
        recipe: Recipe,
        store: Store,
        start: Start,
        say: Callable[[str], None],
        again: set[str],
        only: str | None = None,
    ) -> None:
        self.recipe, self.store, self.start, self.say = recipe, store, start, say
        self.again, self.only = again, only
        self.made: dict[str, Made] = {}
        wanted = {only, *recipe.before(only)} if only else {stage.name for stage in recipe.stages}
        self.outcomes = {
            stage.name: Outcome(stage, "waiting" if stage.name in wanted else "left out") for stage in recipe.stages
        }

    def check(self) -> list[StagePlan]:
        """Every stage's plan, before the first begins; what is cached is used to check the others with."""
        plans: list[StagePlan] = []
        finished: dict[str, Made] = {}
        for stage in self.recipe.stages:
            planned = plan_stage(self.recipe, stage, finished)
            plans.append(planned)
            if planned.waits_for or stage.name in self.again:
                continue
            made = self.store.finished(stage, key_of(key_parts(planned, finished)))
            if made is not None:
                finished[stage.name] = made
            elif self.only and stage.name in self.recipe.before(self.only):
                break
        if self.only:
            missing = [name for name in self.recipe.before(self.only) if name not in finished]
            if missing:
                ordered = [stage.name for stage in self.recipe.stages if stage.name in missing]
                raise ConfigError(
                    f"--only {self.only} needs what stage '{ordered[0]}' makes, and that is not there",
                    where=str(self.store.root),
                    why="it was never made with these settings, or it is not finished",
                    fix=f"leave out --only, or begin with --only {ordered[0]}",
                )
        return plans

    def forecast(self, plans: list[StagePlan]) -> list[tuple[str, str]]:
        finished: dict[str, Made] = {}
        rows: list[tuple[str, str]] = []
        for planned in plans:
            stage = planned.stage
            unknown = [name for name in stage.needs if name not in finished]
            if self.outcomes[stage.name].status == "left out":
                rows.append((stage.name, "left out"))
            elif unknown:
                rows.append((stage.name, f"runs after {', '.join(unknown)}, unless they make the same as before"))
            else:
                parts = key_parts(planned, finished)
                made = None if stage.name in self.again else self.store.finished(stage, key_of(parts))
                if made is not None:
                    finished[stage.name] = made
                rows.append((stage.name, "cached" if made is not None else self._reason(stage, parts)))
        return rows

    def run(self) -> None:
        for stage in self.recipe.stages:
            if self.outcomes[stage.name].status == "waiting":
                self._stage(stage)

    def _stage(self, stage: Stage) -> None:
        outcome = self.outcomes[stage.name]
        planned = plan_stage(self.recipe, stage, self.made)
        parts = key_parts(planned, self.made)
        key = key_of(parts)
        if stage.name in self.again and (self.only is None or stage.name == self.only):
            self.store.set_aside(stage, key)
        made = self.store.finished(stage, key)
        outcome.folder = self.store.folder(stage, key)
        if made is not None:
            outcome.status = "cached"
            self.store.point(stage, key)
            self.say(f"stage {stage.name}: cached in {outcome.folder}")
        else:
            outcome.why = self._reason(stage, parts)
            self.say(f"stage {stage.name} ({stage.kind_name}): {outcome.why}, in {outcome.folder}")
            made = self._make(planned, key, parts, outcome)
        self.made[stage.name] = made
        record = self.store.record(made)
        outcome.seconds, outcome.figures = record.get("seconds"), figures_of(made.folder, stage.show)

    def _make(self, planned: StagePlan, key: str, parts: Mapping[str, Any], outcome: Outcome) -> Made:
        stage = planned.stage
        folder = self.store.begin(stage, key, parts, self.recipe.name)
        words = self._words(planned, folder)
        printed = folder / RESULT if words[-1] == "--json" else None
        began = time.monotonic()
        try:
            code = self.start(words, folder / LOG, printed)
        except KeyboardInterrupt:
            outcome.status = "interrupted"
            raise
        if code == 0:
            made = self.store.finish(stage, key, time.monotonic() - began)
            outcome.status = "done"
            return made
        outcome.status, outcome.why = "failed", f"exit code {code}"
        if code == INTERRUPTED:
            outcome.status = "interrupted"
            raise KeyboardInterrupt
        kind = UserError if code == 2 else RlhfError
        raise kind(
            f"stage '{stage.name}' failed with exit code {code}",
            where=str(folder),
            why=f"its own message is above and in {folder / LOG}",
            fix="fix that; the same command goes on from here",
        )

    def _words(self, planned: StagePlan, folder: Path) -> list[str]:
        """The command of a stage; an interrupted training goes on with its own checkpoints."""
        stage = planned.stage
        if stage.kind_name == "ensemble":  # killed between its last write and ours; the command replaces nothing
            shutil.rmtree(folder / stage.kind.folder_options["output"], ignore_errors=True)
        if stage.kind_name != "train":
            return [*stage.kind.command, *command_words(stage, planned.settings, folder)]
        if _can_resume(folder):
            return ["train", "--resume", str(folder)]
        return ["train", *train_arguments(planned.settings, folder / FILE), "--run-dir", str(folder)]

    def _reason(self, stage: Stage, parts: Mapping[str, Any]) -> str:
        key = key_of(parts)
        if stage.name in self.again:
            return "made again, as asked"
        if lost := self.store.lost(stage, key):
            return f"made again, for its {', '.join(lost)} is gone"
        before = self.store.latest(stage)
        if before is None:
            return "made for the first time"
        if changed := differences(before, parts):
            more = f" and {len(changed) - 3} more" if len(changed) > 3 else ""
            return f"made again, for {'; '.join(changed[:3])}{more}"
        return "not finished: goes on" if stage.kind_name == "train" else "not finished: goes on, or begins again"


def _can_resume(folder: Path) -> bool:
    plan = folder / "plan.json"
    if not plan.is_file():
        return False
    try:
        json.loads(plan.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"the plan of '{folder}' is damaged", fix=f"remove {folder}") from error
    return True
