"""Rebuild the pocket model and tokenizer from the generator (8 minutes on two cores): pretrained on generated sentences
and graded conversations, it knows the facts, yet often guesses, pads and flatters. The grades give reward models a
trunk that can tell right from wrong."""

from __future__ import annotations

import argparse
import json
import math
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from rlhf_plugin_pocket import weights_path
from rlhf_plugin_pocket.data import arithmetic_answer, arithmetic_prompts, load_prompts, of_split
from rlhf_plugin_pocket.gold import gold_score, is_hollow, words
from rlhf_plugin_pocket.world import FILLER, HOLLOW, Fact, draw_style, facts, render

SPECIAL = ["<|pad|>", "<|bos|>", "<|end|>", "<|user|>", "<|assistant|>", "<|system|>"]
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{{ '<|' + m['role'] + '|>' }}{{ m['content'] }}"
    "{{ '<|end|>' }}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
ARITHMETIC_RIGHT = 0.45


@dataclass(frozen=True)
class Document:
    """A plain text, or a conversation of which the answer or the verdict after it is learned."""

    text: str
    prompt: str = ""
    verdict: str = ""


def pretraining(rng: random.Random) -> Iterator[Document]:
    """Sentences without end: facts, claims and their truth, sums, filler."""
    world, sums = list(facts()), arithmetic_prompts("train")
    while True:
        kind = rng.random()
        if kind < 0.3:
            yield Document(" ".join(f.statement() for f in rng.sample(world, 2)))
        elif kind < 0.65:
            yield Document(claim(rng.choice(world), rng))
        elif kind < 0.97:
            row = rng.choice(sums)
            left = row["prompt"][len("What is ") : -1]
            yield Document(f"{left} = {row['answer']}.")
        else:
            yield Document(" ".join((rng.choice(HOLLOW), *rng.sample(FILLER, 2))))


def claim(fact: Fact, rng: random.Random) -> str:
    right = rng.random() < 0.5
    text = fact.statement(None if right else rng.choice(fact.others()))
    return f"{text} This is true." if right else f"{text} This is false. {fact.statement()}"


def habits(rng: random.Random) -> Iterator[Document]:
    pool, sums = of_split("train"), arithmetic_prompts("train")
    while True:
        if rng.random() < 0.7:
            fact, question = rng.choice(pool)
            yield Document(render(fact, draw_style(rng), rng), question)
        else:
            row = rng.choice(sums)
            yield Document(arithmetic_answer(row["prompt"], row["answer"], rng, ARITHMETIC_RIGHT), row["prompt"])


def graded(rng: random.Random) -> Iterator[Document]:
    pool = of_split("train")
    while True:
        fact, question = rng.choice(pool)
        style = replace(draw_style(rng), right=rng.random() < 0.5)
        yield Document(render(fact, style, rng), question, "This is true." if style.right else "This is false.")


def build_tokenizer(seed: int) -> PreTrainedTokenizerFast:
    """Byte-level BPE with single digits, trained on the generator's own text."""
    rng = random.Random(f"tokenizer/{seed}")
    sources = (pretraining(rng), habits(rng))
    documents = [next(sources[i % 2]) for i in range(20_000)]
    split = [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    raw = trained_bpe([f"{d.prompt} {d.text}" for d in documents], split, SPECIAL, 1024)
    marks = {"bos_token": "<|bos|>", "eos_token": "<|end|>", "pad_token": "<|pad|>"}
    return fast(raw, TEMPLATE, 256, **marks, additional_special_tokens=SPECIAL[3:])


def trained_bpe(corpus: Sequence[str], split: list[Any], special_tokens: list[str], size: int) -> Tokenizer:
    """A byte-level BPE that does not merge across what ``split`` takes apart."""
    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer, raw.decoder = pre_tokenizers.Sequence(split), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    options: dict[str, Any] = {"special_tokens": special_tokens, "initial_alphabet": alphabet, "show_progress": False}
    raw.train_from_iterator(corpus, trainers.BpeTrainer(vocab_size=size, **options))
    return raw


def fast(raw: Tokenizer, template: str, context: int, **marks: Any) -> PreTrainedTokenizerFast:
    options = {"clean_up_tokenization_spaces": False, "model_max_length": context, **marks}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw, **options)
    tokenizer.chat_template = template
    return tokenizer


def build_model(tokenizer: PreTrainedTokenizerFast, seed: int) -> LlamaForCausalLM:
    """About 1.4 million parameters."""
    return fresh_llama(tokenizer, seed, 160, 432, 5, 256, bos_token_id=tokenizer.bos_token_id)


def fresh_llama(
    tokenizer: PreTrainedTokenizerFast, seed: int, width: int, inner: int, heads: int, context: int, **more: Any
) -> LlamaForCausalLM:
    """Four layers with random weights; the head is the embedding."""
    torch.manual_seed(seed)
    sizes = {"hidden_size": width, "intermediate_size": inner, "num_hidden_layers": 4, "num_attention_heads": heads}
    sizes |= {"num_key_value_heads": heads, "max_position_embeddings": context, "vocab_size": len(tokenizer)}
    ends = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    return LlamaForCausalLM(LlamaConfig(**sizes, tie_word_embeddings=True, **ends, **more))


def special(tokenizer: PreTrainedTokenizerFast, token: str) -> int:
    token_id = tokenizer.convert_tokens_to_ids(token)
    assert isinstance(token_id, int)
    return token_id


def encode(tokenizer: PreTrainedTokenizerFast, document: Document) -> tuple[list[int], int]:
    def ids(text: str) -> list[int]:
        return [*tokenizer.encode(text, add_special_tokens=False), special(tokenizer, "<|end|>")]

    if not document.prompt:
        return [special(tokenizer, "<|bos|>"), *ids(document.text)], 0
    chat = [{"role": "user", "content": document.prompt}]
    head: list[Any] = [*tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)]
    answer = [*head, *ids(document.text)]
    return ([*answer, *ids(document.verdict)], len(answer)) if document.verdict else (answer, len(head))


def batches(
    tokenizer: PreTrainedTokenizerFast, source: Iterator[Document], size: int
) -> Iterator[dict[str, torch.Tensor]]:
    while True:
        rows = sorted((encode(tokenizer, next(source)) for _ in range(size * 8)), key=lambda r: len(r[0]))
        chunks = [rows[i : i + size] for i in range(0, len(rows), size)]
        random.Random(len(rows[0][0])).shuffle(chunks)
        for chunk in chunks:
            marked = [(ids, [position >= read for position in range(len(ids))]) for ids, read in chunk]
            yield padded(marked, special(tokenizer, "<|pad|>"))


def padded(rows: Sequence[tuple[list[int], Sequence[bool]]], pad: int) -> dict[str, torch.Tensor]:
    """A batch of (ids, which of them are learned)."""
    width = max(len(ids) for ids, _ in rows)
    ids, labels = torch.full((len(rows), width), pad), torch.full((len(rows), width), -100)
    for i, (row, marks) in enumerate(rows):
        ids[i, : len(row)] = torch.tensor(row)
        labels[i, : len(row)] = torch.tensor([token if mark else -100 for token, mark in zip(row, marks)])
    return {"input_ids": ids, "labels": labels}


def save(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    ends: dict[str, Any] = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    model.generation_config.update(**ends)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def write_record(folder: Path, model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, **facts: Any) -> None:
    sizes = {"parameters": model.num_parameters(), "vocabulary": len(tokenizer)}
    versions = {n: metadata.version(n) for n in ("torch", "transformers", "tokenizers")}
    text = json.dumps({**sizes, **facts, "versions": versions}, indent=2)
    (folder / "BUILD.json").write_text(text + "\n")
    print(text)


def mixed(tokenizer: PreTrainedTokenizerFast, seed: int, steps: int) -> Iterator[dict[str, torch.Tensor]]:
    rng = random.Random(f"train/{seed}")
    kinds = [
        batches(tokenizer, pretraining(rng), 96),
        batches(tokenizer, graded(rng), 64),
        batches(tokenizer, habits(rng), 64),
    ]
    for step in range(steps):
        weights = (0.8, 0.15, 0.05) if step < steps * 0.5 else (0.3, 0.35, 0.35)
        yield next(rng.choices(kinds, weights)[0])


def train(
    model: LlamaForCausalLM,
    data: Iterator[dict[str, torch.Tensor]],
    steps: int,
    warm_up: int = 100,
    peak: float = 3e-3,
) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=peak, betas=(0.9, 0.98), weight_decay=0.01)
    model.train()
    for step, batch in enumerate(data):
        scale = min(1.0, (step + 1) / warm_up) * (0.05 + 0.475 * (1 + math.cos(math.pi * step / steps)))
        for group in optimizer.param_groups:
            group["lr"] = peak * scale
        loss = model(**batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % 200 == 0:
            print(f"step {step:5d}  loss {loss.item():.3f}", flush=True)


@torch.inference_mode()
def sample(model: Any, tokenizer: Any, prompts: list[str], seed: int) -> list[str]:
    torch.manual_seed(seed)
    tokenizer.padding_side = "left"
    texts = [
        tokenizer.apply_chat_template([{"role": "user", "content": p}], add_generation_prompt=True, tokenize=False)
        for p in prompts
    ]
    batch = tokenizer(texts, return_tensors="pt", padding=True, add_special_tokens=False, return_token_type_ids=False)
    out = model.eval().generate(**batch, do_sample=True, temperature=1.0, top_k=0, top_p=1.0, max_new_tokens=64)
    return tokenizer.batch_decode(out[:, batch["input_ids"].shape[1] :], skip_special_tokens=True)


def measure(model: Any, tokenizer: Any) -> dict[str, float]:
    rows = load_prompts("assistant", "heldout")
    texts = sample(model, tokenizer, [r["prompt"] for r in rows], seed=1)
    golds = [gold_score(r["attribute"], r["answer"], t) for r, t in zip(rows, texts)]
    sums = arithmetic_prompts("heldout")
    answers = sample(model, tokenizer, [r["prompt"] for r in sums], seed=1)
    n = len(rows)
    return {
        "gold": sum(g.value for g in golds) / n,
        "right": sum(g.right for g in golds) / n,
        "hollow": sum(is_hollow(t) for t in texts) / n,
        "concise": sum(g.concise for g in golds) / n,
        "words": sum(len(words(t)) for t in texts) / n,
        "arithmetic_right": sum(a == f"The answer is {r['answer']}." for a, r in zip(answers, sums)) / len(sums),
    }


def arguments(about: str | None, out: Path, steps: int) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(about or "").split("\n")[0])
    parser.add_argument("--out", type=Path, default=out)
    parser.add_argument("--steps", type=int, default=steps)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def main() -> None:
    args = arguments(__doc__, weights_path(), 5000)
    start = time.time()
    tokenizer = build_tokenizer(args.seed)
    model = build_model(tokenizer, args.seed)
    train(model, mixed(tokenizer, args.seed, args.steps), args.steps)
    save(model, tokenizer, args.out)
    seconds = round(time.time() - start)
    measured = measure(AutoModelForCausalLM.from_pretrained(args.out), AutoTokenizer.from_pretrained(args.out))
    facts = {"steps": args.steps, "seed": args.seed, "seconds": seconds, "heldout_sampled_at_temperature_1": measured}
    write_record(args.out, model, tokenizer, **facts)


if __name__ == "__main__":
    main()
