"""`rlhf generate`."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from rlhf_core.cli import complete, print_turn
from rlhf_core.data.files import FileRows, parse_json, read_parquet, read_text

if TYPE_CHECKING:
    from rlhf_core.data import Prompt
    from rlhf_core.models import Formatter
    from rlhf_core.rollouts import Rollout, SamplingParams


STDIN = "-"


class PromptRow(NamedTuple):
    prompt: Prompt
    row: Mapping[str, Any]
    """Every column, the prompt's own included; {} for a plain line."""


def read_prompts(texts: Sequence[str], files: Sequence[str], *, lines: bool = False) -> list[PromptRow]:
    """Prompts given as texts, then those of files (``-`` is stdin): JSON objects, one a line or in an array, with
    ``prompt`` or ``messages``, or else a prompt in each line that is not empty."""
    from rlhf_core.config import ConfigError
    from rlhf_core.data import Prompt

    if not texts and not files:
        raise ConfigError("there is no prompt", fix='--prompt "What is 2 + 3?", FILE, or - for stdin')
    if any(not t.strip() for t in texts):
        raise ConfigError("--prompt is empty", fix='--prompt "What is 2 + 3?"')
    if any("\ud800" <= letter <= "\udfff" for text in texts for letter in text):
        raise ConfigError("--prompt holds half of a character (a lone surrogate)", fix="give text in UTF-8")
    if list(files).count(STDIN) > 1:
        raise ConfigError("- is given twice", why="stdin can be read once", fix="leave one out")
    rows = [PromptRow(Prompt(f"prompt/{i}", ({"role": "user", "content": t},)), {}) for i, t in enumerate(texts)]
    for file in files:
        rows += _rows_of(file, lines)
    return rows


def _rows_of(file: str, lines: bool) -> list[PromptRow]:
    from rlhf_core.data import DatasetError, Prompt, check_file

    name, stem = ("stdin", "stdin") if file == STDIN else (file, Path(file).stem)
    if file != STDIN:
        check_file(file, "prompt file", "the file's name")
    if file.endswith(".parquet"):
        table = read_parquet(file)
    else:
        text = _stdin() if file == STDIN else read_text(file, "prompt file")
        plain = lines or file.endswith(".txt") or text.lstrip()[:1] not in ("{", "[")
        table = _lines(text, name) if plain else parse_json(text, name, "prompt file")
    reader, records = table.records(name)
    read: list[PromptRow] = []
    for record in records:
        prompt_id, answer = str(record.row.get("id", f"{stem}/{record.number}")), reader.answer(record, None)
        rest, _ = reader.rest(record)
        prompt = Prompt(prompt_id, reader.prompt(record), answer, meta=rest, tools=reader.tools(record))
        if not prompt.text.strip():
            raise DatasetError("a prompt is empty", where=record.where, fix="fill or remove that row")
        read.append(PromptRow(prompt, record.row))
    return read


def _lines(text: str, name: str) -> FileRows:
    from rlhf_core.data import DatasetError

    numbered = [(n, line.rstrip("\r")) for n, line in enumerate(text.split("\n"), 1) if line.strip()]
    if not numbered:
        raise DatasetError(f"there is no prompt in {name}", why="every line is empty", fix="write one prompt a line")
    return FileRows([{"prompt": line} for _, line in numbered], [f"line {n}" for n, _ in numbered])


def _stdin() -> str:
    from rlhf_core.data import DatasetError

    if sys.stdin.isatty():
        print("reading prompts, one a line; Ctrl-D ends them", file=sys.stderr)
    stream = getattr(sys.stdin, "buffer", None)
    try:
        return sys.stdin.read().removeprefix("\ufeff") if stream is None else stream.read().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DatasetError("stdin is not text", why=str(error), fix="it must be UTF-8") from error


PROMPT_COLUMNS = ("prompt", "messages", "question", "conversations", "instruction", "input", "system")
"""Columns that make a prompt; a completion's row has ``messages`` instead."""


@click.command()
@click.argument("files", nargs=-1, metavar="[FILE]...")
@click.option("--model", default="pocket", show_default=True, metavar="M", help="Hub id, folder, run or .gguf file.")
@click.option("--prompt", "texts", multiple=True, metavar="TEXT", help="A prompt. Repeatable.")
@click.option("--input", "inputs", multiple=True, metavar="FILE", help="As FILE. Repeatable.")
@click.option("--lines", is_flag=True, help="Every line of a file is a prompt, also one that looks like JSON.")
@click.option(
    "--env",
    "environment",
    metavar="NAME",
    shell_complete=complete.components("environment"),
    help="Play episodes in an environment, such as tools, and show them turn by turn.",
)
@click.option(
    "--set", "settings", multiple=True, metavar="a.b=c", help="environment.KEY, agent.KEY or model.KEY. Repeatable."
)
@click.option(
    "--max-tokens",
    type=click.IntRange(1),
    help="Most tokens to sample; of an episode with results. Default: 64, and 1024 with --env.",
)
@click.option("--min-tokens", type=click.IntRange(0), default=1, show_default=True, help="Fewest, end token included.")
@click.option("--temperature", type=click.FloatRange(0), default=1.0, show_default=True, help="0 is greedy.")
@click.option("--top-p", type=click.FloatRange(0, 1, min_open=True), default=1.0, show_default=True, help="1 is off.")
@click.option("--top-k", type=click.IntRange(0), default=0, show_default=True, help="0 is off.")
@click.option("--n", type=click.IntRange(1), default=1, show_default=True, help="Completions of each prompt.")
@click.option(
    "--seed", type=click.IntRange(0, 2**64 - 1), default=0, show_default=True, help="The same seed gives the same text."
)
@click.option(
    "--engine",
    default="native",
    show_default=True,
    metavar="E",
    help="Rollout engine, or the address of a vLLM server: http://127.0.0.1:8000.",
)
@click.option(
    "--engine-set",
    "engine_settings",
    multiple=True,
    metavar="a.b=c",
    help="One setting of it, such as python=/vllm-environment/bin/python. Repeatable.",
)
@click.option("--stop", multiple=True, metavar="TEXT", help="Text that ends a completion. Repeatable.")
@click.option(
    "--prompt-format",
    type=click.Choice(("auto", "chat", "raw")),
    help="Chat template, plain text, or the template if there is one. Default: as the model's run wrote prompts, or "
    "auto.",
)
@click.option("--tool-format", metavar="F", help="How the model writes calls. Default: as its run read them, or auto.")
@click.option(
    "--out",
    metavar="FILE",
    help="Write JSON lines, a row for each completion with the columns of its prompt; - is stdout.",
)
@click.option("--json", "as_json", is_flag=True, help="For machines: one array, a row for each prompt.")
def generate(
    files: tuple[str, ...],
    model: str,
    texts: tuple[str, ...],
    inputs: tuple[str, ...],
    lines: bool,
    environment: str | None,
    settings: tuple[str, ...],
    max_tokens: int | None,
    n: int,
    seed: int,
    engine: str,
    engine_settings: tuple[str, ...],
    prompt_format: Any,
    tool_format: str | None,
    out: str | None,
    as_json: bool,
    **sampling_options: Any,
) -> None:
    """Sample completions from a model.

    FILE has a prompt in each line, or JSON rows with prompt or messages; - is stdin. Empty lines are skipped.

    \b
    rlhf generate --prompt "What is 2 + 3?"
    rlhf generate prompts.jsonl --model runs/x --temperature 0 --out answers.jsonl
    cat questions.txt | rlhf generate - --n 4 --out - | head -1
    rlhf generate --env tools --model M --prompt "What is 17 * 23?"
    """
    from contextlib import ExitStack

    from rlhf_core.cli import check_output, emit_json, load_sampler, open_registry
    from rlhf_core.config import ConfigError, parse_settings
    from rlhf_core.models import Formatter
    from rlhf_core.rollouts import SamplingParams
    from rlhf_plugin_native.as_trained import model_as_trained
    from rlhf_plugin_native.stage import Stage

    sampling = SamplingParams(max_tokens=max_tokens or (1024 if environment else 64), **sampling_options)
    of_model = parse_settings(item.removeprefix("model.") for item in settings if item.startswith("model."))
    _check_no_option(of_model)
    settings = tuple(item for item in settings if not item.startswith("model."))
    if settings and environment is None:
        raise ConfigError(f"--set {settings[0]} would have no effect", why="there is no --env", fix="--env tools")
    _check_options(sampling, out, as_json)
    files = (*files, *inputs)
    check_output(None if out in (None, "-") else Path(str(out)), *files, option="--out")
    rows = read_prompts(texts, files, lines=lines)
    prompts = [row.prompt for row in rows]
    config = model_as_trained(model, "rlhf generate", prompt_format=prompt_format, tool_format=tool_format, **of_model)
    stage = None if environment is None else Stage.chosen(environment, settings)
    prompts = prompts if stage is None else stage.offer(prompts)
    registry = open_registry() if stage is None else stage.registry
    sampler = load_sampler(registry, config, engine, **parse_settings(engine_settings))
    formatter = Formatter(sampler.policy.tokenizer, config.prompt_format, config.tool_format)
    rows = [row._replace(prompt=prompt) for row, prompt in zip(rows, prompts, strict=True)]
    with ExitStack() as stack:
        stack.callback(getattr(sampler.engine, "close", lambda: None))
        agent = None if stage is None else stack.enter_context(stage.player(config, sampler.policy, seed))
        rollouts = sampler.sample(prompts, sampling, n, seed, formatter, agent)
    groups = [rollouts[i * n : i * n + n] for i in range(len(prompts))]
    if out is not None:
        _write(out, [line for row, group in zip(rows, groups) for line in _flat_rows(row, group, formatter)])
        return
    shown = [_row(prompt, group, formatter) for prompt, group in zip(prompts, groups)]
    if as_json:
        emit_json(shown)
        return
    for row in shown:
        _print(row)


def _check_no_option(of_model: Mapping[str, Any]) -> None:
    from rlhf_core.config import ConfigError

    for key, option in {"path": "--model", "prompt_format": "--prompt-format", "tool_format": "--tool-format"}.items():
        if key in of_model:
            raise ConfigError(f"model.{key} is given by {option}", fix=f"{option} {of_model[key]}")


def _check_options(sampling: SamplingParams, out: str | None, as_json: bool) -> None:
    from rlhf_core.config import ConfigError

    if sampling.min_tokens > sampling.max_tokens:
        above = f"--min-tokens {sampling.min_tokens} is above --max-tokens {sampling.max_tokens}"
        raise ConfigError(above, fix="lower it")
    if out is not None and as_json:
        raise ConfigError("--out and --json are both given", fix="leave one out; --out - writes JSON lines to stdout")


def _flat_rows(prompt_row: PromptRow, rollouts: Sequence[Rollout], formatter: Formatter) -> list[dict[str, Any]]:
    """A row for each completion, which `rlhf reward score --input` reads."""
    row = _row(prompt_row.prompt, rollouts, formatter)
    columns = {k: v for k, v in prompt_row.row.items() if k not in PROMPT_COLUMNS}
    shared = {
        **columns,
        "id": row["id"],
        "messages": row["messages"],
        **({"tools": row["tools"]} if "tools" in row else {}),
    }
    return [{**shared, "completion": one.pop("text"), **one} for one in row["completions"]]


def _write(out: str, rows: Sequence[dict[str, Any]]) -> None:
    import json

    from rlhf_core.data import write_text

    text = "".join(json.dumps(row, ensure_ascii=False, default=str) + "\n" for row in rows)
    if out == "-":
        click.echo(text, nl=False)
        return
    write_text(Path(out), text)
    click.echo(f"{len(rows)} completions: {out}", err=True)


def _row(prompt: Prompt, rollouts: Sequence[Rollout], formatter: Formatter) -> dict[str, Any]:
    from rlhf_core.data.conversations import openai_row

    completions = [
        {
            "text": r.text,
            "finish_reason": r.finish_reason.value,
            "tokens": len(r.completion_ids),
            "seed": r.seed,
            "logprob": float(r.logprobs_T.sum()),
            **(_episode(r) if r.turns else _calls(r, prompt, formatter)),
            **({"audio": r.media[0].path} if r.media else {}),
        }
        for r in rollouts
    ]
    return {"id": prompt.id, **openai_row(prompt.messages, prompt.tools), "completions": completions}


def _episode(rollout: Rollout) -> dict[str, Any]:
    """The turns of an episode, why it ended, and its environment's score."""
    from rlhf_core.training.trace import turn_row

    score = rollout.score
    scored = {} if score is None else {"score": score.value, "status": score.status.value, "detail": score.detail}
    return {"turns": [turn_row(turn) for turn in rollout.turns], "ended": rollout.info.get("ended", ""), **scored}


def _calls(rollout: Rollout, prompt: Prompt, formatter: Formatter) -> dict[str, Any]:
    """What a completion calls, as its tokens say it, those that cannot run with what is wrong; {} without tools."""
    from rlhf_core.rollouts import FinishReason

    if not prompt.tools:
        return {}
    cut = rollout.finish_reason is FinishReason.LENGTH
    turn = formatter.parse(rollout.completion_ids, prompt.tools, cut=cut)
    rows = [{**call.as_json()["function"], **({"error": call.error} if call.error else {})} for call in turn.calls]
    return {"content": turn.content, "calls": rows}


def call_line(name: str, arguments: Mapping[str, Any], error: str = "") -> str:
    """A call for people. Example: ``call add {"a": 2}``"""
    import json

    said = f"call {name or '?'} {json.dumps(arguments, ensure_ascii=False)}"
    return f"{said}  [cannot run: {error}]" if error else said


def _print(row: dict[str, Any]) -> None:
    click.secho(row["messages"][-1]["content"] or "", bold=True)
    for one in row["completions"]:
        if "turns" in one:
            _print_episode(one)
            continue
        cut = "  [cut at --max-tokens]" if one["finish_reason"] == "length" else ""
        calls = one.get("calls", [])
        click.echo(f"  {one['content'] if calls else one.get('audio', one['text'])}{cut}")
        for call in calls:
            click.echo(f"  {call_line(call['name'], call['arguments'], call.get('error', ''))}")


def _print_episode(one: Mapping[str, Any]) -> None:
    """Turn by turn; what the policy only read is greyed."""
    for turn in one["turns"]:
        print_turn(turn, "  ")
    facts = [f"ended by {one['ended']}", f"{one['tokens']} tokens"]
    if "score" in one:
        facts.append(f"score {one['score']:.4g}" if one["score"] is not None else f"no score: {one['status']}")
    click.secho(f"  {', '.join(facts)}{'  ' + one['detail'] if one.get('detail') else ''}", italic=True)
