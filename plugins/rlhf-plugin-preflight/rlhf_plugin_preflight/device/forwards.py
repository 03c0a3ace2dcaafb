"""The optimised forwards and the native engine on a device, against the model's own padded forward."""

from __future__ import annotations

import copy
import time
import warnings
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from rlhf_core.models.layers.packing import BACKENDS, Choice, UsedBackends
from rlhf_core.models.layers.trunk_and_head import compute_dtype, padded_logits
from rlhf_core.models.precision import Precision, set_precision
from rlhf_core.training.forward import ALL, PLAIN, ForwardOptions, Structure, structure
from rlhf_core.training.forward_check import NATS, Finding, Result, compare, compute, within_rounding
from rlhf_plugin_preflight.device.report import Comparison, guarded

if TYPE_CHECKING:
    from rlhf_core.models import LoadedModel
    from rlhf_core.training import TrainingSample

PROMPTS, GROUP = 2, 4
REPEATS = {"cpu": 1, "cuda": 5}


def compare_forwards(loaded: LoadedModel, device: torch.device, precision: Precision) -> Iterator[Comparison]:
    """Each optimisation alone and all together, on copies: logprobs, gradient, seconds of forward and backward."""
    model = placed(loaded, device, precision)
    samples = random_samples(loaded)
    possible = possible_here(structure(model))
    plain = compute(model, samples, 1.0, None, gradient=True)
    for name, options in _paths(possible):
        what = f"forward {precision}: {name}"
        yield from guarded(what, partial(_one_path, what, model, samples, options, plain))
    if possible.packing:
        yield from guarded(f"forward {precision}: ways to pack", partial(_each_way, precision, model, samples, plain))
    del plain
    elsewhere = possible if device.type == "cpu" else _possible_on_cpu(loaded, precision)
    for name in ALL.without(*possible.names).names:
        yield _refused(f"forward {precision}: {name}", device, getattr(elsewhere, name))
    if device.type == "cuda":
        what = f"forward {precision}: waits for the host"
        yield from guarded(what, partial(_waits, what, model, samples, possible))


def possible_here(known: Structure) -> ForwardOptions:
    """The optimisations that really run alone; ``completion_logprobs`` passes over the others."""
    return ForwardOptions(share_prefix=known.share, packing=known.pack, chunked_head=known.split)


def _possible_on_cpu(loaded: LoadedModel, precision: Precision) -> ForwardOptions:
    return possible_here(structure(placed(loaded, torch.device("cpu"), precision)))


def _refused(what: str, device: torch.device, runs_on_cpu: bool) -> Comparison:
    if runs_on_cpu:
        return Comparison(what, "differs", f"the model allows it on the CPU, and not on {device.type}")
    return Comparison(what, "not run", "this model does not allow it")


def _paths(possible: ForwardOptions) -> Iterator[tuple[str, ForwardOptions]]:
    for name in possible.names:
        yield name, possible.alone(name)
    if possible.names:
        yield "all together", replace(possible, share_prefix=possible.share_prefix or possible.packing)


def _one_path(
    what: str, model: Any, samples: Sequence[TrainingSample], options: ForwardOptions, plain: Result
) -> Iterator[Comparison]:
    device = next(model.parameters()).device
    with selected_backends() as taken:
        other = compute(model, samples, 1.0, options, gradient=True)
    finding = compare(", ".join(options.names), plain, other)
    agrees = within_rounding(finding, compute_dtype(model))
    took, plainly = _timed_pair(model, samples, options, device)
    detail = _differences(finding) + (f", attention: {', '.join(sorted(taken))}" if taken else "")
    yield Comparison(what, "agrees" if agrees else "differs", detail, took, plainly / took)


def _each_way(
    precision: Precision, model: Any, samples: Sequence[TrainingSample], plain: Result
) -> Iterator[Comparison]:
    """Packed attention by every way with one call, that which a run takes among them; none where a run takes none."""
    options = PLAIN.alone("packing")
    with selected_backends() as taken:
        forward_and_backward(model, samples, options)
    if all(choice.backend is None and not choice.refused for choice in taken.values()):
        return
    for backend in BACKENDS:
        what = f"forward {precision}: packing by {backend.name}"
        with only_backend(backend.name), selected_backends() as taken:
            forward_and_backward(model, samples, options)
            refused = [why for choice in taken.values() for why in choice.refused]
            if refused:
                yield Comparison(what, "not run", "; ".join(refused))
            else:
                yield from guarded(what, partial(_one_path, what, model, samples, options, plain))


@contextmanager
def selected_backends() -> Generator[dict[str, Choice], None, None]:
    """The backends that packed attention takes while this is entered, by name."""
    before, UsedBackends.by_name = UsedBackends.by_name, dict[str, Choice]()
    try:
        yield UsedBackends.by_name
    finally:
        UsedBackends.by_name = before


@contextmanager
def only_backend(name: str) -> Generator[None, None, None]:
    """While this is entered, no other backend with one call is taken."""
    before, UsedBackends.allowed = UsedBackends.allowed, (name,)
    try:
        yield
    finally:
        UsedBackends.allowed = before


def _waits(what: str, model: Any, samples: Sequence[TrainingSample], options: ForwardOptions) -> Iterator[Comparison]:
    yield Comparison(what, "measured", f"{host_synchronisations(model, samples, options)} in a forward and backward")


def _differences(finding: Finding) -> str:
    return f"logprobs to {finding.nats:.1g} nats, gradient to {finding.gradient:.1g}"


def compare_engine(loaded: LoadedModel, device: torch.device, precision: Precision) -> Iterator[Comparison]:
    """Logprobs that the native engine says it sampled with, against a plain forward over what it sampled."""
    from rlhf_core.models.layers.chunked_head import selected_logprobs
    from rlhf_core.rollouts import RolloutRequest, SamplingParams
    from rlhf_plugin_native.engine import NativeEngine

    model = placed(loaded, device, precision)
    engine = NativeEngine(model, loaded.tokenizer, loaded.context)
    samples, most = random_samples(loaded), min(32, loaded.context // 4)
    requests = [RolloutRequest(s.name, s.prompt_ids, n % GROUP, n) for n, s in enumerate(samples)]
    engine.generate(requests[:GROUP], SamplingParams(max_tokens=4), 0)  # what is found out once per model
    began = time.perf_counter()
    rollouts = engine.generate(requests, SamplingParams(max_tokens=most), 0)
    seconds = time.perf_counter() - began
    prompts, completions = [r.prompt_ids for r in rollouts], [r.completion_ids for r in rollouts]
    with torch.no_grad():
        logits_NV = padded_logits(model, prompts, completions)
    targets_N = torch.tensor([t for c in completions for t in c], device=logits_NV.device)
    plain_N = selected_logprobs(logits_NV, targets_N, 1.0).float().cpu().numpy()
    gap = float(np.abs(np.concatenate([r.logprobs_T for r in rollouts]) - plain_N).max())
    tokens = len(targets_N)
    yield Comparison(
        f"native engine {precision}",
        "agrees" if gap <= NATS[compute_dtype(model)] else "differs",
        f"sampled logprobs to {gap:.1g} nats, {tokens / seconds:,.0f} tokens/s",
        seconds,
    )


def host_synchronisations(model: Any, samples: Sequence[TrainingSample], options: ForwardOptions) -> int:
    """How often a forward and backward on a CUDA device waits for the host, as torch counts it."""
    torch.cuda.synchronize()
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            forward_and_backward(model, samples, options)
    finally:
        torch.cuda.set_sync_debug_mode(before)
    return sum("synchroniz" in str(w.message) for w in seen)


def random_samples(loaded: LoadedModel) -> list[TrainingSample]:
    """Groups of completions of different length, of tokens by chance, as long as the context allows, 96 at most."""
    from rlhf_core.training import TrainingSample

    rng, vocabulary = np.random.default_rng(0), len(loaded.tokenizer)
    longest = min(48, loaded.context // 4)
    samples: list[TrainingSample] = []
    for p in range(PROMPTS):
        prompt = tuple(rng.integers(0, vocabulary, size=longest - p).tolist())
        for g in range(GROUP):
            ids = tuple(rng.integers(0, vocabulary, size=max(1, longest * (g + 1) // GROUP)).tolist())
            ones, zeros = np.ones(len(ids), np.bool_), np.zeros(len(ids), np.float32)
            samples.append(TrainingSample(f"{p}#{g}", prompt, ids, ones, zeros))
    return samples


def placed(loaded: LoadedModel, device: torch.device, precision: Precision) -> Any:
    model = copy.deepcopy(loaded.model).to(device)
    set_precision(model, precision)
    return model


def forward_and_backward(model: Any, samples: Sequence[TrainingSample], options: ForwardOptions = PLAIN) -> None:
    from rlhf_core.training import completion_logprobs

    prompts, completions = [s.prompt_ids for s in samples], [s.completion_ids for s in samples]
    out = completion_logprobs(model, prompts, completions, **options.as_arguments)
    out.logprobs_BT.sum().backward()
    model.zero_grad(set_to_none=True)


def _timed_pair(
    model: Any, samples: Sequence[TrainingSample], options: ForwardOptions, device: torch.device
) -> tuple[float, float]:
    """Seconds of a forward and backward this way and the plain way, measured in turns."""
    seconds: dict[bool, list[float]] = {True: [], False: []}
    for _ in range(REPEATS[device.type]):
        for plain in (False, True):
            chosen = PLAIN if plain else options
            seconds[plain].append(_seconds(partial(forward_and_backward, model, samples, chosen), device))
    return float(np.median(seconds[False])), float(np.median(seconds[True]))


def _seconds(work: Callable[[], Any], device: torch.device) -> float:
    wait = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    wait()  # for what was asked of it before
    began = time.perf_counter()
    work()
    wait()
    return time.perf_counter() - began
