"""All replicas of a rank: who answers what, who is taken out, and who comes back."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Any

from rlhf_core.rollouts import EngineUnavailable
from rlhf_plugin_vllm.client import ServerGone
from rlhf_plugin_vllm.replica import Replica
from rlhf_plugin_vllm.weight_files import Published

log = logging.getLogger("rlhf.vllm")
RETRY_S = 5.0
"""Between two attempts while no server is there."""
Check = Callable[[Replica, Published], None]
"""Compares what a replica serves with a version of the weights; raises ``RlhfError`` if it is another."""


class Fleet:
    """Replicas that have the same weights. A request's place in the batch and who is there decide who answers, never
    who is free; one thread may publish while another asks."""

    def __init__(
        self, replicas: Sequence[Replica], check: Check, retries: int, per_replica: int, *, in_flight: bool = False
    ) -> None:
        self.replicas, self.check, self.per_replica = list(replicas), check, per_replica
        self.in_flight = in_flight
        self.retries = self.retries_left = retries
        self.counts = {"taken_out": 0, "brought_back": 0}
        self._newest: Published | None = None
        self._updating = threading.RLock()
        self._counting = threading.Lock()

    @property
    def live(self) -> list[Replica]:
        return [r for r in self.replicas if not r.out and not r.coming_back]

    def publish(self, published: Published) -> None:
        """Give all replicas a version; those that were taken out are tried again."""
        with self._updating:
            self._newest = published
            self._each(self.live, lambda replica: self._bring(replica, published))
            self._bring_back(published)
            self._until_one_lives()

    def ask_all(
        self, bodies: Sequence[Mapping[str, Any]], published: Published, ended: Callable[[int], None] | None = None
    ) -> list[tuple[Any, str]]:
        """The answers to requests, in order, each with the address that it came from."""
        answers: dict[int, tuple[Any, str]] = {}
        while unanswered := [n for n in range(len(bodies)) if n not in answers]:
            self._ask(unanswered, bodies, published, self._until_one_lives(), answers, ended)
        return [answers[n] for n in range(len(bodies))]

    def _ask(
        self,
        indices: Sequence[int],
        bodies: Sequence[Mapping[str, Any]],
        published: Published,
        live: Sequence[Replica],
        answers: dict[int, tuple[Any, str]],
        ended: Callable[[int], None] | None,
    ) -> None:
        """One round: what a replica that falls out owes stays open."""
        pools = [ThreadPoolExecutor(self.per_replica, thread_name_prefix="vllm") for _ in live]
        futures: dict[Future[Any], tuple[int, Replica, int]] = {}
        complete = False
        try:
            for n in indices:
                replica = live[n % len(live)]
                future = pools[n % len(live)].submit(replica.ask, bodies[n], published, or_later=self.in_flight)
                futures[future] = (n, replica, replica.starts)
            waiting = set(futures)
            while waiting:
                done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
                came = 0
                for future in done:
                    n, replica, starts = futures[future]
                    try:
                        answers[n] = (future.result(), replica.url)
                        came += 1
                    except ServerGone as error:
                        self._take_out(replica, str(error), starts)
                if came and ended is not None:
                    ended(came)
            complete = True
        finally:
            for pool in pools:
                pool.shutdown(wait=False, cancel_futures=True)
            if not complete:  # interrupted: nobody waits for the rest
                for replica in live:
                    replica.client.reopen()

    def _bring(self, replica: Replica, published: Published) -> None:
        """Weights, then the canary; a replica that fails to take them is taken out."""
        try:
            replica.take(published)
            self.check(replica, published)
        except ServerGone as error:
            self._take_out(replica, str(error))

    def _bring_back(self, published: Published) -> None:
        """Try the replicas that are out, as long as there are retries."""
        for replica in [r for r in self.replicas if r.out]:
            if self.retries_left <= 0:
                return
            self.retries_left -= 1
            replica.coming_back = True
            try:
                replica.start_again()
                with self._counting:
                    replica.put_back()
                self._bring(replica, published)
            except BaseException as error:  # of the canary, or Ctrl-C, too: it may serve nothing
                self._take_out(replica, str(error) or type(error).__name__)
                if not isinstance(error, ServerGone):
                    raise
            finally:
                replica.coming_back = False
            if not replica.out:
                self.counts["brought_back"] += 1
                log.warning("vLLM at %s is back, with version %d", replica.url, published.version)

    def _until_one_lives(self) -> list[Replica]:
        """Those that serve; while none does, use up the retries: a server by address may be about to start again."""
        while not (live := self.live):
            with self._updating:
                if self.live:
                    continue
                if self.retries_left <= 0 or self._newest is None:
                    raise self._none_left()
                time.sleep(RETRY_S)
                self._bring_back(self._newest)
        return live

    def _take_out(self, replica: Replica, reason: str, starts: int | None = None) -> None:
        """Ask it for nothing more; not for what failed before it was put back for the ``starts + 1``-th time."""
        with self._counting:
            if starts is not None and starts != replica.starts:
                return
            if not replica.out:
                self.counts["taken_out"] += 1
                left = sum(other is not replica for other in self.live)
                log.warning("vLLM at %s is taken out (%d left): %s", replica.url, left, reason)
            replica.take_out(reason)

    def _none_left(self) -> EngineUnavailable:
        rows = "\n".join(f"{r.url}: {r.out}" for r in self.replicas)
        fix = "find out from their output why servers end" if self.replicas[0].process else "start the servers again"
        return EngineUnavailable(f"no vLLM server is left, and no retry ({self.retries} were made)", why=rows, fix=fix)

    def _each(self, replicas: Sequence[Replica], work: Callable[[Replica], None]) -> None:
        """The same for several replicas at a time; the first error is raised when all have ended."""
        if len(replicas) == 1:
            work(replicas[0])
            return
        with ThreadPoolExecutor(max(1, len(replicas)), thread_name_prefix="vllm-update") as pool:
            futures = [pool.submit(work, replica) for replica in replicas]
        for future in futures:
            future.result()

    def close(self) -> None:
        for replica in self.replicas:
            replica.close()
