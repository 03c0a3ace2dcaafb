"""The engine over vLLM in the training process."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

import torch

from rlhf_core.config import BuildContext, RlhfError
from rlhf_core.distributed import ShardedForward
from rlhf_core.models import ModelError
from rlhf_core.rollouts import Rollout, RolloutRequest, SamplingParams
from rlhf_plugin_native.engine import NativeEngine
from rlhf_plugin_vllm.answers import body_of, rollout_of, versions_of
from rlhf_plugin_vllm.canary import Canary, Sent, compute_dtype
from rlhf_plugin_vllm.checks import check_sampling, never_sampled
from rlhf_plugin_vllm.colocated_config import ColocatedConfig
from rlhf_plugin_vllm.connect import frozen_weights, save_start
from rlhf_plugin_vllm.in_process import InProcess
from rlhf_plugin_vllm.sync_costs import SyncCosts
from rlhf_plugin_vllm.weight_files import WeightFiles

log = logging.getLogger("rlhf.vllm")
HERE = "vLLM in this process"


class ColocatedEngine:
    """Samples with vLLM in this process, which is given the policy's tensors; under LoRA the adapter, as files."""

    on_ended: Callable[[int], None] | None = None

    def __init__(self, config: ColocatedConfig, ctx: BuildContext) -> None:
        policy = ctx.policy
        native = NativeEngine(policy.model, policy.tokenizer, policy.context)
        if native.modality is not None:
            raise ModelError(
                "a policy whose tokens are not text cannot be sampled with vLLM", fix="--set rollout=native"
            )
        self.check_request, self.ends, self.tokenizer = native.check, native.ends, policy.tokenizer
        self.never = never_sampled(native.without_text)
        dtype = compute_dtype(policy.model)
        sampling = getattr(getattr(ctx.config, "trainer", None), "sampling", None)
        self.files = WeightFiles(policy.model, None)
        try:
            frozen = frozen_weights(policy.model, self.files, divided=isinstance(ctx.strategy, ShardedForward))
            temperature = 1.0 if sampling is None else sampling.temperature
            self.canary = Canary(policy, native.context, temperature, frozen)
            folder = self.files.folder / "model"
            empty = save_start(policy, folder, self.files)
            self.vllm = InProcess(config, folder, dtype, native.context, self.files.rank, empty=empty)
        except BaseException as error:
            self.files.close()
            if isinstance(error, RlhfError) or not isinstance(error, Exception):
                raise
            raise ModelError(
                "vLLM does not start in this process", why=f"{type(error).__name__}: {error}", fix="rollout.arguments"
            ) from error
        self.tolerance, self.dtype = config.canary_tolerance, str(self.vllm.facts["dtype"])
        self.copies_weights_as: torch.dtype = getattr(torch, self.dtype)
        self._label, self._version, self._syncs = "", -1, 0
        sleep = "between sampling and sampling" if self.vllm.sleeps else f"not there on {self.vllm.platform}"
        sleep = sleep if config.sleep else "switched off"
        log.info("vLLM in this process sleeps: %s", sleep)
        self._report = ctx.report
        self._report["vllm"] = row = {"sleep": sleep}
        self._costs = SyncCosts(row)
        self.sync_metrics = self._costs.metrics

    def update_weights(self, version: int, tensors: Mapping[str, torch.Tensor]) -> None:
        start, self._version = time.monotonic(), -1
        self._label = f"{self.files.token}:{version}"
        try:
            size = self._give(version, tensors)
        except Exception as error:
            raise RlhfError(
                f"{HERE} did not take version {version} of the weights", why=f"{type(error).__name__}: {error}"
            ) from error
        self._check(version, tensors)
        self._version, self._syncs = version, self._syncs + 1
        self._costs.add(size, start)

    def _give(self, version: int, tensors: Mapping[str, torch.Tensor]) -> int:
        """Returns the bytes that were given."""
        if not self.files.rank:
            given: list[int] = []
            self.vllm.take(self._label, self._one_by_one(self.files.all_weights(tensors), given), None)
            return sum(given)
        published = self.files.write(version, tensors)
        self.vllm.take(self._label, None, published.path)
        self.files.keep(published)
        return published.size

    def _one_by_one(self, weights: Mapping[str, torch.Tensor], given: list[int]) -> Iterator[tuple[str, torch.Tensor]]:
        """Each weight with its name, and its bytes into ``given``; none is held here."""
        for name in weights:
            for part, weight in self.files.names.split(name, weights[name].detach()).items():
                given.append(weight.numel() * self.copies_weights_as.itemsize)
                yield part, weight

    def _check(self, version: int, tensors: Mapping[str, torch.Tensor]) -> None:
        rollouts = self._sample(self.canary.requests, self.canary.sampling, version)
        sent = Sent(HERE, self.dtype, version, tensors, first=self._syncs == 0)
        gap = self.canary.check(sent, rollouts, self.tolerance)
        row = self._report["vllm"]
        row["canary_largest"] = max(row["canary_largest"], gap)

    def generate(
        self, requests: Sequence[RolloutRequest], sampling: SamplingParams, policy_version: int
    ) -> list[Rollout]:
        check_sampling(sampling, "trainer.sampling")
        for request in requests:
            self.check_request(request, sampling)
        if not requests:
            return []
        if self._version != policy_version or self.vllm.lost_weights:
            has = "none" if self._version < 0 or self.vllm.lost_weights else f"version {self._version}"
            raise RlhfError(
                f"{HERE} was asked for version {policy_version} of the policy and given {has}",
                fix="call update_weights before generate, as WeightSync does",
            )
        rollouts = self._sample(requests, sampling, policy_version)
        if self.on_ended is not None:
            self.on_ended(len(rollouts))
        return rollouts

    def _sample(self, requests: Sequence[RolloutRequest], sampling: SamplingParams, version: int) -> list[Rollout]:
        answers = self.vllm.ask([body_of(request, sampling, self.ends, None, self.never) for request in requests])
        for answer in answers:
            if (names := versions_of(answer)) != {self._label}:
                raise RlhfError(f"{HERE} sampled from {sorted(names)} instead of version {version} ('{self._label}')")
        return [
            rollout_of(answer, request, version, self.ends, self.tokenizer, "this process")
            for answer, request in zip(answers, requests)
        ]

    def release_memory(self) -> bool:
        """Let vLLM sleep until the next version; the update follows. True where it keeps no weights."""
        self.vllm.fall_asleep()
        return self.vllm.lost_weights

    def close(self) -> None:
        self.vllm.close()
        self.files.close()
