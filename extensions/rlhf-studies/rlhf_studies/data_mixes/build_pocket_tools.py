"""Rebuild the model `pocket-tools` and its tokenizer from generated conversations without held-out people."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from tokenizers import AddedToken, Regex, Tokenizer, models, pre_tokenizers
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from rlhf_core.models import use_matmul_backend
from rlhf_plugin_episodes.lookup import weights_path
from rlhf_plugin_episodes.lookup.questions import CALLS, TOOLS, conversation, draw_question
from rlhf_plugin_episodes.lookup.world import World, draw_facts, names_of
from rlhf_plugin_pocket.build import arguments, fast, fresh_llama, padded, save, train, trained_bpe, write_record
from rlhf_studies.data_mixes.beginner import beginner

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
HIDDEN, TOKENS = 96, 2048
"""Width of the model, and positions of a batch."""


def stories(rng: random.Random, *, habits: bool, lengths: Sequence[int] = CALLS) -> Iterator[list[dict[str, Any]]]:
    while True:
        people = tuple(rng.sample(names_of("train"), 12))
        facts = {key: value for name in people for key, value in draw_facts(name, people, rng).items()}
        world = World(people, facts)
        question = draw_question(world, rng.choice(lengths), rng)
        if habits:
            calls, answer = beginner(question, world, rng)
        else:
            calls, answer = list(question.plan), question.answer
        yield conversation(question.text, calls, f"The answer is {answer}.")


def build_tokenizer(seed: int) -> PreTrainedTokenizerFast:
    """Byte-level BPE with single digits, trained on the generator's own text; Qwen's marks."""
    rng = random.Random(f"tools/tokenizer/{seed}")
    rows = stories(rng, habits=True)
    blank = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE()))
    blank.chat_template = TEMPLATE
    marks = re.compile("|".join(map(re.escape, [*SPECIAL, *ADDED])))
    corpus = [part for _ in range(6000) for part in marks.split(rendered(blank, next(rows)))]
    corpus += [f" {name}" for name in names_of("train") for _ in range(3)]
    split = [
        pre_tokenizers.Split(Regex(PIECES), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ]
    raw = trained_bpe(corpus, split, SPECIAL, 768)
    raw.add_tokens([AddedToken(name, normalized=False) for name in ADDED])
    ends = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
    return fast(raw, TEMPLATE, 1024, **ends, additional_special_tokens=["<|im_start|>"])


def rendered(tokenizer: PreTrainedTokenizerFast, turns: list[dict[str, Any]], *, generation: bool = False) -> str:
    options: dict[str, Any] = {"tools": [dict(tool) for tool in TOOLS], "tokenize": False}
    return str(tokenizer.apply_chat_template(turns, add_generation_prompt=generation, **options))


def build_model(tokenizer: PreTrainedTokenizerFast, seed: int) -> LlamaForCausalLM:
    """About half a million parameters."""
    # At 0.02, the usual range, which suits large models, copying is not learned for 1,500 steps.
    more = {"bos_token_id": None, "initializer_range": HIDDEN**-0.5}
    return fresh_llama(tokenizer, seed, HIDDEN, HIDDEN * 8 // 3 // 16 * 16, 4, 1024, **more)


def learned(ids: list[int], opening: list[int], end: int) -> list[bool]:
    """Of each token, whether the assistant writes it."""
    marks, inside = [False] * len(ids), False
    for position, token in enumerate(ids):
        marks[position] = inside
        if inside and token == end:
            inside = False
        if ids[position - len(opening) + 1 : position + 1] == opening:
            inside = True
    return marks


def batches(
    tokenizer: PreTrainedTokenizerFast, source: Iterator[list[dict[str, Any]]], tokens: int
) -> Iterator[dict[str, torch.Tensor]]:
    """Batches of similar lengths, about ``tokens`` positions each, without end; what is only read is not learned."""
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
        yield from (padded([(row, learned(row, opening, end)) for row in chunk], pad) for chunk in chunks)


def lessons(tokenizer: PreTrainedTokenizerFast, steps: int, seed: int) -> Iterator[dict[str, torch.Tensor]]:
    rng = random.Random(f"tools/train/{seed}")
    every = [stories(rng, habits=False, lengths=lengths) for lengths in LESSONS] + [stories(rng, habits=True)]
    sources = [batches(tokenizer, lesson, TOKENS) for lesson in every]
    ends = [round(steps * share) for share in ENDS]
    for step in range(steps):
        yield next(sources[sum(step >= end for end in ends)])


def main() -> None:
    args = arguments(__doc__, weights_path(), 2000)
    use_matmul_backend("auto")
    started = time.time()
    tokenizer = build_tokenizer(args.seed)
    model = build_model(tokenizer, args.seed)
    train(model, lessons(tokenizer, args.steps, args.seed), args.steps, warm_up=50)
    save(model, tokenizer, args.out)
    facts = {"steps": args.steps, "tokens": TOKENS, "seed": args.seed, "seconds": round(time.time() - started)}
    write_record(args.out, model, tokenizer, **facts)


if __name__ == "__main__":
    main()
