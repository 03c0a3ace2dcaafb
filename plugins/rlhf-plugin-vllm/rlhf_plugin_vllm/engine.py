"""The engine: requests to replicas, weights to replicas, and nothing from the policy object but its tokenizer."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from rlhf_core.config import BuildContext, ConfigError, RlhfError, UserError
from rlhf_core.distributed import ShardedForward
from rlhf_core.models import ModelError
from rlhf_core.rollouts import Rollout, RolloutRequest, SamplingParams
from rlhf_plugin_native.engine import NativeEngine
from rlhf_plugin_vllm.answers import body_of, rollout_of, spans_of
from rlhf_plugin_vllm.canary import Canary, Sent, compute_dtype
from rlhf_plugin_vllm.checks import check_sampling, never_sampled
from rlhf_plugin_vllm.config import VllmConfig
from rlhf_plugin_vllm.connect import connect, frozen_weights
from rlhf_plugin_vllm.fleet import Fleet
from rlhf_plugin_vllm.replica import Replica, adapter_name, serving_dtype
from rlhf_plugin_vllm.sharing import BorrowedFleet, RankVersion, borrows, on_all_ranks
from rlhf_plugin_vllm.sync_costs import SyncCosts
from rlhf_plugin_vllm.sync_folder import make_sync_folder
from rlhf_plugin_vllm.transport import transport_of
from rlhf_plugin_vllm.weight_files import Published, WeightFiles


class VllmEngine:
    """Samples with vLLM servers that are sent the policy's weights."""

    on_ended: Callable[[int], None] | None = None

    def __init__(self, config: VllmConfig, ctx: BuildContext) -> None:
        policy = ctx.policy
        native = NativeEngine(policy.model, policy.tokenizer, policy.context)
        if native.modality is not None:
            raise ModelError(
                "a policy whose tokens are not text cannot be sampled with vLLM", fix="--set rollout=native"
            )
        self.check_request, self.context, self.ends = native.check, native.context, native.ends
        self.never = never_sampled(native.without_text)
        self.tokenizer, self.tolerance = policy.tokenizer, config.canary_tolerance
        self.in_flight = config.in_flight
        """Weights may come while completions are sampled, which go on with them."""
        self.dtype = compute_dtype(policy.model)
        sampling = getattr(getattr(ctx.config, "trainer", None), "sampling", None)
        self._sent: tuple[Published, Mapping[str, torch.Tensor]] | None = None
        self._syncs = 0
        self._report: dict[str, Any] = ctx.report
        row: dict[str, Any] = {}
        self._report["vllm"], self._costs = row, SyncCosts(row)
        self.sync_metrics = self._costs.metrics
        """``sync/bytes`` and ``sync/seconds``, for the metrics of a step."""
        self._start: float | None = None
        divided = isinstance(ctx.strategy, ShardedForward)
        folder = make_sync_folder(config.sync_dir, ctx.strategy, shared=divided)
        hashed = config.chosen_transport() == "files"
        self.files = WeightFiles(policy.model, config.sync_dir, config.bucket_mib, folder, hashed=hashed)
        self._transport = transport_of(config, ctx)
        try:
            self._borrows = borrows(config.urls, ctx.rank)
            frozen = {} if self._borrows else frozen_weights(policy.model, self.files, divided=divided)
            device = ctx.strategy.device if divided else None
            temperature = 1.0 if sampling is None else sampling.temperature
            self.canary = Canary(policy, native.context, temperature, frozen, device)
            replicas = connect(config, ctx, self.files, self.dtype, self.context)
            for replica in replicas:
                replica.transport = self._transport
            self.files.dtype = serving_dtype(replicas)
            self.dtype = next((r.dtype for r in replicas if r.dtype != "float32"), self.dtype)
        except BaseException:
            self.files.close()
            raise
        self.needs_ranks = 0 < len(config.urls) < ctx.world_size
        """Ranks share servers: each version is handed over by all of them together."""
        self._ranks: Any = ctx.strategy
        fleet, check = (BorrowedFleet, self._ask_one) if self._borrows else (Fleet, self.check_replica)
        self.fleet = fleet(replicas, check, config.retries, config.max_concurrent, in_flight=self.in_flight)
        row["servers"] = self.fleet.counts
        if self.in_flight:
            row["in_flight"] = {"completions": 0, "of_several_versions": 0}

    def update_weights(self, version: int, tensors: Mapping[str, torch.Tensor]) -> None:

        def hand_over() -> None:
            start = time.monotonic()
            published = self.files.write(version, tensors)
            self._sent = (published, tensors)
            self._publish(published, start)

        self._on_all_ranks(version, hand_over)

    def use_ranks(self, ranks: Any) -> None:
        """Take the collectives of the thread that hands over the next version; where :attr:`needs_ranks`."""
        self._ranks = ranks

    def write_weights(self, version: int, weights: Mapping[str, torch.Tensor]) -> Published:
        """Write a version of a policy that is divided among ranks, for the servers of all; rank 0 alone calls it."""
        self._start = time.monotonic()
        return self.files.write(version, weights)

    def take_weights(self, version: int, record: Published) -> None:
        """Send a version that rank 0 has written to this rank's servers; raises as :meth:`update_weights`."""
        assert record.version == version
        start, self._start = self._start, None
        self._on_all_ranks(version, lambda: self._publish(record, time.monotonic() if start is None else start))

    def _on_all_ranks(self, version: int, hand_over: Callable[[], None]) -> None:
        """Bring a version to this rank's servers; where ranks share servers, let those without know who has it."""
        if not self.needs_ranks:
            hand_over()
            return
        rows = on_all_ranks(self._ranks, None if self._borrows else hand_over, self._version)
        if isinstance(self.fleet, BorrowedFleet):
            published = next(row.published for row in rows if row.published is not None)
            assert published.version == version
            self.fleet.follow(published, {url for row in rows for url in row.serving})
            self.files.keep(published)

    def _version(self) -> RankVersion:
        if self._borrows:
            return RankVersion(None, ())
        return RankVersion(self.files.current, tuple(replica.url for replica in self.fleet.live))

    def _ask_one(self, replica: Replica, published: Published) -> None:
        """Whether a server of another rank has a version."""
        replica.ask(self._body(self.canary.requests[0], self.canary.sampling, published), published)

    def _publish(self, published: Published, start: float) -> None:
        try:
            self.fleet.publish(published)
        except RlhfError as error:
            if self._syncs or isinstance(error, UserError):
                raise
            lora = "; for adapters they need VLLM_ALLOW_RUNTIME_LORA_UPDATING=1" if published.adapter else ""
            raise ConfigError(
                "no vLLM server took the policy's weights", why=error.why, fix=f"see why in their output{lora}"
            ) from error
        finally:
            self._sent = None
        self.files.keep(published)
        self._syncs += 1
        self._costs.add(self._transport.size(published), start)

    def check_replica(self, replica: Replica, published: Published) -> None:
        bodies = [self._body(r, self.canary.sampling, published) for r in self.canary.requests]
        answers = [replica.ask(body, published) for body in bodies]
        rollouts = [
            self._rollout(answer, request, published, replica.url)
            for answer, request in zip(answers, self.canary.requests)
        ]
        where, weights = f"vLLM at {replica.url}", self._weights_of(published)
        sent = Sent(where, replica.dtype, published.version, weights, first=self._syncs == 0)
        gap = self.canary.check(sent, rollouts, self.tolerance)
        row = self._report["vllm"]
        row["canary_largest"] = max(row["canary_largest"], gap)

    def generate(
        self, requests: Sequence[RolloutRequest], sampling: SamplingParams, policy_version: int
    ) -> list[Rollout]:
        """Sample one completion per request, in order; with ``in_flight`` by ``policy_version`` or later ones."""
        check_sampling(sampling, "trainer.sampling")
        for request in requests:
            self.check_request(request, sampling)
        if not requests:
            return []
        published = self.files.current
        newer = self.in_flight and published is not None and published.version > policy_version
        if published is None or (published.version != policy_version and not newer):
            has = "none" if published is None else f"version {published.version}"
            raise RlhfError(
                f"the vLLM servers were asked for version {policy_version} of the policy and sent {has}",
                fix="call update_weights before generate, as WeightSync does",
            )
        bodies = [self._body(request, sampling, published) for request in requests]
        answers = self.fleet.ask_all(bodies, published, self.on_ended)
        rollouts = [self._rollout(answer, request, published, url) for (answer, url), request in zip(answers, requests)]
        if self.in_flight:
            counts = self._report["vllm"]["in_flight"]
            counts["completions"] += len(rollouts)
            counts["of_several_versions"] += sum(len(r.versions) > 1 for r in rollouts)
        return rollouts

    def _weights_of(self, published: Published) -> Mapping[str, torch.Tensor]:
        """Those being sent, or read back for a server that comes back later, or with the version before."""
        sent = self._sent
        return sent[1] if sent is not None and sent[0] is published else self.files.read(published)

    def _body(self, request: RolloutRequest, sampling: SamplingParams, published: Published) -> dict[str, Any]:
        name = adapter_name(published, one_name=self.in_flight) if published.adapter else None
        return body_of(request, sampling, self.ends, name, self.never)

    def _rollout(self, answer: Any, request: RolloutRequest, published: Published, url: str) -> Rollout:
        spans = spans_of(answer) if self.in_flight else ()
        return rollout_of(answer, request, published.version, self.ends, self.tokenizer, url, spans)

    def close(self) -> None:
        """Let servers by address go, end those of the run, remove the files; idempotent."""
        self.fleet.close()
        self.files.close()
