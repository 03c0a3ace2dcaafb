"""Plain values from every rank to every other, each to the rank that it is for, over torch.distributed."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any

import torch
import torch.distributed as dist


def all_to_all_objects(
    outgoing: Sequence[Any], rank: int, device: torch.device | str, group: dist.ProcessGroup | None = None
) -> list[Any]:
    """Send one value to each rank, and return what each has sent to this one; all ranks call it together.

    Two exchanges: of sizes, then of pickled values, nothing padded. This rank's own value is returned as it is.

    Args:
        outgoing: one value for each rank.
        rank: this one.
        device: of the tensors that are exchanged: a GPU for NCCL, the CPU for gloo.
        group: of the ranks; None takes the default one.
    """
    pickled = [b"" if to == rank else pickle.dumps(value) for to, value in enumerate(outgoing)]
    sizes = [len(value) for value in pickled]
    sent_sizes = torch.tensor(sizes, dtype=torch.int64, device=device)
    received_sizes = torch.empty_like(sent_sizes)
    dist.all_to_all_single(received_sizes, sent_sizes, group=group)
    lengths: list[int] = received_sizes.tolist()
    sent = torch.frombuffer(bytearray(b"".join(pickled)), dtype=torch.uint8).to(device)
    received = torch.empty(sum(lengths), dtype=torch.uint8, device=device)
    dist.all_to_all_single(received, sent, lengths, sizes, group=group)
    data = received.cpu().numpy().tobytes()
    parts = [data[start:end] for start, end in pairwise(accumulate(lengths, initial=0))]
    return [outgoing[rank] if sender == rank else pickle.loads(part) for sender, part in enumerate(parts)]
