"""Direct preference optimisation (Rafailov et al. 2023, eq. 7). Suffix: ``_B`` pairs."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from rlhf_plugin_grpo.functional.masked import masked_sum
from rlhf_plugin_grpo.functional.responses import get_response_log_probs, tokenize_prompt_and_output


def dpo_loss(
    chosen_B: torch.Tensor,
    rejected_B: torch.Tensor,
    ref_chosen_B: torch.Tensor,
    ref_rejected_B: torch.Tensor,
    beta: float,
) -> torch.Tensor:
    r""":math:`-\log\sigma(\beta[(\log\pi_w - \log\pi_l) - (\log\pi^{ref}_w - \log\pi^{ref}_l)])`, ``[B]``.

    From the responses' summed log-probabilities; no gradient is taken through the reference's. log 2 where policy and
    reference agree.
    """
    return -F.logsigmoid(beta * ((chosen_B - rejected_B) - (ref_chosen_B - ref_rejected_B).detach()))


def compute_per_instance_dpo_loss(
    lm: Any,
    lm_ref: Any,
    tokenizer: Any,
    beta: float,
    prompt: str,
    response_chosen: str,
    response_rejected: str,
    *,
    append_eos: bool = True,
) -> torch.Tensor:
    """:func:`dpo_loss` of one pair, from texts: a scalar with gradient in ``lm`` and none in ``lm_ref``.

    ``prompt`` is formatted as the policy is to see it, and both responses continue it; ``append_eos`` closes them with
    the tokenizer's end token, as the trainers do.
    """
    end = tokenizer.eos_token if append_eos and tokenizer.eos_token else ""
    batch = tokenize_prompt_and_output([prompt] * 2, [response_chosen + end, response_rejected + end], tokenizer)
    mask_BT = batch["response_mask"]

    def summed(model: Any) -> torch.Tensor:
        device = next(model.parameters()).device
        ids_BT, labels_BT = batch["input_ids"].to(device), batch["labels"].to(device)
        log_probs_BT = get_response_log_probs(model, ids_BT, labels_BT)["log_probs"]
        return masked_sum(log_probs_BT, mask_BT.to(device), dim=-1)

    ours_B = summed(lm)
    with torch.no_grad():
        reference_B = summed(lm_ref).to(ours_B.device)
    return dpo_loss(ours_B[0], ours_B[1], reference_B[0], reference_B[1], beta)
