"""Runs tasks of lm-evaluation-harness."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlhf_core.config import BuildContext, PluginError
from rlhf_core.data import DatasetError

if TYPE_CHECKING:
    from rlhf_eval.lm_harness.config import LmEvalConfig


log = logging.getLogger("rlhf.eval")


@cache
def manager(include_path: str | None) -> Any:
    """lm_eval's index of tasks; reading it takes seconds."""
    from lm_eval.tasks import TaskManager  # pyright: ignore[reportMissingImports]

    return TaskManager(include_path=include_path)


def check_task(config: LmEvalConfig) -> None:
    import difflib

    tasks = manager(config.include_path).all_tasks
    if config.task not in tasks:
        near = ", ".join(difflib.get_close_matches(config.task, tasks, 3))
        raise PluginError(
            f"lm-evaluation-harness has no task '{config.task}'",
            fix=f"did you mean {near}?" if near else "lm_eval ls tasks shows them",
        )
    for path in (config.path, config.shots_path):
        if path and not Path(path).expanduser().is_file():
            raise DatasetError(f"there is no file '{path}'", fix="check --data and --shots-data")


def task_spec(config: LmEvalConfig) -> str | dict[str, Any]:
    """What lm_eval loads: the task's name, or the task with local files for its splits."""
    if config.path is None:
        return config.task
    settings = settings_of(config, functions=True)
    test = settings.get("test_split") or settings.get("validation_split") or "test"
    files = {test: str(Path(config.path).expanduser())}
    train = settings.get("fewshot_split") or settings.get("training_split")
    if config.shots_path and train:
        files[train] = str(Path(config.shots_path).expanduser())
    elif train and train != test:  # the split is declared but nothing in it is read without worked examples
        files[train] = files[test]
    local = {"dataset_path": "json", "dataset_name": None, "dataset_kwargs": {"data_files": files}}
    return {**settings, **local, "task": config.task}


def settings_of(config: LmEvalConfig, *, functions: bool = False) -> Mapping[str, Any]:
    """A task's own settings, as its file has them, what it includes merged in."""
    from lm_eval.tasks._yaml_loader import load_yaml  # pyright: ignore[reportMissingImports]

    entry = manager(config.include_path).task_index[config.task]
    return load_yaml(entry.yaml_path, resolve_func=functions)


def numbers_of(results: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """lm_eval's metrics that are numbers; with several tasks each name begins with its task."""
    metrics: dict[str, float] = {}
    for task, values in results.items():
        for name, value in values.items():
            if isinstance(value, (int, float)) and not name.startswith("alias"):
                metrics[f"{task}/{name}" if len(results) > 1 else name] = float(value)
    return metrics


class LmEvalBenchmark:
    """One task on one model."""

    def __init__(self, config: LmEvalConfig, ctx: BuildContext) -> None:
        self.config, self.policy, self.seed = config, ctx.policy, ctx.seed

    def evaluate(self, engine: Any, policy_version: int) -> Mapping[str, float]:
        """The task's metrics by ``metric,filter``, and ``truncated``."""
        metrics, _ = self.run(engine)
        return metrics

    def run(self, engine: Any) -> tuple[dict[str, float], list[dict[str, Any]]]:
        """Metrics, and one row per document and filter."""
        from lm_eval.evaluator import simple_evaluate  # pyright: ignore[reportMissingImports]

        from rlhf_core.models import preserved_rng
        from rlhf_eval.lm_harness.engine import EngineLM, truncated

        lm = EngineLM(self.policy, engine, self.config.max_tokens, self.seed)
        with preserved_rng():  # lm_eval seeds all generators, those of the run that is evaluated
            raw: Any = simple_evaluate(
                lm,
                tasks=[task_spec(self.config)],
                num_fewshot=self.config.shots,
                limit=self.config.limit,
                task_manager=manager(self.config.include_path),
                apply_chat_template=self.config.chat,
                log_samples=True,
                bootstrap_iters=0,
            )
        share = truncated([r for rollouts in lm.rollouts.values() for r in rollouts])
        self._warn(share, lm.shortened)
        metrics = {**numbers_of(raw["results"]), "truncated": share, "prompts_shortened": float(lm.shortened)}
        rows = [self._row(task, sample, lm) for task, samples in raw["samples"].items() for sample in samples]
        return metrics, rows

    def _warn(self, truncated_share: float, prompts_shortened: int) -> None:
        if truncated_share > 0:
            log.warning(
                "%.1f %% of the completions of '%s' were cut at the token limit; its metrics count what was "
                "cut as it stands. Raise --max-tokens (now %d), unless the task sets max_gen_toks itself",
                100 * truncated_share,
                self.config.task,
                self.config.max_tokens,
            )
        if prompts_shortened:
            log.warning(
                "%d prompts of '%s' did not fit the model's context; their beginning was cut off",
                prompts_shortened,
                self.config.task,
            )

    def _row(self, task: str, sample: Mapping[str, Any], lm: Any) -> dict[str, Any]:
        args = sample["arguments"]
        first = next(iter(args.values())) if isinstance(args, Mapping) else args[0]
        context = str(next(iter(first.values())) if isinstance(first, Mapping) else first[0])
        rollouts = lm.rollouts.get(context, [])
        return {
            "task": task,
            "id": f"{task}/{sample['doc_id']}",
            "filter": sample["filter"],
            "prompt": context,
            "target": sample["target"],
            "responses": sample["resps"],
            "read": sample["filtered_resps"],
            "finish_reasons": [r.finish_reason.value for r in rollouts],
            "tokens": [len(r.completion_ids) for r in rollouts],
            **{name: sample[name] for name in sample["metrics"] if isinstance(sample.get(name), (int, float))},
        }
