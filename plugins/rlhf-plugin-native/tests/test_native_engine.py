"""The native engine: what it samples, and what its logprobs mean."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from rlhf_core.training.forward import completion_logprobs
from rlhf_core.types.errors import ConfigError
from rlhf_core.types.rollouts import FinishReason, Rollout, RolloutRequest, SamplingParams
from rlhf_plugin_native import decode
from rlhf_plugin_native.decode import Decoder
from rlhf_plugin_native.engine import NativeEngine

VOCABULARY = 320
KINDS = ("llama", "gpt2", "mistral", "gemma2")
PROMPTS = ((1, 2, 3), (0, 5, 6, 7, 0, 8, 9, 10), (9,))
kinds = pytest.mark.parametrize("model", KINDS, indirect=True)


def requests(prompts: Sequence[tuple[int, ...]] = PROMPTS, group: int = 4) -> list[RolloutRequest]:
    return [RolloutRequest(f"p{p}", ids, g, seed=1000 * p + g) for p, ids in enumerate(prompts) for g in range(group)]


def same(a: Rollout, b: Rollout) -> None:
    assert a.completion_ids == b.completion_ids
    assert (a.finish_reason, a.text) == (b.finish_reason, b.text)
    assert (a.prompt_id, a.group_index, a.seed) == (b.prompt_id, b.group_index, b.seed)
    np.testing.assert_allclose(a.logprobs_T, b.logprobs_T, atol=1e-4)


def often_ending(model: Any, share: float = 0.1) -> Any:
    """Declare so many EOS ids that about this share of the tokens ends a completion: lengths vary."""
    model.generation_config.eos_token_id = list(range(40, 40 + int(share * VOCABULARY)))
    return model


@kinds
def test_a_completion_does_not_depend_on_its_neighbours(model: Any, tokenizer: Any) -> None:
    engine = NativeEngine(often_ending(model), tokenizer, 128)
    sampling = SamplingParams(max_tokens=24, temperature=0.9)
    together = engine.generate(requests(), sampling, 7)
    assert len({r.completion_ids for r in together}) == len(together)
    assert len({len(r.completion_ids) for r in together}) > 3, "lengths should vary, or compaction is not tested"
    for one in (requests()[i] for i in (0, 5, 10)):
        alone = engine.generate([one], sampling, 7)[0]
        same(alone, together[requests().index(one)])
        assert alone.policy_version == 7


@pytest.mark.parametrize("every_s", [0.0, 1e9])
def test_what_has_ended_is_reported_once_on_the_way(model: Any, tokenizer: Any, every_s: float) -> None:
    engine, sampling = NativeEngine(often_ending(model), tokenizer, 128, 5), SamplingParams(max_tokens=16)
    calls: list[tuple[list[tuple[int, Rollout]], int]] = []
    whole = engine.generate_each(
        requests(), sampling, 3, lambda new, tokens: calls.append((list(new), tokens)), every_s
    )
    reported = [row for new, _ in calls for row in new]
    assert sorted(i for i, _ in reported) == list(range(len(whole)))
    for i, rollout in reported:
        assert rollout.policy_version == 3
        assert (rollout.completion_ids, rollout.text) == (whole[i].completion_ids, whole[i].text)
    assert len(calls[0][0]) < len(whole) or every_s
    assert calls[-1][1] == sum(len(r.completion_ids) for r in whole)
    assert (len(calls) > 10) == (every_s == 0)


@pytest.mark.parametrize("options", [{"max_concurrent": 1}, {"max_concurrent": 5}, {"max_batch_tokens": 100}])
def test_waiting_changes_nothing(model: Any, tokenizer: Any, options: dict[str, int]) -> None:
    often_ending(model)
    sampling = SamplingParams(max_tokens=16)
    want = NativeEngine(model, tokenizer, 128).generate(requests(), sampling, 0)
    got = NativeEngine(model, tokenizer, 128, **options).generate(requests(), sampling, 0)
    for a, b in zip(got, want, strict=True):
        same(a, b)


def test_a_batch_token_limit_is_kept(model: Any, tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prompts of 1 to 8 tokens, completions of 1 to 16: the cache never holds more than 100 positions."""
    engine = NativeEngine(often_ending(model), tokenizer, 128, max_batch_tokens=100)
    want = NativeEngine(model, tokenizer, 128).generate(requests(group=12), SamplingParams(max_tokens=16), 0)
    sizes: list[int] = []
    logits = engine.logits

    def spy(ids: Any, mask: Any, positions: Any, cache: Any, *rest: Any) -> Any:
        out = logits(ids, mask, positions, cache, *rest)
        sizes.append(len(ids) * cache.get_seq_length())
        return out

    monkeypatch.setattr(engine, "logits", spy)
    for a, b in zip(engine.generate(requests(group=12), SamplingParams(max_tokens=16), 0), want, strict=True):
        same(a, b)
    assert 80 < max(sizes) <= 100


@kinds
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_logprobs_are_the_trainers(model: Any, tokenizer: Any, temperature: float) -> None:
    """What the logprob mismatch check expects: below 1e-4 nats in float32, with early EOS banned too."""
    sampling = SamplingParams(max_tokens=20, min_tokens=8, temperature=temperature)
    rollouts = NativeEngine(model, tokenizer, 128).generate(requests(), sampling, 0)
    with torch.no_grad():
        out = completion_logprobs(
            model, [r.prompt_ids for r in rollouts], [r.completion_ids for r in rollouts], temperature=temperature
        )
    for i, r in enumerate(rollouts):
        np.testing.assert_allclose(r.logprobs_T, out.logprobs_BT[i, : len(r.completion_ids)].numpy(), atol=1e-4)


@kinds
def test_greedy_equals_transformers(model: Any, tokenizer: Any) -> None:
    engine = NativeEngine(model, tokenizer, 128)
    rollouts = engine.generate(requests(group=1), SamplingParams(max_tokens=12, temperature=0.0), 0)
    for prompt, rollout in zip(PROMPTS, rollouts):
        ids = torch.tensor([prompt])
        want = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=12)
        assert rollout.completion_ids == tuple(want[0, len(prompt) :].tolist())


def test_lengths_and_finish_reasons(model: Any, tokenizer: Any) -> None:
    engine = NativeEngine(often_ending(model), tokenizer, 128)
    rollouts = engine.generate(requests(group=8), SamplingParams(max_tokens=10), 0)
    assert {r.finish_reason for r in rollouts} == {FinishReason.EOS, FinishReason.LENGTH}
    for r in rollouts:
        ended = r.finish_reason is FinishReason.EOS
        assert (r.completion_ids[-1] in engine.ends) == ended
        assert not set(engine.ends).intersection(r.completion_ids[:-1])
        assert ended or len(r.completion_ids) == 10
        assert r.text == tokenizer.decode(r.completion_ids, skip_special_tokens=True)


def test_min_tokens_counts_the_eos(model: Any, tokenizer: Any) -> None:
    often_ending(model, 0.5)
    engine = NativeEngine(model, tokenizer, 128)
    free = engine.generate(requests(group=8), SamplingParams(max_tokens=10), 0)
    held = engine.generate(requests(group=8), SamplingParams(max_tokens=10, min_tokens=4), 0)
    assert min(len(r.completion_ids) for r in free) == 1
    assert min(len(r.completion_ids) for r in held) == 4
    exact = engine.generate(requests(), SamplingParams(max_tokens=10, min_tokens=10), 0)
    assert {len(r.completion_ids) for r in exact} == {10}


def test_several_eos_ids(model: Any, tokenizer: Any) -> None:
    model.generation_config.eos_token_id = [5, 6]
    engine = NativeEngine(model, tokenizer, 128)
    assert set(engine.ends) == {5, 6, tokenizer.eos_token_id}
    rollouts = engine.generate(requests(group=100), SamplingParams(max_tokens=12), 0)
    assert {r.completion_ids[-1] for r in rollouts if r.finish_reason is FinishReason.EOS} == set(engine.ends)


def test_a_stop_string_over_token_boundaries(model: Any, tokenizer: Any) -> None:
    """Find a string that starts inside one sampled token and ends inside the next; then stop at it."""
    engine = NativeEngine(model, tokenizer, 128)
    full = engine.generate(requests(group=24), SamplingParams(max_tokens=24), 0)
    tried = 0
    for request, r in zip(requests(group=24), full):
        for at in range(1, len(r.completion_ids) - 1):
            upto, both = tokenizer.decode(r.completion_ids[: at + 1]), tokenizer.decode(r.completion_ids[: at + 2])
            stop = both[len(upto) - 1 : len(upto) + 1]
            if "�" in both or len(stop) < 2 or both.find(stop) != len(upto) - 1 or stop in upto:
                continue
            got = engine.generate([request], SamplingParams(max_tokens=24, stop=(stop, "never there")), 0)[0]
            assert got.finish_reason is FinishReason.STOP
            assert got.completion_ids == r.completion_ids[: at + 2], "the stop string is kept, nothing after it is"
            assert stop in got.text
            tried += 1
            break
    assert tried >= 2, "the random model gave no usable example"


def test_the_same_seed_gives_the_same_completion_and_another_does_not(model: Any, tokenizer: Any) -> None:
    engine = NativeEngine(model, tokenizer, 128)
    again = [engine.generate(requests(), SamplingParams(max_tokens=12), 0) for _ in range(2)]
    assert [r.completion_ids for r in again[0]] == [r.completion_ids for r in again[1]]
    other = [RolloutRequest(r.prompt_id, r.prompt_ids, r.group_index, r.seed + 1) for r in requests(group=1)]
    assert engine.generate(other, SamplingParams(max_tokens=12), 0)[0].completion_ids != again[0][0].completion_ids


def test_prompts_are_read_once(model: Any, tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = NativeEngine(model, tokenizer, 128)
    shapes: list[tuple[int, ...]] = []
    logits = engine.logits
    monkeypatch.setattr(engine, "logits", lambda ids, *rest: (shapes.append(tuple(ids.shape)), logits(ids, *rest))[1])
    engine.generate(requests(group=6), SamplingParams(max_tokens=3, min_tokens=3), 0)
    assert shapes == [(3, 8), (18, 1), (18, 1)]


def test_finished_sequences_leave_the_batch(model: Any, tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = NativeEngine(often_ending(model), tokenizer, 128)
    rows: list[int] = []
    logits = engine.logits
    monkeypatch.setattr(engine, "logits", lambda ids, *rest: (rows.append(ids.shape[0]), logits(ids, *rest))[1])
    engine.generate(requests(group=32), SamplingParams(max_tokens=40), 0)
    assert rows[-1] < rows[1] / 4


def test_looking_only_now_and_then_changes_nothing(model: Any, tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU the loop looks at what has ended only every few tokens."""
    engine = NativeEngine(often_ending(model), tokenizer, 128)
    want = engine.generate(requests(), SamplingParams(max_tokens=21), 0)
    start = Decoder.__init__

    def strided(self: Decoder, **arguments: Any) -> None:
        start(self, **arguments)
        self.stride = 8

    monkeypatch.setattr(Decoder, "__init__", strided)
    for a, b in zip(engine.generate(requests(), SamplingParams(max_tokens=21), 0), want, strict=True):
        same(a, b)


@pytest.mark.slow
@kinds
def test_waiting_requests_enter_when_others_leave(model: Any, tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ends, stop strings, early tokens without an end and limits of their own, with 5 places for 36 requests."""
    often_ending(model)
    mixed = [replace(r, max_tokens=None if i % 3 else 2 + i % 7) for i, r in enumerate(requests(group=12))]
    sampling = SamplingParams(max_tokens=16, min_tokens=3, stop=("e", "!"))
    want = NativeEngine(model, tokenizer, 128).generate(mixed, sampling, 0)
    engine = NativeEngine(model, tokenizer, 128, max_concurrent=5)
    rows: list[int] = []
    logits = engine.logits
    monkeypatch.setattr(engine, "logits", lambda ids, *rest: (rows.append(len(ids)), logits(ids, *rest))[1])
    got = engine.generate(mixed, sampling, 0)
    for a, b in zip(got, want, strict=True):
        same(a, b)
    assert {r.finish_reason for r in got} == set(FinishReason) - {FinishReason.ERROR}
    assert max(rows) == 5
    forwards = len(rows)
    rows.clear()
    monkeypatch.setattr(decode, "growing", lambda _: False)
    engine.generate(mixed, sampling, 0)
    if model.config.model_type in ("llama", "gpt2"):
        assert forwards < 0.9 * len(rows), "places are filled while others are still decoding"
    else:
        assert forwards == len(rows), "a cache that nothing can be put into is emptied first"


def test_a_request_may_have_fewer_tokens(model: Any, tokenizer: Any) -> None:
    """A lower limit of its own cuts a completion off and changes none of its tokens."""
    engine = NativeEngine(model, tokenizer, 14)
    sampling = SamplingParams(max_tokens=12, min_tokens=12)
    limited = [replace(r, max_tokens=6 if len(r.prompt_ids) == 8 else 20) for r in requests()]
    rollouts = engine.generate([replace(r, max_tokens=6) for r in requests()], sampling, 0)
    assert {(len(r.completion_ids), r.finish_reason) for r in rollouts} == {(6, FinishReason.LENGTH)}
    with pytest.raises(ConfigError, match="with max_tokens 12 that is 15"):
        engine.generate(limited, sampling, 0)
    for r in NativeEngine(model, tokenizer, 128).generate(limited, sampling, 0):
        short = next(s for s in rollouts if s.seed == r.seed)
        assert r.completion_ids[:6] == short.completion_ids
        assert len(r.completion_ids) == (6 if len(r.prompt_ids) == 8 else 12)


def test_modes_are_restored(model: Any, tokenizer: Any) -> None:
    model.train()
    model.model.layers[0].eval()
    NativeEngine(model, tokenizer, 128).generate(requests(group=1), SamplingParams(max_tokens=2), 0)
    assert model.training
    assert not model.model.layers[0].training
    assert model.model.layers[1].training


def test_what_does_not_fit_is_refused_before_any_compute(
    model: Any, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = NativeEngine(model, tokenizer, 20)
    monkeypatch.setattr(engine, "logits", lambda *_: pytest.fail("computed something"))
    with pytest.raises(ConfigError, match=r"'p1' has 8 tokens; with max_tokens 13 that is 21.*20"):
        engine.generate(requests(), SamplingParams(max_tokens=13), 0)
    with pytest.raises(ConfigError, match="no tokens"):
        engine.generate(requests([()]), SamplingParams(max_tokens=3), 0)


def test_the_frequencies_are_the_models(model: Any, tokenizer: Any) -> None:
    """4000 first tokens against the model's own distribution: a chi-square over the tokens that matter."""
    n = 4000
    reqs = [RolloutRequest("p", PROMPTS[0], i, seed=i) for i in range(n)]
    drawn = NativeEngine(model, tokenizer, 128, max_concurrent=n).generate(reqs, SamplingParams(max_tokens=1), 0)
    with torch.no_grad():
        p = torch.softmax(model(input_ids=torch.tensor([PROMPTS[0]])).logits[0, -1], -1).numpy().astype(float)
    counts = np.bincount([r.completion_ids[0] for r in drawn], minlength=len(p))
    big = p * n >= 5
    expected = np.append(p[big] * n, p[~big].sum() * n)
    observed = np.append(counts[big], counts[~big].sum())
    chi2 = float(((observed - expected) ** 2 / expected).sum())
    degrees = len(expected) - 1
    assert chi2 < degrees + 4 * (2 * degrees) ** 0.5
