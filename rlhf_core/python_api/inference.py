"""``rlhf generate``, ``rlhf reward score`` and a benchmark as functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlhf_core.plugins.component import ComponentConfig
from rlhf_core.python_api.run import Run
from rlhf_core.types.errors import ConfigError

if TYPE_CHECKING:
    from rlhf_core.models.config import ModelConfig
    from rlhf_core.plugins.registry import Registry
    from rlhf_core.types.rollouts import Prompt, Rollout, SamplingParams, Score


def generate(
    model: str | Path | ModelConfig | Run,
    prompts: Sequence[Any] | str,
    *,
    n: int = 1,
    seed: int = 0,
    prompt_format: str | None = None,
    **sampling: Any,
) -> list[list[Rollout]]:
    """Sample completions.

    Example:
        generate("pocket", ["What is 2 + 3?"], n=4, max_tokens=16)[0][0].text

    Args:
        model: hub id, folder, ``.gguf`` file, ``pocket``, a ``ModelConfig`` or a run.
        prompts: one text, or several texts, rows with ``prompt`` or ``messages``, or ``Prompt`` objects.
        n: completions of each prompt.
        seed: the same seed gives the same text, whatever the other prompts are.
        prompt_format: ``chat``, ``raw``, or ``auto`` for the template if there is one; None takes that of the run or
            the ``ModelConfig``, and ``auto`` for other models.
        sampling: fields of ``SamplingParams``: ``max_tokens``, ``temperature`` (0 is greedy), ``top_p``, ``stop`` ...

    Returns:
        For each prompt its ``n`` rollouts (``text``, ``finish_reason``, ``completion_ids``, ``logprobs_T``).

    Raises:
        ConfigError: no prompt, an empty one, or one that does not fit the model's context.
        ModelError: the model cannot be loaded.
    """
    from rlhf_core.cli.common import open_registry, quiet_libraries
    from rlhf_core.cli.episodes import load_sampler
    from rlhf_core.models.prompt_format import Formatter
    from rlhf_core.python_api.launching import unchanged_process

    all_prompts = _prompts(prompts if isinstance(prompts, Sequence) and not isinstance(prompts, str) else [prompts])
    if n < 1:
        raise ConfigError(f"n is {n}", fix="ask for at least one completion")
    params, config = _sampling(sampling), _model_config(model, prompt_format)
    with unchanged_process():
        quiet_libraries()
        sampler = load_sampler(open_registry(), config)
        formatter = Formatter(sampler.policy.tokenizer, config.prompt_format, config.tool_format)
        rollouts = sampler.sample(all_prompts, params, n, seed, formatter)
    return [rollouts[i * n : i * n + n] for i in range(len(all_prompts))]


def score(
    samples: Sequence[Any] | str | Path,
    reward: str | Path | ComponentConfig | Run | Callable[..., Any],
    *,
    settings: Mapping[str, Any] | None = None,
    seed: int = 0,
    stop: Sequence[str] = (),
    keep_stop: bool = False,
) -> list[Score]:
    """Score completions with a reward, in their order.

    Example:
        score([{"prompt": "What is 2 + 2?", "answer": "4", "completion": "It is 4."}], "verifier")[0].value  # 1.0

    Args:
        samples: a file of JSON lines, or rows or a DataFrame with ``prompt`` (or ``messages``) and ``completion``.
        reward: a name, a Config, a run or folder of a reward model or ensemble, or a function from samples to numbers.
        settings: of a reward given by name.
        seed: for rewards that draw at random.
        stop: judge as if the first of these strings had ended each completion.
        keep_stop: leave it at their end.

    Raises:
        ConfigError: the reward cannot be had.
        DatasetError: a row without prompt or completion.
        PluginError: the reward returned something else than one score per sample.
    """
    import json
    import tempfile

    from rlhf_core.cli.common import context_of, open_registry, quiet_libraries
    from rlhf_core.data.completions import read_completions
    from rlhf_core.models.layers.matmul import use_matmul_backend
    from rlhf_core.python_api.config import registered, rows_of
    from rlhf_core.python_api.launching import unchanged_process

    with tempfile.TemporaryDirectory() as folder, unchanged_process():
        file = str(samples)
        if not isinstance(samples, str | Path):
            file = f"{folder}/samples.jsonl"
            rows = rows_of(samples, "samples")
            Path(file).write_text("".join(json.dumps(row, default=_plain) + "\n" for row in rows))
        is_function = not isinstance(reward, str | Path | ComponentConfig | Run)
        with registered({"reward": reward}) if is_function else nullcontext():
            registry = open_registry()
            chosen = _chosen_reward(registry, reward, settings)
            quiet_libraries()
            completions = read_completions(file).cut_at(_strings(stop), keep=keep_stop)
            dataset = {"name": "jsonl", "path": file, "heldout_fraction": 0.0}
            use_matmul_backend("auto")
            return list(completions.score(chosen, context_of(registry, seed=seed, dataset=dataset, reward=chosen)))


def _chosen_reward(registry: Registry, reward: Any, settings: Mapping[str, Any] | None) -> ComponentConfig:
    from rlhf_core.cli.scoring import chosen_reward
    from rlhf_core.models.paths import model_folder
    from rlhf_core.python_api.config import config_of

    folder = reward.model_path if isinstance(reward, Run) else Path(model_folder(str(reward))).expanduser()
    if isinstance(reward, str | Path) and not folder.is_dir():
        return registry.config("reward", str(reward), settings)
    _refuse_settings(settings, "reward")
    if isinstance(reward, ComponentConfig):
        return reward
    is_folder = isinstance(reward, str | Path | Run)
    return chosen_reward(registry, str(folder), None, ()) if is_folder else config_of("reward", reward)


def evaluate(
    model: str | Path | ModelConfig | Run,
    benchmark: str | ComponentConfig,
    *,
    settings: Mapping[str, Any] | None = None,
    seed: int = 0,
) -> dict[str, float]:
    """Evaluate a model on a benchmark (``rlhf plugins list --kind benchmark``).

    Example:
        evaluate("pocket", "prompts", settings={"dataset": {"name": "pocket/arithmetic"}, "limit": 20})["pass@1"]

    Args:
        model: hub id, folder, ``.gguf`` file, ``pocket``, a ``ModelConfig`` or a run.
        benchmark: a name, or its Config.
        settings: of a benchmark given by name, nested as in YAML.
        seed: decides the completions.

    Raises:
        PluginError: there is no such benchmark.
        UserError: model and benchmark do not fit, or rows are missing.
    """
    from rlhf_core.cli.common import context_of, open_registry, quiet_libraries
    from rlhf_core.cli.episodes import load_sampler
    from rlhf_core.python_api.launching import unchanged_process

    with unchanged_process():
        registry = open_registry()
        if isinstance(benchmark, ComponentConfig):
            _refuse_settings(settings, "benchmark")
            chosen = benchmark
        else:
            chosen = registry.config("benchmark", benchmark, settings)
        chosen.preflight(context_of(registry, seed=seed))
        quiet_libraries()
        policy, engine = load_sampler(registry, _model_config(model))
        with context_of(registry, seed=seed, policy=policy).open("benchmark", chosen) as one:
            return dict(one.evaluate(engine, 0))


def _model_config(model: Any, prompt_format: str | None = None) -> ModelConfig:
    """Prompts of a run's model are written as the run wrote them, unless ``prompt_format`` says otherwise."""
    from rlhf_core.models.config import ModelConfig

    if isinstance(model, Run):
        chosen = {"path": str(model.model_path), "prompt_format": model.config["model"]["prompt_format"]}
    elif isinstance(model, ModelConfig):
        chosen = model.model_dump()
    else:
        chosen = {"path": str(model)}
    return ModelConfig.model_validate(chosen if prompt_format is None else {**chosen, "prompt_format": prompt_format})


def _refuse_settings(settings: Mapping[str, Any] | None, what: str) -> None:
    """Settings go with a name; beside anything else they would have no effect."""
    if settings:
        raise ConfigError(
            f"settings {', '.join(settings)} would have no effect",
            why=f"they belong to a {what} given by name",
            fix=f"put them into the {what}'s Config, or name it",
        )


def _sampling(values: Mapping[str, Any]) -> SamplingParams:
    """Checked as the same settings of a run are."""
    from rlhf_core.training.config import SamplingSettings

    settings = SamplingSettings.from_settings({**values, "stop": _strings(values.get("stop", ()))}, "generate()")
    return settings.params()


def _plain(value: Any) -> Any:
    """An array's or tensor's numbers as lists, which text would not be; text of anything else."""
    return value.tolist() if hasattr(value, "tolist") else str(value)


def _strings(stop: Any) -> tuple[str, ...]:
    """Stop strings; one text is one of them, not its letters."""
    return (stop,) if isinstance(stop, str) else tuple(stop)


def _prompts(values: Sequence[Any]) -> list[Prompt]:
    from rlhf_core.data.jsonl import flaw_of
    from rlhf_core.data.schema import RawRow, RowReader
    from rlhf_core.types.rollouts import Prompt

    if not values:
        raise ConfigError("there is no prompt", fix='generate(model, ["What is 2 + 3?"])')
    reader = RowReader("prompts", {}, mapped=False)
    prompts: list[Prompt] = []
    for i, one in enumerate(values):
        if isinstance(one, Prompt):
            prompts.append(one)
        elif isinstance(one, str):
            prompts.append(Prompt(f"prompt/{i}", ({"role": "user", "content": one},)))
        else:
            row = RawRow(one, i, f"prompts[{i}]")
            prompts.append(Prompt(f"prompt/{i}", reader.prompt(row), tools=reader.tools(row)))
        if flaw := flaw_of({"prompt": one if isinstance(one, str | dict) else prompts[-1].text}):
            raise ConfigError(f"prompts[{i}]: {flaw}", fix="correct it or leave it out")
        if not prompts[-1].text.strip():
            raise ConfigError(f"prompts[{i}] is empty", fix="fill it or leave it out")
    return prompts
