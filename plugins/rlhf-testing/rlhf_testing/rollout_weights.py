"""Conformance of rollout engines in the weights that they sample with: sent to them, or read from the policy."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from rlhf_core.config import ComponentConfig
from rlhf_core.rollouts import Rollout, RolloutRequest, SamplingParams, VersionSpan
from rlhf_core.types.messages import fault_in_versions
from rlhf_testing.report import require

TOLERANCE = 0.02
"""Largest difference of a logprob from the policy's own forward, in nats; other kernels round differently."""
SHARE = 0.2
"""By how much of its root mean square every weight of another version differs."""
Weights = dict[str, torch.Tensor]


@dataclass(frozen=True)
class SampledRequests:
    """What an engine was asked for with version 7, and what it answered."""

    requests: Sequence[RolloutRequest]
    sampling: SamplingParams
    rollouts: Sequence[Rollout]


def trained_weights(model: torch.nn.Module) -> Weights:
    """A copy of what an engine is sent: under LoRA the adapter alone."""
    return {name: p.detach().clone() for name, p in model.named_parameters() if p.requires_grad}


def publish(engine: Any, model: Any) -> None:
    """Give an engine that holds weights of its own the policy's, as version 7."""
    if callable(getattr(engine, "update_weights", None)) and isinstance(model, torch.nn.Module):
        engine.update_weights(7, trained_weights(model))


def check_weights(config: ComponentConfig, engine: Any, model: Any, first: SampledRequests) -> None:
    """An engine samples from the weights of the version it is asked for alone, version 7 being ``model``'s."""
    if not isinstance(model, torch.nn.Module):
        return
    check_reports(config, engine, first)
    if callable(getattr(engine, "update_weights", None)):
        check_updates(config, engine, model, first)
        check_release(config, engine, model, first)
        if getattr(engine, "in_flight", False):
            check_in_flight(config, engine, model, first)
    else:
        check_follows(config, engine, model, first)


def other_weights(weights: Mapping[str, torch.Tensor]) -> Weights:
    """Every tensor moved, the same way every time."""
    random = torch.Generator().manual_seed(5)
    moved: Weights = {}
    for name, tensor in weights.items():
        size = float(tensor.float().square().mean().sqrt()) or 0.1  # an adapter's second matrix begins with zeros
        noise = torch.randn(tensor.shape, generator=random).to(tensor)
        moved[name] = tensor + SHARE * size * noise
    return moved


@contextlib.contextmanager
def weights_in(model: torch.nn.Module, weights: Mapping[str, torch.Tensor]) -> Generator[None, None, None]:
    """Other values in the policy's own parameters; afterwards those of before, bit for bit."""
    before = trained_weights(model)
    parameters = dict(model.named_parameters())
    try:
        with torch.no_grad():
            for name, tensor in weights.items():
                parameters[name].copy_(tensor)
        yield
    finally:
        with torch.no_grad():
            for name, tensor in before.items():
                parameters[name].copy_(tensor)


def logprob_gap(
    model: torch.nn.Module, rollouts: Sequence[Rollout], temperature: float, counts: Sequence[int] | None = None
) -> float:
    """Largest difference of the engine's logprobs from a trainer's, in nats, over the ``counts`` first tokens."""
    training = model.training
    model.eval()
    gaps = [0.0]
    for rollout, count in zip(rollouts, counts or [len(r.completion_ids) for r in rollouts], strict=True):
        ids = torch.tensor([[*rollout.prompt_ids, *rollout.completion_ids]], device=next(model.parameters()).device)
        with torch.inference_mode():
            logits_TV = model(ids).logits[0, len(rollout.prompt_ids) - 1 : -1].float()
        chosen_T = ids[0, len(rollout.prompt_ids) :, None]
        own_T = torch.log_softmax(logits_TV / temperature, -1).gather(-1, chosen_T)[:, 0].cpu()
        difference_T = (own_T - torch.tensor(rollout.logprobs_T)).abs()[:count]
        gaps.append(float(difference_T.max()) if count else 0.0)
    model.train(training)
    return max(gaps)


def check_updates(config: ComponentConfig, engine: Any, model: torch.nn.Module, first: SampledRequests) -> None:
    """A version of other weights, in version 8; then those of before, in version 9."""
    before = trained_weights(model)
    moved = other_weights(before)
    update(config, engine, model, 8, moved)
    rollouts = sampled(config, engine, first, 8)
    with weights_in(model, moved):
        gap = logprob_gap(model, rollouts, first.sampling.temperature)
    old = logprob_gap(model, rollouts, first.sampling.temperature)
    require(
        gap <= TOLERANCE < old,
        config,
        "after update_weights() completions are sampled from the new weights, all of them",
        f"logprobs up to {gap:.3f} nats from those of the new weights, {old:.3f} from those of the old",
        "take every tensor that is given, an output head that is tied to the embedding too, and keep none of them: "
        "the caller changes them in place",
    )
    for version in (9, *(() if getattr(engine, "in_flight", False) else (7,))):
        check_refuses(config, engine, first, version)
    update(config, engine, model, 9, before)
    same_again(config, "weights that are sent again give the completions of before", first, engine, 9)


def update(config: ComponentConfig, engine: Any, model: torch.nn.Module, version: int, weights: Weights) -> None:
    """Send weights, watch what becomes of them, and spoil them afterwards."""
    policy, given = trained_weights(model), {name: t.clone() for name, t in weights.items()}
    engine.update_weights(version, given)
    same = given.keys() == weights.keys() and all(torch.equal(given[name], t) for name, t in weights.items())
    require(same, config, "update_weights() leaves the tensors that it is given alone", "some are changed")
    after = trained_weights(model)
    same = after.keys() == policy.keys() and all(torch.equal(after[name], t) for name, t in policy.items())
    require(same, config, "update_weights() leaves the policy alone", "its parameters are changed", "load a copy")
    for tensor in given.values():
        tensor.zero_()


def sampled(config: ComponentConfig, engine: Any, first: SampledRequests, version: int) -> list[Rollout]:
    rollouts = list(engine.generate(first.requests, first.sampling, version))
    answered = {r.policy_version for r in rollouts} | {span.version for r in rollouts for span in r.versions}
    rule = "a rollout has the policy version that was asked for"
    seen = f"{len(rollouts)} rollouts of versions {sorted(answered)} instead of {version}"
    require(answered == {version} and len(rollouts) == len(first.requests), config, rule, seen)
    return rollouts


def check_refuses(config: ComponentConfig, engine: Any, first: SampledRequests, version: int) -> None:
    """Completions that would be named after weights which sampled none of them."""
    try:
        engine.generate(first.requests[:1], first.sampling, version)
    except Exception:
        return
    rule = "generate() raises where other weights are asked for than those that were sent"
    require(False, config, rule, f"version 8 was sent, and version {version} was answered", "compare the versions")


def same_again(config: ComponentConfig, rule: str, first: SampledRequests, engine: Any, version: int) -> None:
    """The completions of version 7's weights."""
    tokens = [r.completion_ids for r in sampled(config, engine, first, version)]
    wanted = [r.completion_ids for r in first.rollouts]
    different = [n for n, (a, b) in enumerate(zip(tokens, wanted)) if a != b]
    require(not different, config, rule, f"requests {different} have other completions")


def check_release(config: ComponentConfig, engine: Any, model: torch.nn.Module, first: SampledRequests) -> None:
    """Memory is given back between versions, and completions stay what they were."""
    if not callable(release := getattr(engine, "release_memory", None)):
        return
    lost = release()
    require(isinstance(lost, bool), config, "release_memory() says whether the weights went", f"{lost!r}")
    if not lost:  # the next generate takes the memory again
        rule = "after release_memory() that kept the weights, completions are those of before"
        same_again(config, rule, first, engine, 9)
    update(config, engine, model, 10, trained_weights(model))
    same_again(config, "after release_memory() and renewed weights, completions are those of before", first, engine, 10)


def check_in_flight(config: ComponentConfig, engine: Any, model: torch.nn.Module, first: SampledRequests) -> None:
    """Other weights, in versions 11 and 12, while another thread samples: spans say which tokens are whose."""
    before = trained_weights(model)
    moved, results = other_weights(before), list[Any]()
    update(config, engine, model, 11, before)
    thread = threading.Thread(target=_into(results, lambda: engine.generate(first.requests, first.sampling, 11)))
    thread.start()
    update(config, engine, model, 12, moved)
    thread.join()
    if isinstance(results[0], BaseException):
        raise results[0]
    rollouts: list[Rollout] = results[0]
    for rollout in rollouts:
        count = len(rollout.completion_ids)
        spans = rollout.versions or (VersionSpan((0, count), rollout.policy_version),)
        fault = fault_in_versions(count, rollout.policy_version, spans, rising=True)
        unknown = sorted({s.version for s in spans} - {11, 12})
        rule = "versions tile the completion, and each was sent"
        require(not fault and not unknown, config, rule, f"{fault or f'versions {unknown}'} of {spans}")
    for version, weights in ((11, before), (12, moved)):
        own = [r for r in rollouts if r.policy_version == version]
        # with weights that came while it was sampled, keys and values of earlier tokens may be the old weights'
        counts = [r.versions[0].span[1] if r.versions else len(r.completion_ids) for r in own]
        with weights_in(model, weights):
            gap = logprob_gap(model, own, first.sampling.temperature, counts)
        rule = "tokens of a version have its logprobs, also where other weights come while they are sampled"
        require(gap <= TOLERANCE, config, rule, f"up to {gap:.3f} nats from those of version {version}")
    update(config, engine, model, 13, before)
    same_again(config, "after weights in flight, weights sent again give the completions of before", first, engine, 13)


def _into(results: list[Any], call: Callable[[], Any]) -> Callable[[], None]:
    """For a thread: what it returns or raises, in a list."""

    def run() -> None:
        try:
            results.append(call())
        except BaseException as error:
            results.append(error)

    return run


def check_follows(config: ComponentConfig, engine: Any, model: torch.nn.Module, first: SampledRequests) -> None:
    """An engine that is sent nothing samples from the policy as it is at the time of the call."""
    with weights_in(model, other_weights(trained_weights(model))):
        rollouts = sampled(config, engine, first, 8)
        gap = logprob_gap(model, rollouts, first.sampling.temperature)
    rule = "without update_weights() an engine samples from the policy as it is now"
    fix = "hold ctx.policy.model itself; an engine with weights of its own has update_weights(version, tensors)"
    require(gap <= TOLERANCE, config, rule, f"after a step of the policy logprobs are up to {gap:.3f} nats apart", fix)
    same_again(config, "the same weights give the completions of before", first, engine, 9)


def check_reports(config: ComponentConfig, engine: Any, first: SampledRequests) -> None:
    if not hasattr(engine, "on_ended"):
        return
    ended: list[int] = []
    engine.on_ended = ended.append
    engine.generate(first.requests, first.sampling, 7)
    engine.on_ended = None
    count = len(first.requests)
    rule = "on_ended is told how many more completions have ended, each once"
    require(sum(ended) == count, config, rule, f"{ended} for {count} requests")
