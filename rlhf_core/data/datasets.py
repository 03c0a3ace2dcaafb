"""All rows of a run: sources mixed, columns mapped, splits made. What is dropped is counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from typing import Any, TypeVar

from rlhf_core.data.conversations import read_demonstration, read_pair, read_prompt, read_verdict, replies
from rlhf_core.data.files import refuse_row
from rlhf_core.data.held_out import trained_on
from rlhf_core.data.order import fingerprint, interleave
from rlhf_core.data.schema import RawRow, UnusableRow, finite
from rlhf_core.data.settings import DatasetSettings
from rlhf_core.data.source import Source
from rlhf_core.plugins.component import ComponentConfig
from rlhf_core.plugins.context import BuildContext
from rlhf_core.plugins.protocols import GoldScorer
from rlhf_core.types.errors import DatasetError
from rlhf_core.types.frozen import Lazy, Packed
from rlhf_core.types.messages import Demonstration, PreferencePair, UnpairedPreference, message_text
from rlhf_core.types.rollouts import Prompt, Sample

EXAMPLES = 3


def admit(
    prompts: Sequence[Prompt],
    encode: Callable[[Prompt], tuple[int, ...]],
    settings: DatasetSettings,
    *,
    context: int,
    max_tokens: int,
    setting: str = "trainer.sampling.max_tokens",
    lengths_of: Callable[[Sequence[Prompt], int], Sequence[int]] | None = None,
) -> tuple[Sequence[Prompt], Counter[str]]:
    """The prompts of at most ``max_prompt_tokens`` that leave room for ``max_tokens``, and counts of the others by
    reason. ``lengths_of`` is faster than ``encode`` of each: what a plugin has as ``lengths``.
    """
    limit = settings.max_prompt_tokens
    if context - max_tokens < 1:
        what = f"max_tokens {max_tokens} leaves no room for a prompt in a context of {context} tokens"
        raise DatasetError(what, fix=f"lower {setting}")
    room = min(limit, context - max_tokens)
    of_context = f"lower {setting}, or take a model with a longer context"
    lengths = lengths_of(prompts, room) if lengths_of else [len(encode(p)) for p in prompts]
    fitting = Lazy(prompts.__getitem__, (n for n, length in enumerate(lengths) if length <= room))
    if len(fitting) < len(prompts):
        refuse_too_many(
            [(p.id, p.source, length) for p, length in zip(prompts, lengths)],
            room,
            settings.max_dropped_fraction,
            "prompts",
            f"limit {limit}, context {context} less max_tokens {max_tokens}",
            of_context if room < limit else "raise dataset.max_prompt_tokens",
        )
    return fitting, +Counter({"prompts_too_long": len(prompts) - len(fitting)})


def refuse_too_many(
    rows: Sequence[tuple[str, str, int]], room: int, max_dropped_fraction: float, what: str, why: str, fix: str
) -> None:
    """Refuse a dataset that would lose too many ``rows`` (id, source, tokens), or all of one source, to a limit."""
    dropped = [row for row in rows if row[2] > room]
    lost = {source for _, source, _ in rows} - {source for _, source, tokens in rows if tokens <= room}
    if lost or len(dropped) > max_dropped_fraction * len(rows):
        whole_sources = f" (all of source {', '.join(map(repr, sorted(lost)))})" if lost else ""
        longest = sorted(dropped, key=lambda row: -row[2])[:EXAMPLES]
        raise DatasetError(
            f"{len(dropped)} of {len(rows)} {what}{whole_sources} are longer than {room} tokens",
            where="longest: " + ", ".join(f"{name} ({tokens} tokens)" for name, _, tokens in longest),
            why=f"{why}, allowed to drop {max_dropped_fraction:.0%}" + (", never a whole source" if lost else ""),
            fix=fix + (", or drop the source" if lost else ", or allow more with dataset.max_dropped_fraction"),
        )


T = TypeVar("T", Prompt, PreferencePair, Demonstration, UnpairedPreference)


class Datasets:
    """Prompts, pairs and demonstrations of a run.

    Raises:
        DatasetError: two sources of one name, or a template or pattern that cannot work.
    """

    def __init__(self, settings: DatasetSettings, ctx: BuildContext) -> None:
        self.settings = settings
        self.sources = [Source(s, settings, ctx) for s in settings.sources]
        self.heldout = None if settings.heldout is None else Source(settings.heldout, settings, ctx)
        environment = getattr(ctx.config, "environment", None)
        self.offered = () if environment is None else tuple(environment.offered())
        """Tools of the run's environment; a row that brings tools of its own keeps them."""
        labels = Counter(s.label for s in self.sources)
        twice = [name for name, n in labels.items() if n > 1]
        if twice:
            raise DatasetError(f"two sources are called '{twice[0]}'", fix="give each a label")
        self.counts: Counter[str] = Counter()
        """Rows dropped or changed, by reason; each split is counted once."""
        self.dropped: list[tuple[str, str, str]] = []
        """(place, reason, text) of the rows that are well formed but cannot be used."""
        self._made: dict[tuple[str, str], Packed[Any]] = {}
        self._places: dict[tuple[str, str], Packed[tuple[str, str]]] = {}
        """Place of each row made, and hash of what it asks."""
        self._numbers: dict[tuple[str, str], dict[str, int]] = {}
        self.read: Callable[[Datasets], None] = lambda datasets: None
        """Called whenever rows of a split were read."""

    @property
    def weights(self) -> dict[str, float]:
        """Source label -> weight in the mixture."""
        return {s.label: s.settings.weight for s in self.sources}

    def interleaved(self, prompts: Sequence[Prompt]) -> Sequence[Prompt]:
        """Prompts in an order of which every beginning holds each source's share."""
        return Lazy(prompts.__getitem__, interleave([p.source for p in prompts], self.weights))

    @property
    def fingerprint(self) -> str:
        """Hash of all rows that were read so far, held-out ones and texts included."""
        return fingerprint(row for key in sorted(self._made) for row in self._made[key])

    def source_of(self, name: str) -> str:
        """Label of the source that a row of this name is from; empty for a name that is not one of the rows'."""
        return self._place(name)[0]

    def places(self, kind: str, split: str) -> Iterator[str]:
        """File and line of each row of ``rows`` (prompts), ``pairs``, ``unpaired`` or ``demonstrations`` once read."""
        return (place for place, _ in self._places[kind, split])

    def where(self, name: str) -> str:
        """File and line of a row that was read, by its id."""
        return self._place(name)[1]

    def _place(self, name: str) -> tuple[str, str, str]:
        """(Source, place, hash of what is asked) of a row, by its id."""
        if not self._numbers:
            self._numbers = {key: {row.id: n for n, row in enumerate(rows)} for key, rows in self._made.items()}
        for key, numbers in reversed(self._numbers.items()):
            if name in numbers:
                row, place = self._made[key][numbers[name]], self._places[key][numbers[name]]
                return row.source, *place
        return "", name, ""

    def content_keys(self, split: str) -> set[str]:
        """Hashes of what is asked, of the rows read of a split (`rlhf_core.data.held_out.content_key`)."""
        return {key for read, places in self._places.items() if read[1] == split for _, key in places}

    def seen_in_training(self, model: str, ids: Collection[str]) -> tuple[int, str]:
        """How many of these rows the runs that a model comes from trained on, and a warning; (0, "") if none."""
        return trained_on(model, {self._place(name)[2] for name in ids} - {""})

    def sizes(self, kind: str = "rows") -> dict[str, dict[str, int]]:
        """Source -> number of rows to train on and held out, before any is dropped."""
        counts, keys = Counter[str](), self._heldout_keys(kind)
        rows = {
            s.label: {split: len(s.records(kind, split, counts, keys)) for split in ("train", "heldout")}
            for s in self.sources
        }
        if self.heldout is not None:
            held_out = len(self.heldout.all_records(kind))
            held_out = min(held_out, self.settings.limit or held_out)
            rows[self.heldout.label] = {"train": 0, **rows.get(self.heldout.label, {}), "heldout": held_out}
        return rows

    def _heldout_keys(self, kind: str) -> Set[str] | None:
        """Keys of the rows of ``dataset.heldout``; None without."""
        heldout = self.heldout
        return None if heldout is None else {heldout.key(row) for row in heldout.all_records(kind)}

    def prompts(self, split: str) -> Sequence[Prompt]:
        """Prompts of ``train`` or ``heldout``; conversations that do not end with the user's turn are dropped.

        Raises:
            DatasetError: missing, empty or malformed rows, with file and row.
        """
        prompts = self._collect("rows", split, self._prompt)
        return Lazy(lambda n: self._with_tools(prompts[n]), range(len(prompts))) if self.offered else prompts

    def _with_tools(self, prompt: Prompt) -> Prompt:
        return prompt if prompt.tools else replace(prompt, tools=self.offered)

    def pairs(self, split: str) -> Sequence[PreferencePair]:
        """Preference pairs of a split. Pairs with an empty side, equal sides, or different prompts are dropped.

        Raises:
            DatasetError: malformed rows, or more than ``max_dropped_fraction`` of a source would go.
        """
        return self._collect("pairs", split, self._pair)

    def unpaired(self, split: str) -> Sequence[UnpairedPreference]:
        """Single responses, each desirable or not: rows with ``label``, and both sides of pairs; as :meth:`pairs`."""
        return self._collect("pairs", split, self._unpaired, "unpaired")

    def demonstrations(self, split: str) -> Sequence[Demonstration]:
        """Supervised examples of a split; those without a completion are dropped. Errors as of :meth:`pairs`."""
        return self._collect("demonstrations", split, self._demonstration)

    def _collect(
        self, kind: str, split: str, make: Callable[[Source, RawRow, str], T | list[T]], what: str = ""
    ) -> Sequence[T]:
        """Rows of a kind, read once; ``what`` names what is made of them if that is something else."""
        key = (what or kind, split)
        if key not in self._made:
            sources = [self.heldout] if self.heldout is not None and split == "heldout" else self.sources
            rows, places = Packed[T](), Packed[tuple[str, str]]()
            for row, place, asked in (row for source in sources for row in self._items(source, kind, split, make)):
                rows.append(row)
                places.append((place, asked))
            if not rows and split == "train":
                what, fix = "the dataset has no rows to train on", "lower dataset.heldout_fraction, or give more rows"
                raise DatasetError(what, where=", ".join(s.label for s in self.sources), fix=fix)
            self._made[key], self._places[key], self._numbers = rows, places, {}
            self.read(self)
        return Lazy(self._made[key].make, self._made[key].numbers)

    def _items(
        self, source: Source, kind: str, split: str, make: Callable[[Source, RawRow, str], T | list[T]]
    ) -> Iterator[tuple[T, str, str]]:
        places: dict[str, str] = {}
        dropped: list[tuple[RawRow, UnusableRow]] = []
        if source is self.heldout:
            records = source.all_records(kind)[: self.settings.limit]
        else:
            records = source.records(kind, split, self.counts, self._heldout_keys(kind))
        for record in records:
            try:
                result = make(source, record, split)
            except UnusableRow as error:
                dropped.append((record, error))
                continue
            except DatasetError as error:
                refuse_row(error)
                continue
            for item in result if isinstance(result, list) else [result]:
                if item.id in places:
                    where = f"{places[item.id]} and {record.where}"
                    fix = "ids must be unique: correct them, or map another column with dataset.columns"
                    refuse_row(DatasetError(f"id '{item.id}' occurs twice", where=where, fix=fix))
                    continue
                places[item.id] = record.where
                yield item, record.where, source.key(record)
        self._check_dropped(source, len(records), dropped)

    def _check_dropped(self, source: Source, total: int, dropped: Sequence[tuple[RawRow, UnusableRow]]) -> None:
        reasons = Counter(error.reason for _, error in dropped)
        self.counts.update(reasons)
        self.dropped += [(record.where, error.reason, str(error)) for record, error in dropped]
        if dropped and (len(dropped) == total or len(dropped) > self.settings.max_dropped_fraction * total):
            record, first = dropped[0]
            counted = ", ".join(f"{reason} {n}" for reason, n in reasons.most_common())
            refuse_row(
                DatasetError(
                    f"{len(dropped)} of {total} rows of '{source.label}' cannot be used",
                    where=record.where,
                    why=f"first: {first}; {counted}",
                    fix="correct the data or dataset.columns, or allow more with dataset.max_dropped_fraction",
                )
            )

    def _prompt(self, source: Source, record: RawRow, split: str) -> Prompt:
        turns, cut = read_prompt(source.reader, record)
        if cut:
            self.counts["prompts_final_turn_removed"] += 1
        conversation = source.conversation(turns, record)
        last = turns[-1]
        if last["role"] not in ("user", "tool"):
            raise UnusableRow("prompts_last_turn", f"the prompt's last turn is the {last['role']}'s, not the user's")
        answer = source.reader.answer(record, source.settings.answer_pattern)
        meta, bad = source.reader.rest(record)
        if bad:
            self.counts["columns_not_json"] = max(self.counts["columns_not_json"], len(bad))
        if message_text(conversation[-1]) != message_text(last):
            meta = {"prompt": message_text(last), **meta}  # as the row has it: a verifier may need it
        tools = source.reader.tools(record)
        return Prompt(source.name(record, split), conversation, answer, source.label, meta, tools=tools)

    def _pair(self, source: Source, record: RawRow, split: str) -> PreferencePair:
        prompt, chosen, rejected = read_pair(source.reader, record)
        conversation = source.conversation(prompt, record)
        margin = source.reader.get(record, "margin")
        size = 0.0 if margin is None else finite(margin)
        if not abs(size) < 1e38:  # of float32, which losses are computed in
            what = f"margin {margin!r:.80} is not a finite number of 32 bits"
            raise DatasetError(what, where=record.where, fix='write a number, such as "margin": 1.0, or leave it out')
        name = source.name(record, split)
        texts, turns = (chosen.text, rejected.text), (chosen.turn, rejected.turn)
        tools = source.reader.tools(record)
        return PreferencePair(name, conversation, *texts, size, source.label, tools, *turns)

    def _unpaired(self, source: Source, record: RawRow, split: str) -> list[UnpairedPreference]:
        if source.reader.find(record, "chosen") and not source.reader.find(record, "label"):
            row = self._pair(source, record, split)
            sides = [(f"{row.id}#chosen", True), (f"{row.id}#rejected", False)]
        else:
            verdict = read_verdict(source.reader, record)
            row = self._demonstration(source, record, split, whole=True)
            sides = [(row.id, verdict)]
        return [
            UnpairedPreference(name, row.prompt, text, desirable, source.label, row.tools, turn)
            for (name, desirable), (text, turn) in zip(sides, replies(row))
        ]

    def _demonstration(self, source: Source, record: RawRow, split: str, whole: bool = False) -> Demonstration:
        prompt, text, turn = read_demonstration(source.reader, record, whole)
        conversation, tools = source.conversation(prompt, record), source.reader.tools(record)
        return Demonstration(source.name(record, split), conversation, text, source.label, tools, turn)

    def check_lengths(
        self, sizes: Sequence[tuple[str, str, int]], room: int, why: str, fix: str, *, context: int | None = None
    ) -> None:
        """Refuse examples of which too many, or all of one source, are longer than ``room`` tokens; arguments as in
        `refuse_too_many`. Where ``context``, that of the model, is what limits them, no setting makes room.
        """
        if context is not None and room >= context:
            fix = "shorten the examples, or take a model with a longer context"
        refuse_too_many(sizes, room, self.settings.max_dropped_fraction, "examples", why, fix)

    @classmethod
    def of(cls, ctx: BuildContext) -> Datasets:
        """Those of a context; before a run they are made once for all checks, and an on-policy run takes them over."""
        datasets: Any = ctx.datasets or cls(ctx.config.dataset, ctx)
        object.__setattr__(ctx, "datasets", datasets)
        return datasets

    def own_rewards(self) -> dict[str, ComponentConfig]:
        """Source label -> the reward that only this source uses."""
        return {s.label: s.settings.reward for s in self.sources if s.settings.reward is not None}

    def has_gold(self, prompt: Prompt) -> bool:
        """Whether the prompt's source has a gold score."""
        return isinstance(self._source(prompt).component, GoldScorer)

    def gold(self, sample: Sample) -> Mapping[str, float] | None:
        """The gold score of a completion, None where its source has none. The source sees its own row id."""
        source = self._source(sample.prompt)
        if not isinstance(source.component, GoldScorer):
            return None
        source_prompt = replace(sample.prompt, id=source.own_id(sample.prompt.id))
        return source.component.gold(replace(sample, prompt=source_prompt))

    def _source(self, prompt: Prompt) -> Source:
        every = [*self.sources, *([self.heldout] if self.heldout is not None else [])]
        return next(s for s in every if s.label == prompt.source)
