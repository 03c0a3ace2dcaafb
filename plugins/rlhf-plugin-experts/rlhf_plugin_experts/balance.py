r"""The load-balancing loss of each sequence, and metrics of the routers.

Of a sequence of T tokens that are fed (prompt and completion but its last token), E experts of which K are chosen:

.. math:: L = \frac{E}{K} \sum_i f_i P_i, \qquad f_i = \tfrac1T \#\{t : i \text{ chosen}\}, \quad
    P_i = \tfrac1T \sum_t p_{ti}

(DeepSeek-AI 2024, "DeepSeek-V3", eq. 17 to 20; p as in Fedus et al. 2021, "Switch Transformers"), the mean over layers.
It is 1 where all experts are chosen alike. The core adds sequences up as it does their losses (``trainer.reduction``).
A sequence lies wholly in one micro-batch, so that f, which has no gradient, is the same however a batch is cut.
"""

from __future__ import annotations

from typing import Any

import torch

from rlhf_core.config import ConfigError
from rlhf_core.losses import LossOutput
from rlhf_plugin_experts.watch import Layout, Routed, RouterWatch


class BalanceTerm:
    """Adds ``coefficient`` times the loss, if any, and metrics: (sum, weight)."""

    def __init__(self, watch: RouterWatch, coefficient: float) -> None:
        self.watch, self.coefficient = watch, coefficient

    def __call__(self, out: LossOutput, batch: Any) -> LossOutput:
        """The loss with the term; its shape is that of the loss, a value per token or per row."""
        layout, routed = self.watch.take()
        if layout is None or not routed or not torch.is_grad_enabled():
            return out
        metrics = {**out.metrics, **router_metrics(layout, routed)}
        if self.watch.replays:
            metrics["experts/replayed"] = self.watch.replayed
        if not self.coefficient:
            return LossOutput(out.loss, metrics)
        balance_S = sequence_balance(layout, routed)
        rows = out.loss.shape[0]
        if len(balance_S) % rows:
            raise ConfigError(
                f"model.experts.balance_loss: {len(balance_S)} sequences were read for {rows} rows of the loss",
                why="an episode whose context was rewritten is one row of several sequences",
                fix="leave model.experts.balance_loss out",
            )
        balance_B = balance_S.view(rows, -1).mean(1)  # of a pair the mean of both
        metrics["experts/balance_loss"] = (balance_S.detach().sum(), len(balance_S))
        return LossOutput(out.loss + self.coefficient * balance_B.view(-1, *[1] * (out.loss.ndim - 1)), metrics)


def sequence_balance(layout: Layout, routed: list[Routed]) -> torch.Tensor:
    """The loss of each sequence, float32 ``[S]``, with gradient."""
    from rlhf_plugin_experts.routers import probabilities

    total_S: Any = 0.0
    for router, logits_NE, chosen_NK in routed:
        p_NE = probabilities(router, logits_NE)
        f_NE = torch.zeros_like(p_NE).scatter(1, chosen_NK, 1.0)
        means = [torch.stack([_mean(x_NE, spans) for spans in layout.spans]) for x_NE in (f_NE, p_NE)]
        total_S = total_S + (means[0] * means[1]).sum(-1) * (p_NE.shape[1] / chosen_NK.shape[1])
    return total_S / len(routed)


def _mean(x_NE: torch.Tensor, spans: list[tuple[int, int]]) -> torch.Tensor:
    count = sum(stop - start for start, stop in spans)
    return torch.stack([x_NE[start:stop].sum(0) for start, stop in spans]).sum(0) / count


@torch.no_grad()
def router_metrics(layout: Layout, routed: list[Routed]) -> dict[str, tuple[Any, Any]]:
    """``experts/load_I``: share of the choices that fall on expert I (1 over their number: balanced), and the entropy
    of the routers in nats; over layers, sequences and their tokens, a prompt once for each of its completions."""
    from rlhf_plugin_experts.routers import probabilities

    logits = routed[0].logits_NE
    counts_N = torch.zeros(layout.size, device=logits.device)
    for spans in layout.spans:
        for start, stop in spans:
            counts_N[start:stop] += 1
    load_E, entropy = torch.zeros(logits.shape[1], device=logits.device), torch.zeros((), device=logits.device)
    for router, logits_NE, chosen_NK in routed:
        p_NE = probabilities(router, logits_NE)
        entropy += (-(p_NE * p_NE.clamp(min=1e-12).log()).sum(-1) * counts_N).sum()
        load_E.index_add_(0, chosen_NK.flatten(), counts_N.repeat_interleave(chosen_NK.shape[1]))
    loads = {f"experts/load_{i}": (load, load_E.sum()) for i, load in enumerate(load_E)}
    return {**loads, "experts/entropy": (entropy, counts_N.sum() * len(routed))}
