"""Lengths in the model's tokens, and what the limits of a run would cut or leave out."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rlhf_core.config import RunConfig
from rlhf_core.models import Formatter, ModelConfig, ModelError, load_tokenizer, resolve_model
from rlhf_plugin_preflight.datacheck.items import Item
from rlhf_plugin_preflight.together import RENDERED, render_prompts

BATCH = 1000
"""Rows that are tokenized at once."""


class Lengths(NamedTuple):
    """Tokens of what is trained on: prompt and longest completion, or the prompt where it is sampled from."""

    counts: list[int]
    limit: int
    beyond: int
    becomes: str
    """``dropped`` or ``truncated``: what happens to those beyond the limit."""
    why: str
    """The settings that the limit comes from."""

    def summary(self) -> dict[str, Any]:
        """Quantiles, histogram and what is beyond the limit, as JSON values."""
        if not self.counts:
            return {}
        # the smallest length that so many rows do not exceed: what lies between two lengths is no row's
        quantiles = {f"p{q}": int(np.percentile(self.counts, q, method="inverted_cdf")) for q in (50, 95, 99)}
        return {
            "min": min(self.counts),
            **quantiles,
            "max": max(self.counts),
            "mean": round(float(np.mean(self.counts)), 1),
            "limit": self.limit,
            "limit_from": self.why,
            "beyond": self.beyond,
            "becomes": self.becomes,
            "histogram": histogram(self.counts),
        }


class Measure:
    """Tokenizes as the run's model would."""

    def __init__(self, config: RunConfig) -> None:
        self.formatter = Formatter(load_tokenizer(config.model), config.model.prompt_format)
        self.limit, self.becomes, self.why = limit_of(config, context_of_model(config.model))

    def lengths(
        self,
        items: Sequence[Item],
        refused: list[tuple[Item, ModelError]],
        meanwhile: Callable[[Sequence[Item]], object] = lambda batch: None,
    ) -> Lengths:
        """Of these items, in any order; those that the chat template refuses are added to ``refused``. ``meanwhile`` is
        called with all of them, a batch at a time, while another is tokenized.
        """
        counts, tokenizer = list[int](), self.formatter.tokenizer
        with ThreadPoolExecutor(1) as pool:
            sizes = pool.submit(list[int])
            for start in range(0, len(items), BATCH):
                batch = items[start : start + BATCH]
                written, alone = self._written(batch, refused)
                meanwhile(batch)
                counts += sizes.result()  # until the next is submitted the tokenizer is ours alone
                counts += self._counts(alone, refused)
                sizes = pool.submit(longest_of, tokenizer, written)
            counts += sizes.result()
        return Lengths(counts, self.limit, sum(count > self.limit for count in counts), self.becomes, self.why)

    def _written(
        self, items: Sequence[Item], refused: list[tuple[Item, ModelError]]
    ) -> tuple[list[list[str]], list[Item]]:
        """(Texts of each item that is plain text for the tokenizer, the items that have to be encoded one by one)."""
        rendered = [text for start in range(0, len(items), RENDERED) for text in self._rendered(items, start)]
        written, alone = list[list[str]](), list[Item]()
        for item, text in zip(items, rendered):
            try:
                texts = plain_texts(item, self.formatter, text)
            except ModelError as error:
                refused.append((item, error))
            else:
                alone.append(item) if texts is None else written.append(texts)
        return written, alone

    def _counts(self, items: Sequence[Item], refused: list[tuple[Item, ModelError]]) -> Iterator[int]:
        for item in items:
            try:
                yield tokens_of(item, self.formatter)
            except ModelError as error:
                refused.append((item, error))

    def _rendered(self, items: Sequence[Item], start: int) -> Sequence[str]:
        """The prompts of some items from ``start`` on; "" for those that have to be rendered one by one."""
        some, formatter = items[start : start + RENDERED], self.formatter
        together = formatter.chat and formatter.modality is None and not any(item.tools or item.turns for item in some)
        return (render_prompts(formatter, [item.prompt for item in some]) if together else ()) or [""] * len(some)


def longest_of(tokenizer: Any, written: Sequence[Sequence[str]]) -> list[int]:
    """Tokens of each prompt with the longest of its completions and the token that ends it."""
    sizes = iter(token_counts(tokenizer, list(itertools.chain.from_iterable(written))))
    counts: list[int] = []
    for texts in written:
        prompt, *replies = itertools.islice(sizes, len(texts))
        counts.append(prompt + max((size + 1 for size in replies), default=0))
    return counts


def token_counts(tokenizer: Any, texts: Sequence[str]) -> list[int]:
    """Tokens of each text, tokenized at once: nothing else of them is asked for."""
    if not texts:
        return []
    first = len(tokenizer(texts[0], add_special_tokens=False)["input_ids"])  # sets what its backend does
    try:
        encodings = tokenizer.backend_tokenizer.encode_batch_fast(texts[1:], add_special_tokens=False)
        return [first, *map(len, encodings)]
    except BaseException as error:  # none of a tokenizer in Python; a panic is no Exception, and is named below
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        return [len(ids) for ids in tokenizer(texts, add_special_tokens=False)["input_ids"]]


def plain_texts(item: Item, formatter: Formatter, rendered: str = "") -> list[str] | None:
    """The prompt (``rendered`` already, if it is there) and the completions, each as the tokenizer is given it whole;
    None where :func:`tokens_of` has to count, as for a completion with calls or names of special tokens in a text.
    """
    if formatter.modality is not None or not formatter.chat or any(item.turns):
        return None
    formatter.check_template()
    prompt = rendered or formatter.render(item.prompt, item.tools, add_generation_prompt=True)
    if formatter.text.placeholders_in(prompt) or any(map(formatter.text.names_in, item.completions)):
        return None
    return [prompt, *item.completions]


def tokens_of(item: Item, formatter: Formatter) -> int:
    """Prompt and longest completion, end token included; only the prompt where there is no completion."""
    longest = max((len(formatter.encode_reply(item.prompt, *one, item.tools)) for one in item.replies), default=0)
    return len(formatter.encode(item.prompt, item.tools)) + longest


def limit_of(config: RunConfig, context: int) -> tuple[int, str, str]:
    """(Most tokens, what becomes of longer rows, where the limit comes from)."""
    trainer = config.trainer
    longest = getattr(trainer, "max_length", None)
    if longest is not None:
        becomes = "truncated" if getattr(trainer, "truncation", None) else "dropped"
        return min(longest, context), becomes, f"trainer.max_length {longest}, context {context}"
    most, sampled = config.dataset.max_prompt_tokens, getattr(getattr(trainer, "sampling", None), "max_tokens", 0)
    why = f"dataset.max_prompt_tokens {most}, context {context} less trainer.sampling.max_tokens {sampled}"
    return min(most, context - sampled), "dropped", why


def context_of_model(config: ModelConfig) -> int:
    """Tokens that the model's configuration allows, its weights not loaded."""
    model_path, context = resolve_model(config.path).path, 0
    if (file := Path(model_path) / "config.json").is_file():  # transformers would import torch to read it
        context = json.loads(file.read_text("utf-8")).get("max_position_embeddings") or 0
    if not context:
        from transformers import AutoConfig

        loaded: Any = AutoConfig.from_pretrained(
            model_path, revision=config.revision or "main", trust_remote_code=config.trust_remote_code
        )
        context = getattr(loaded.get_text_config(), "max_position_embeddings", None) or 1 << 30
    return min(context, config.max_context or context)


def histogram(counts: Sequence[int]) -> list[dict[str, int]]:
    """Rows by length, each bin twice as wide as the one before."""
    edges = [0, 32]
    while edges[-1] < max(counts):
        edges.append(edges[-1] * 2)
    bins, _ = np.histogram(counts, bins=[*(edge + 0.5 for edge in edges[:-1]), edges[-1] + 0.5])
    first = next(i for i, count in enumerate(bins) if count)
    return [
        {"from": low + 1, "to": high, "rows": int(count)}
        for low, high, count in list(zip(edges, edges[1:], bins))[first:]
    ]
