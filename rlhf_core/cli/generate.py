"""`rlhf generate`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rlhf_core.cli.common import Choice

if TYPE_CHECKING:
    from rlhf_core.models.load import LoadedModel
    from rlhf_core.types import Prompt, Rollout, SamplingParams


@click.command()
@click.option("--model", default="pocket", show_default=True, metavar="M", help="Hub id, folder, run or .gguf file.")
@click.option("--prompt", "texts", multiple=True, metavar="TEXT", help="A prompt. Repeatable.")
@click.option("--input", "file", metavar="FILE", help="JSON lines with a prompt or messages in each row.")
@click.option("--max-tokens", type=click.IntRange(1), default=64, show_default=True, help="Most tokens to sample.")
@click.option("--min-tokens", type=click.IntRange(0), default=1, show_default=True, help="Fewest, end token included.")
@click.option("--temperature", type=click.FloatRange(0), default=1.0, show_default=True, help="0 is greedy.")
@click.option("--top-p", type=click.FloatRange(0, 1, min_open=True), default=1.0, show_default=True, help="1 is off.")
@click.option("--top-k", type=click.IntRange(0), default=0, show_default=True, help="0 is off.")
@click.option("--n", type=click.IntRange(1), default=1, show_default=True, help="Completions of each prompt.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="The same seed gives the same text.")
@click.option("--stop", multiple=True, metavar="TEXT", help="Text that ends a completion. Repeatable.")
@click.option(
    "--prompt-format",
    type=Choice(("auto", "chat", "raw")),
    default="auto",
    show_default=True,
    help="Chat template, plain text, or the template if there is one.",
)
@click.option("--json", "as_json", is_flag=True, help="For machines.")
def generate(
    model: str,
    texts: tuple[str, ...],
    file: str | None,
    max_tokens: int,
    min_tokens: int,
    temperature: float,
    top_p: float,
    top_k: int,
    n: int,
    seed: int,
    stop: tuple[str, ...],
    prompt_format: Any,
    as_json: bool,
) -> None:
    """Sample completions from a model.

    \b
    rlhf generate --prompt "What is 2 + 3?"
    rlhf generate --model runs/x/final --input prompts.jsonl --temperature 0 --json
    """
    from rlhf_core.cli.common import emit_json, quiet_libraries, set_up_logging
    from rlhf_core.errors import ConfigError
    from rlhf_core.kernels.matmul import use_matmul_backend
    from rlhf_core.models.config import ModelConfig
    from rlhf_core.models.load import load_policy
    from rlhf_core.types import SamplingParams

    set_up_logging()
    if min_tokens > max_tokens:
        raise ConfigError(f"--min-tokens {min_tokens} is above --max-tokens {max_tokens}", fix="lower it")
    prompts = prompts_of(texts, file)
    quiet_libraries()
    use_matmul_backend("auto")
    policy = load_policy(ModelConfig(path=model, prompt_format=prompt_format))
    sampling = SamplingParams(
        max_tokens=max_tokens,
        min_tokens=min_tokens,
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        stop=tuple(stop),
    )
    rollouts = sample_completions(policy, prompts, sampling, n, seed, prompt_format)
    rows = [_row(p, rollouts[i * n : i * n + n]) for i, p in enumerate(prompts)]
    if as_json:
        emit_json(rows)
        return
    for row in rows:
        _print(row)


def prompts_of(texts: Sequence[str], file: str | None) -> list[Prompt]:
    """Prompts from the command line, then those of the file.

    Raises:
        ConfigError: there is none, or one is empty.
        DatasetError: the file is missing or a row of it has no prompt.
    """
    from rlhf_core.data.files import read_rows
    from rlhf_core.data.schema import RawRow, RowReader
    from rlhf_core.errors import ConfigError, DatasetError
    from rlhf_core.types import Prompt

    if not texts and not file:
        raise ConfigError("there is no prompt", fix='--prompt "What is 2 + 3?", or --input FILE.jsonl')
    if any(not t.strip() for t in texts):
        raise ConfigError("--prompt is empty", fix='--prompt "What is 2 + 3?"')
    prompts = [Prompt(f"prompt/{i}", ({"role": "user", "content": t},)) for i, t in enumerate(texts)]
    if file:
        rows, places = read_rows(file)
        reader = RowReader(Path(file).name, {}, mapped=False)
        for i, (row, place) in enumerate(zip(rows, places)):
            record = RawRow(row, i, f"{file}, {place}")
            prompts.append(Prompt(str(row.get("id", f"{Path(file).stem}/{i}")), reader.prompt(record)))
            if not prompts[-1].text.strip():
                raise DatasetError("a prompt is empty", where=record.where, fix="fill or remove that row")
    return prompts


def sample_completions(
    policy: LoadedModel, prompts: Sequence[Prompt], sampling: SamplingParams, n: int, seed: int, prompt_format: str
) -> list[Rollout]:
    """``n`` rollouts per prompt, prompt by prompt.

    Raises:
        ConfigError: a prompt and its completion do not fit the model's context.
    """
    import torch

    from rlhf_core.errors import ConfigError
    from rlhf_core.models.prompt_format import Formatter
    from rlhf_core.rollout.native import NativeEngine
    from rlhf_core.rollout.seeds import request_seed
    from rlhf_core.types import RolloutRequest

    policy.model.to("cuda" if torch.cuda.is_available() else "cpu")
    formatter = Formatter(policy.tokenizer, prompt_format)
    requests: list[RolloutRequest] = []
    for at, prompt in enumerate(prompts):
        ids = formatter.encode(prompt.messages)
        if len(ids) + sampling.max_tokens > policy.context:
            raise ConfigError(
                f"prompt '{prompt.id}' has {len(ids)} tokens; with {sampling.max_tokens} more it exceeds "
                f"the model's context of {policy.context}",
                fix="lower --max-tokens, or shorten the prompt",
            )
        requests += [RolloutRequest(prompt.id, ids, i, request_seed(seed, "generate", at, i)) for i in range(n)]
    engine = NativeEngine(policy.model, policy.tokenizer, policy.context)
    return engine.generate(requests, sampling, 0)


def _row(prompt: Prompt, rollouts: Sequence[Rollout]) -> dict[str, Any]:
    completions = [
        {
            "text": r.text,
            "finish_reason": r.finish_reason.value,
            "tokens": len(r.completion_ids),
            "seed": r.seed,
            "logprob": float(r.logprobs_T.sum()),
        }
        for r in rollouts
    ]
    return {"id": prompt.id, "messages": [dict(m) for m in prompt.messages], "completions": completions}


def _print(row: dict[str, Any]) -> None:
    click.secho(row["messages"][-1]["content"], bold=True)
    for one in row["completions"]:
        cut = "  [cut at --max-tokens]" if one["finish_reason"] == "length" else ""
        click.echo(f"  {one['text']}{cut}")
