"""Turns sampled as they come: what is kept between them changes what is read, not what is sampled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from rlhf_core.plugins.contracts import CheckedEngine
from rlhf_core.types.errors import ConfigError, PluginError
from rlhf_core.types.rollouts import Rollout, RolloutRequest, SamplingParams
from rlhf_plugin_episodes.agent_config import MultiTurnConfig
from rlhf_plugin_native import stream_decode
from rlhf_plugin_native.config import NativeRolloutConfig
from rlhf_plugin_native.decode import Decoder
from rlhf_plugin_native.decode_step import BLOCK
from rlhf_plugin_native.engine import NativeEngine
from rlhf_plugin_native.kv_rows import RoomyLayer
from rlhf_plugin_native.turn_cache import TurnCache, bytes_per_token

SAMPLING = SamplingParams(max_tokens=12)
EPISODES, TURNS = 7, 3
Order = Callable[[int], Sequence[int]]


@pytest.fixture
def ending(model: Any) -> Any:
    """A model whose turns have different lengths."""
    model.generation_config.eos_token_id = list(range(40, 72))
    return model


def engine(model: Any, tokenizer: Any, keep_mib: int = 64, **options: Any) -> NativeEngine:
    return NativeEngine(model, tokenizer, 128, keep_mib=keep_mib, **options)


def play(
    player: Any, steps: int | None = None, stream: bool = True, read_tokens: list[int] | None = None
) -> list[Rollout]:
    """Turns of several episodes; after each one the policy reads some tokens more."""
    read = [np.random.default_rng(n).integers(0, 300, 9 + 4 * (n // 3)).tolist() for n in range(EPISODES)]
    opened = player.open_stream(SAMPLING, 3) if stream else None
    rollouts: list[Rollout] = []
    for turn in range(TURNS):
        asked = [
            RolloutRequest(f"p{n // 3}", tuple(ids), n % 3, 10 * n + turn, 12 - n % 2) for n, ids in enumerate(read)
        ]
        if opened is None:
            taken = dict(enumerate(player.generate(asked, SAMPLING, 3)))
        else:
            taken = {}
            for n, request in enumerate(asked):
                opened.submit(n, request)
            while opened.waiting:
                taken |= opened.take(steps)
        rollouts += [taken[n] for n in range(EPISODES)]
        for n, ids in enumerate(read):
            ids += taken[n].completion_ids
            ids += np.random.default_rng(100 * turn + n).integers(0, 300, 1 + 5 * (n % 3)).tolist()
    if opened is not None:
        if read_tokens is not None:
            read_tokens.append(opened.figures()["tokens_read"])
        opened.close()
    return rollouts


def content(rollouts: Sequence[Rollout]) -> list[Any]:
    return [(r.completion_ids, r.prompt_ids, r.finish_reason, r.seed, r.policy_version) for r in rollouts]


def bits(rollouts: Sequence[Rollout]) -> list[bytes]:
    return [r.logprobs_T.tobytes() for r in rollouts]


@pytest.mark.parametrize("model", ["llama", "gpt2"], indirect=True)
def test_turns_of_a_stream_are_those_of_single_calls(ending: Any, tokenizer: Any) -> None:
    want = play(engine(ending, tokenizer), stream=False)
    assert len({len(r.completion_ids) for r in want}) > 3
    read: list[int] = []
    for name, options in {
        "kept": {},
        "nothing kept": {"keep_mib": 0},
        "few rows": {"max_concurrent": 3},
        "bounded": {"max_batch_tokens": 160},
    }.items():
        got = play(engine(ending, tokenizer, **options), steps=None if name == "kept" else 3, read_tokens=read)
        assert content(got) == content(want), name
        for a, b in zip(got, want, strict=True):
            np.testing.assert_allclose(a.logprobs_T, b.logprobs_T, atol=1e-4)
    assert read[0] < 0.6 * read[1], "only new tokens should be read"


def test_what_is_kept_is_within_the_budget_and_changes_no_token(ending: Any, tokenizer: Any) -> None:
    player = engine(ending, tokenizer)
    stream = player.open_stream(SAMPLING, 0)
    assert stream is not None
    size = 2 * 2 * 2 * 8 * 4  # layers, keys and values, heads, width, float32
    stream.decoder.turn_cache = TurnCache(60 * size)
    ids = tuple(range(1, 11))
    for n in range(5):
        stream.submit(n, RolloutRequest("p", ids, n, n))
    taken: dict[Any, Rollout] = {}
    while stream.waiting:
        taken |= stream.take()
    cache = stream.decoder.turn_cache
    assert 40 * size < cache.most_used <= 60 * size
    assert 0 < cache.refused < 5
    before = stream.decoder.tokens_read
    more = [RolloutRequest("p", (*ids, *taken[n].completion_ids, 7, 8, 9), n, 10 + n) for n in range(5)]
    for n, request in enumerate(more):
        stream.submit(n, request)
    while stream.waiting:
        taken |= stream.take()
    stream.close()
    assert stream.decoder.tokens_read - before < sum(len(r.prompt_ids) for r in more)
    for n, want in enumerate(player.generate(more, SAMPLING, 0)):
        assert taken[n].completion_ids == want.completion_ids


def test_equal_calls_are_equal_bit_for_bit_and_without_a_budget_equal_single_calls(ending: Any, tokenizer: Any) -> None:
    once, again = play(engine(ending, tokenizer)), play(engine(ending, tokenizer))
    assert (content(once), bits(once)) == (content(again), bits(again))
    plain, nothing_kept = play(engine(ending, tokenizer), stream=False), play(engine(ending, tokenizer, keep_mib=0))
    assert (content(plain), bits(plain)) == (content(nothing_kept), bits(nothing_kept))
    assert bits(once)[:EPISODES] == bits(plain)[:EPISODES]  # the first turn has read nothing before


def test_turns_enter_while_others_are_decoded(ending: Any, tokenizer: Any) -> None:
    """A row waits for its tool while the others go on, then takes the place of one that has ended."""
    player = engine(ending, tokenizer)
    requests = {n: RolloutRequest(f"p{n}", tuple(range(n + 1, n + 9 + n)), 0, n) for n in range(12)}
    stream = player.open_stream(SAMPLING, 0)
    assert stream is not None
    waiting, taken, places = list(requests), {}, set()
    for n in waiting[:6]:
        stream.submit(n, requests[n])
    del waiting[:6]
    while stream.waiting:
        taken |= stream.take(2)
        places.add(0 if stream.decoder.rows is None else len(stream.decoder.rows))
        if waiting:
            n = waiting.pop()
            stream.submit(n, requests[n])
    stream.close()
    assert max(places) < 12
    for n, want in enumerate(player.generate(list(requests.values()), SAMPLING, 0)):
        assert content([taken[n]]) == content([want])


def stream_of(player: NativeEngine, lengths: Sequence[int], most: Sequence[int]) -> Any:
    """A stream with requests of these lengths and of so many tokens at most."""
    stream = player.open_stream(SamplingParams(max_tokens=max(most)), 0)
    assert stream is not None
    for n, (length, tokens) in enumerate(zip(lengths, most, strict=True)):
        stream.submit(n, RolloutRequest(f"p{n}", tuple(range(n + 1, n + 1 + length)), 0, n, tokens))
    return stream


def test_what_stays_is_not_copied_when_others_enter(model: Any, tokenizer: Any) -> None:
    stream = stream_of(engine(model, tokenizer), [10] * 8, [2, 2, 2, 2, 40, 40, 40, 40])
    stream.take()
    where = None
    for n in range(8, 14):
        for m in range(2):
            stream.submit((n, m), RolloutRequest(f"p{n}{m}", tuple(range(10 + n + m)), 0, n, 2))
        stream.take()
        layers = stream.decoder.cache.layers
        assert {type(layer) for layer in layers} == {RoomyLayer}
        now = [buffer.data_ptr() for layer in layers for buffer in layer.buffers]
        where, before = now, where
        assert before is None or now == before
    stream.close()


def test_room_for_more_rows_is_within_max_batch_tokens(model: Any, tokenizer: Any) -> None:
    bound = 6 * 3 * BLOCK
    player = engine(model, tokenizer, max_batch_tokens=bound)
    stream = stream_of(player, [70] * 5, [4, 4, 4, 40, 40])
    stream.take()
    stream.submit("new", RolloutRequest("new", tuple(range(70)), 0, 9, 30))
    rows: list[int] = []
    while stream.waiting:
        stream.take(1)
        if stream.decoder.cache is not None:
            held, positions = stream.decoder.cache.layers[0].buffers[0].shape[:3:2]
            rows.append(held)
            assert held * (positions - 2 * BLOCK) <= bound
            assert held * positions <= bound or held == len(stream.decoder.rows)
    stream.close()
    assert max(rows) > 3, "there is room ahead"


def test_a_context_that_was_rewritten_is_read_from_where_it_differs(ending: Any, tokenizer: Any) -> None:
    player = engine(ending, tokenizer)
    stream = player.open_stream(SAMPLING, 0)
    assert stream is not None
    stream.submit("e", RolloutRequest("p", tuple(range(1, 31)), 0, 1))
    stream.take()
    before = stream.decoder.tokens_read
    other = RolloutRequest("p", (*range(1, 21), 99, 98, 97), 0, 2)
    stream.submit("e", other)
    ((_, got),) = stream.take()
    stream.close()
    assert stream.decoder.tokens_read - before == 3
    assert content([got]) == content(player.generate([other], SAMPLING, 0))


def test_long_reads_are_bounded(ending: Any, tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    want = play(engine(ending, tokenizer, keep_mib=0))
    monkeypatch.setattr(stream_decode, "READ_TOKENS", 40)
    for keep in (0, 64):
        player, sizes = engine(ending, tokenizer, keep), list[int]()
        logits = player.logits
        monkeypatch.setattr(
            player,
            "logits",
            lambda ids, *rest, f=logits, s=sizes: (s.append(ids.numel() if len(ids) > 1 else 0), f(ids, *rest))[1],
        )
        assert [r.completion_ids for r in play(player)] == [r.completion_ids for r in want]
        assert 20 < max(sizes) <= 40  # of several contexts; one alone may be longer


@pytest.mark.parametrize("model", ["gemma2", "mamba"], indirect=True)
def test_models_whose_batches_cannot_be_entered_have_no_stream(model: Any, tokenizer: Any) -> None:
    assert engine(model, tokenizer).open_stream(SAMPLING, 0) is None


def test_a_turn_that_does_not_fit_is_refused_when_it_is_submitted(ending: Any, tokenizer: Any) -> None:
    stream = engine(ending, tokenizer).open_stream(SAMPLING, 0)
    assert stream is not None
    with pytest.raises(ConfigError, match="more than the model's context of 128"):
        stream.submit("e", RolloutRequest("p", tuple(range(120)), 0, 1))
    stream.close()


def test_a_turn_without_room_is_refused(model: Any, tokenizer: Any) -> None:
    with pytest.raises(ConfigError, match="asked for 0 more"):
        engine(model, tokenizer).generate([RolloutRequest("p", (1, 2), 0, 1, max_tokens=0)], SAMPLING, 0)


def test_a_budget_that_holds_no_episode_is_refused_before_any_work(
    model: Any, tokenizer: Any, caplog: pytest.LogCaptureFixture
) -> None:
    def built(most: int, **options: int) -> NativeEngine:
        run = SimpleNamespace(
            agent=MultiTurnConfig(), trainer=SimpleNamespace(sampling=SimpleNamespace(max_tokens=most))
        )
        policy = SimpleNamespace(model=model, tokenizer=tokenizer, context=128)
        return NativeRolloutConfig(**options).build(SimpleNamespace(config=run, policy=policy))  # type: ignore[arg-type]

    size = bytes_per_token(model)
    assert size == 2 * 2 * 2 * 8 * 4  # keys and values, layers, heads, width, float32
    with pytest.raises(ConfigError, match=r"keep_mib 1 holds .* fewer than one episode") as error:
        built((1 << 20) // size + 1, keep_mib=1)
    assert "keep_mib=2" in str(error.value)
    assert built((1 << 20) // size, keep_mib=1).keep_mib == 1
    assert built(1 << 40, keep_mib=0).keep_mib == 0
    assert built((2048 << 20) // size + 1).keep_mib == 2048  # nobody chose it
    assert "fewer than one episode" in caplog.text


def test_the_models_modes_and_gradients_are_as_before(ending: Any, tokenizer: Any) -> None:
    ending.train()
    stream = engine(ending, tokenizer).open_stream(SAMPLING, 0)
    assert stream is not None
    assert not ending.training
    stream.close()
    stream.close()
    assert ending.training
    assert not torch.is_inference_mode_enabled()


class Wrong:
    """A stream that does one thing wrong."""

    waiting = 1

    def __init__(self, engine: NativeEngine, how: str) -> None:
        self.engine, self.how, self.asked = engine, how, list[Any]()

    def submit(self, episode: Any, request: RolloutRequest) -> None:
        self.asked.append((episode, request))

    def take(self, steps: int | None = None) -> Any:
        (episode, request), *_ = self.asked
        rollout = self.engine.generate([request], SAMPLING, 0)[0]
        other = RolloutRequest("p", (5, 6), 0, 1)
        return {
            "nothing": [],
            "no list": None,
            "no pairs": [rollout],
            "another episode": [("nobody", rollout)],
            "twice": [(episode, rollout)] * 2,
            "other context": [(episode, self.engine.generate([other], SAMPLING, 0)[0])],
            "no rollout": [(episode, "text")],
        }[self.how]

    def forget(self, episode: Any) -> None: ...

    def close(self) -> None: ...


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ("nothing", "no turn from take"),
        ("no list", "a list of"),
        ("no pairs", "a list of"),
        ("another episode", "none under way"),
        ("twice", "none under way"),
        ("other context", "other prompt tokens"),
        ("no rollout", "a Rollout"),
    ],
)
def test_a_wrong_turn_is_refused_by_name(how: str, says: str, model: Any, tokenizer: Any) -> None:
    native = engine(model, tokenizer)
    native.open_stream = lambda sampling, version: Wrong(native, how)  # type: ignore[method-assign,assignment,return-value]
    stream = CheckedEngine(native, "rollout engine 'acme'").open_stream(SAMPLING, 0)
    assert stream is not None
    stream.submit("e", RolloutRequest("p", (1, 2, 3), 0, 1))
    with pytest.raises(PluginError, match=f"acme.*{says}|{says}"):
        stream.take()


@pytest.mark.parametrize("options", [{}, {"max_concurrent": 3}, {"max_batch_tokens": 160}])
@pytest.mark.parametrize("steps", [None, 4])
def test_a_row_that_ended_unseen_is_not_given_away(
    ending: Any, tokenizer: Any, monkeypatch: pytest.MonkeyPatch, options: dict[str, int], steps: int | None
) -> None:
    """On a GPU the loop looks only every few tokens at what has ended; turns are submitted in between."""
    requests = [RolloutRequest(f"p{n}", tuple(range(1, 10 + n)), 0, n, 12) for n in range(12)]
    want = engine(ending, tokenizer).generate(requests, SAMPLING, 0)
    start = Decoder.__init__

    def strided(self: Decoder, **arguments: Any) -> None:
        start(self, **arguments)
        self.stride = 8

    monkeypatch.setattr(Decoder, "__init__", strided)
    stream = CheckedEngine(engine(ending, tokenizer, **options), "e").open_stream(SAMPLING, 0)
    assert stream is not None
    rest, taken = list(enumerate(requests)), dict[Any, Rollout]()
    for _ in range(200):
        for n, request in rest[: 4 if steps else 12]:
            stream.submit(n, request)
        del rest[: 4 if steps else 12]
        taken |= stream.take(steps) if stream.waiting else []
    stream.close()
    assert content([taken[n] for n in range(12)]) == content(want)
