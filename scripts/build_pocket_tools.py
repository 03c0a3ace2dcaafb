"""Rebuild the shipped model `pocket-tools` and its tokenizer from the generator; `BUILD.json` says how long it took.

    python -m scripts.build_pocket_tools [--out FOLDER] [--steps N] [--seed N]
    python -m scripts.build_pocket_tools --evaluate [--out FOLDER]      only measures the model of FOLDER

Llama with room for 1024 tokens. It reads and writes conversations about people of generated worlds, first by the plan,
then with a beginner's habits: it knows both tools, yet often leaves out a step, computes in its head, or guesses. Every
document has facts of its own, and nobody of the held-out split occurs. At the end the saved files play the
environment `lookup`: 200 held-out questions of each number of calls, one episode each at temperature 1. Prints and
records what came out.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import re
import time
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from rlhf_core.cli.components import context_of, open_registry
from rlhf_core.cli.episodes import Stage
from rlhf_core.models.config import ModelConfig
from rlhf_core.models.layers.matmul import use_matmul_backend
from rlhf_core.models.load import load_policy
from rlhf_core.runs import wilson
from rlhf_core.types.rollouts import SamplingParams
from rlhf_plugin_episodes.lookup import weights_path
from rlhf_plugin_episodes.lookup.config import LookupConfig
from rlhf_plugin_episodes.lookup.demonstrations import TOOLS, conversation
from rlhf_plugin_episodes.lookup.questions import CALLS, OPERATIONS, Call, Question, Term, compute, draw_question, find
from rlhf_plugin_episodes.lookup.world import NUMBERS, World, draw_facts, names_of

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
ADDED = ["<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<tools>", "</tools>"]
TEMPLATE = (
    "{%- set first = messages[0]['content'] if messages[0]['role'] == 'system' else '' %}"
    "{% if tools or first %}{{ '<|im_start|>system\n' ~ first }}"
    "{% if tools %}{{ '\n' if first else '' }}{{ '<tools>' }}{% for tool in tools %}{% set f = tool['function'] %}"
    "{{ '\n' ~ f['name'] ~ '(' }}{% for key, value in ((f['parameters'] or {})['properties'] or {}).items() %}"
    "{{ '' if loop.first else ', ' }}{{ key ~ ': ' ~ (value['type'] or 'any') }}{% endfor %}"
    "{{ ') ' ~ (f['description'] or '') }}{% endfor %}{{ '\n</tools>' }}{% endif %}{{ '<|im_end|>\n' }}{% endif %}"
    "{% for m in messages %}{% if m['role'] == 'tool' %}"
    "{% if loop.first or loop.previtem['role'] != 'tool' %}{{ '<|im_start|>user' }}{% endif %}"
    "{{ '\n<tool_response>\n' ~ m['content'] ~ '\n</tool_response>' }}"
    "{% if loop.last or loop.nextitem['role'] != 'tool' %}{{ '<|im_end|>\n' }}{% endif %}"
    "{% elif m['role'] != 'system' or not loop.first %}{{ '<|im_start|>' ~ m['role'] ~ '\n' ~ m['content'] }}"
    "{% for call in m['tool_calls'] or [] %}{{ '\n' if m['content'] or not loop.first else '' }}"
    "{{ '<tool_call>\n{\"name\": ' ~ (call['function']['name'] | tojson) ~ ', \"arguments\": ' "
    "~ (call['function']['arguments'] | tojson) ~ '}\n</tool_call>' }}{% endfor %}"
    "{{ '<|im_end|>\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
"""The form of Hermes and Qwen 2.5 with a shorter list of tools."""
PIECES = r'\n?\{"name": "\w+", "arguments": \{"\w+": "|"\}\}\n?|\d| ?[A-Za-z]+| ?[^A-Za-z\d\s]+|\s'
"""What the tokenizer never merges across; the frame of a call with one text may become one token."""
LESSONS = ((1,), (1, 2), (1, 2, 3, 4), CALLS)
"""Lengths of the plans that are learned one after the other; copying is learned from the shortest."""
ENDS = (0.15, 0.3, 0.5, 0.7)
"""Shares of the steps at which they end; then come the habits."""
LEFT_OUT = {0: 0.0, 1: 0.15, 2: 0.55}
"""Relations of a term -> how often one of them is left out."""
IN_THE_HEAD, RIGHT_IN_THE_HEAD, WRONG_SIGN, GUESSED, OTHER_ATTRIBUTE, MISSPELT = 0.15, 0.3, 0.03, 0.02, 0.03, 0.02


def small_world(rng: random.Random) -> World:
    """A few people with facts of their own."""
    people = tuple(rng.sample(names_of("train"), 12))
    return World(people, {key: value for name in people for key, value in draw_facts(name, people, rng).items()})


def stories(rng: random.Random, *, habits: bool, lengths: Sequence[int] = CALLS) -> Iterator[list[dict[str, Any]]]:
    """Conversations without end, by the plan or with a beginner's habits, whose plans have so many calls."""
    while True:
        world = small_world(rng)
        question = draw_question(world, rng.choice(lengths), rng)
        if habits:
            calls, answer = beginner(question, world, rng)
        else:
            calls, answer = list(question.plan), question.answer
        yield conversation(question.text, calls, f"The answer is {answer}.")


def beginner(question: Question, world: World, rng: random.Random) -> tuple[list[Call], str]:
    """Calls and answer of somebody who knows the tools but not the patience."""
    calls, value = searched(question.left, world, rng)
    if question.operation:
        right = question.right
        more, other = ([], right) if isinstance(right, str) else searched(right, world, rng) if right else ([], "0")
        calls += more
        sign = rng.choice(list(OPERATIONS)) if rng.random() < WRONG_SIGN else question.operation
        computed = compute(value, sign, other)
        value = computed.result
        if rng.random() >= IN_THE_HEAD:
            calls.append(computed)
        elif rng.random() >= RIGHT_IN_THE_HEAD:
            value = str(int(value) + rng.choice((-10, -3, -2, -1, 1, 2, 3, 10)))
    for place in range(len(calls)):
        if rng.random() < GUESSED:
            return calls[:place], str(rng.randint(2, 99))
    return calls, value


def searched(term: Term, world: World, rng: random.Random) -> tuple[list[Call], str]:
    """Searches for a term, perhaps one too few, for another attribute, or misspelt first."""
    relations = list(term.relations)
    if rng.random() < LEFT_OUT[len(relations)]:
        del relations[rng.randrange(len(relations))]
    calls, value = Term(term.person, tuple(relations), term.attribute).walk(world)
    *before, last = calls
    person = last.argument.partition(" of ")[2]
    draw = rng.random()
    if draw < OTHER_ATTRIBUTE:
        wrong = rng.choice(NUMBERS)
        detour = [find(world, wrong, person)]
        return (
            ([*before, *detour, last], value)
            if rng.random() < 0.5
            else ([*before, *detour], world.facts[wrong, person])
        )
    if draw < OTHER_ATTRIBUTE + MISSPELT:
        first, _, family = person.partition(" ")
        return [*before, Call("search", f"{term.attribute} of {family} {first}", "Nothing found."), last], value
    return list(calls), value


def build_tokenizer(seed: int) -> PreTrainedTokenizerFast:
    """Byte-level BPE with single digits, trained on the generator's own text; Qwen's marks."""
    rng = random.Random(f"tools/tokenizer/{seed}")
    rows = stories(rng, habits=True)
    blank = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE()))
    blank.chat_template = TEMPLATE
    marks = re.compile("|".join(map(re.escape, [*SPECIAL, *ADDED])))
    corpus = [part for _ in range(6000) for part in marks.split(rendered(blank, next(rows)))]
    corpus += [f" {name}" for name in names_of("train") for _ in range(3)]
    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PIECES), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    raw.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=768,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    raw.train_from_iterator(corpus, trainer)
    raw.add_tokens([AddedToken(name, normalized=False) for name in ADDED])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=raw,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=["<|im_start|>"],
        clean_up_tokenization_spaces=False,
        model_max_length=1024,
    )
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def rendered(tokenizer: PreTrainedTokenizerFast, turns: list[dict[str, Any]], *, generation: bool = False) -> str:
    """A conversation with both tools, as the template writes it."""
    options: dict[str, Any] = {"tools": [dict(tool) for tool in TOOLS], "tokenize": False}
    return str(tokenizer.apply_chat_template(turns, add_generation_prompt=generation, **options))


def build_model(tokenizer: PreTrainedTokenizerFast, seed: int, hidden: int, layers: int) -> LlamaForCausalLM:
    """A fresh Llama of about half a million parameters."""
    torch.manual_seed(seed)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=hidden,
            intermediate_size=hidden * 8 // 3 // 16 * 16,
            num_hidden_layers=layers,
            num_attention_heads=4,
            num_key_value_heads=4,
            max_position_embeddings=1024,
            tie_word_embeddings=True,
            initializer_range=hidden**-0.5,  # at 0.02, which suits large models, copying is not learned for 1,500 steps
            bos_token_id=None,
            eos_token_id=tokenizer.vocab[str(tokenizer.eos_token)],
            pad_token_id=tokenizer.vocab[str(tokenizer.pad_token)],
        )
    )


def learned(ids: list[int], opening: list[int], end: int) -> list[bool]:
    """Of each token, whether the assistant writes it."""
    marks, inside = [False] * len(ids), False
    for place, token in enumerate(ids):
        marks[place] = inside
        if inside and token == end:
            inside = False
        if ids[place - len(opening) + 1 : place + 1] == opening:
            inside = True
    return marks


def batches(
    tokenizer: PreTrainedTokenizerFast, source: Iterator[list[dict[str, Any]]], tokens: int
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """(ids, labels) of similar lengths, about ``tokens`` positions each, without end; what is only read is -100."""
    opening = tokenizer.encode("<|im_start|>assistant\n", add_special_tokens=False)
    end: Any = tokenizer.eos_token_id
    pad: Any = tokenizer.pad_token_id
    while True:
        texts = [rendered(tokenizer, next(source)) for _ in range(256)]
        rows = sorted(tokenizer(texts, add_special_tokens=False)["input_ids"], key=len)  # type: ignore[arg-type]
        chunks: list[list[list[int]]] = [[]]
        for row in rows:
            if (len(chunks[-1]) + 1) * len(row) > tokens:
                chunks.append([])
            chunks[-1].append(row)
        random.Random(len(rows[0])).shuffle(chunks)
        for chunk in chunks:
            width = max(map(len, chunk))
            ids, labels = torch.full((len(chunk), width), pad), torch.full((len(chunk), width), -100)
            for i, row in enumerate(chunk):
                ids[i, : len(row)] = torch.tensor(row)
                marks = learned(row, opening, end)
                labels[i, : len(row)] = torch.tensor([t if mark else -100 for t, mark in zip(row, marks)])
            yield ids, labels


def train(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, args: argparse.Namespace) -> None:
    """AdamW, warm-up, cosine to a twentieth; by ever longer plans, then with a beginner's habits."""
    rng = random.Random(f"tools/train/{args.seed}")
    lessons = [stories(rng, habits=False, lengths=lengths) for lengths in LESSONS] + [stories(rng, habits=True)]
    ends = [round(args.steps * share) for share in args.ends]
    sources = [batches(tokenizer, lesson, args.tokens) for lesson in lessons]
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.rate, betas=(0.9, 0.98), weight_decay=0.01)
    started = time.time()
    for step in range(args.steps):
        scale = min(1.0, (step + 1) / 50) * (0.05 + 0.475 * (1 + math.cos(math.pi * step / args.steps)))
        for group in optimizer.param_groups:
            group["lr"] = args.rate * scale
        ids, labels = next(sources[sum(step >= end for end in ends)])
        loss = model(input_ids=ids, labels=labels).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % 50 == 0:
            print(f"step {step:5d}  loss {loss.item():.3f}  {time.time() - started:.0f} s", flush=True)
        if step % 200 == 199:
            write(model, tokenizer, args.out)


def write(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Model and tokenizer in Hugging Face form."""
    ends: dict[str, Any] = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    model.generation_config.update(**ends)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def held_out_success(folder: Path, questions: int = 200, calls: Sequence[int] = CALLS) -> dict[str, Any]:
    """Share of held-out questions that the model of a folder answers rightly, all and by the number of calls.

    One episode for each question at temperature 1, with the agent's settings of ``rlhf train --env lookup`` and seed 0.

    Raises:
        RuntimeError: an episode has no score.
    """
    model = ModelConfig(path=str(folder))
    policy = load_policy(model)
    agent, trainer = LookupConfig.companions["agent"], LookupConfig.companions["trainer"]
    stage = Stage.chosen("lookup", [f"agent.{key}={value}" for key, value in agent.items()])
    sampling = SamplingParams(**trainer["sampling"], temperature=1.0)
    rates: dict[str, float] = {}
    for number in calls:
        data = {"name": "lookup", "calls": [number], "prompts": 5 * questions}  # a fifth is held out
        prompts = stage.offer(context_of(open_registry(), dataset=data).datasets.prompts("heldout"))
        scores = [rollout.score for rollout in stage.play(policy, model, prompts, sampling, n=1, seed=0)]
        values = [float(score.value or 0.0) for score in scores if score is not None and score.ok]
        if len(values) != len(scores):
            raise RuntimeError(f"{len(scores) - len(values)} of {len(scores)} episodes have no score")
        rates[str(number)] = sum(values) / len(values)
        print(f"held-out questions of {number} calls: {rates[str(number)]:.3f} right", flush=True)
    every = sum(rates.values()) / len(rates)
    interval = wilson(every, questions * len(rates))
    print(f"all: {every:.3f} right ({interval[0]:.3f} to {interval[1]:.3f})", flush=True)
    return {"questions_per_number": questions, "all": every, "interval": interval, "by_calls": rates}


def record_success(folder: Path, questions: int) -> None:
    """Measure the model of a folder, and write that into its ``BUILD.json``."""
    file = folder / "BUILD.json"
    record = json.loads(file.read_text()) if file.is_file() else {}
    record["held_out_success"] = held_out_success(folder, questions)
    file.write_text(json.dumps(record, indent=2) + "\n")


def main() -> None:
    """Build, save, record."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--out", type=Path, default=weights_path())
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--tokens", type=int, default=2048, help="per step")
    parser.add_argument("--rate", type=float, default=3e-3)
    parser.add_argument("--hidden", type=int, default=96)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--ends", type=float, nargs=4, default=ENDS, help="shares of the steps at which lessons end")
    parser.add_argument("--start", type=Path, help="go on with the model of an earlier build")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--evaluate", action="store_true", help="build nothing, measure the model of --out")
    parser.add_argument("--questions", type=int, default=200, help="held out, of each number of calls")
    args = parser.parse_args()
    use_matmul_backend("auto")
    if args.evaluate:
        record_success(args.out, args.questions)
        return
    started = time.time()
    if args.start:
        tokenizer = PreTrainedTokenizerFast.from_pretrained(args.start)
        model = LlamaForCausalLM.from_pretrained(args.start)
    else:
        tokenizer = build_tokenizer(args.seed)
        model = build_model(tokenizer, args.seed, args.hidden, args.layers)
    train(model, tokenizer, args)
    write(model, tokenizer, args.out)
    record = {
        "parameters": model.num_parameters(),
        "vocabulary": len(tokenizer),
        "seconds": round(time.time() - started),
        **{key: getattr(args, key) for key in ("steps", "tokens", "rate", "hidden", "layers", "ends", "seed")},
        "versions": {n: metadata.version(n) for n in ("torch", "transformers", "tokenizers")},
    }
    earlier = args.start and args.start / "BUILD.json"
    if earlier:
        record["before"] = json.loads(earlier.read_text()) if earlier.is_file() else "a build that was stopped"
    (args.out / "BUILD.json").write_text(json.dumps(record, indent=2) + "\n")
    print(json.dumps(record, indent=2))
    record_success(args.out, args.questions)


if __name__ == "__main__":
    main()
