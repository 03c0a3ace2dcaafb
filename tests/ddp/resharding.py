"""One of several ranks: writes tensors by parts, or reads parts that other numbers of ranks have written."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from rlhf_core.distributed.whole_weights import read_stored, write_sharded
from rlhf_core.types.tree import Stored

WHOLE = {
    "uneven": torch.randn(5, 7, generator=torch.Generator().manual_seed(0)),
    "fewer rows than ranks": torch.tensor([3.0]),
    "even": torch.randn(12, 3, generator=torch.Generator().manual_seed(1)),
}


def main(what: str, source: Path, target: Path) -> None:
    """Every tensor is compared bit for bit."""
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    tensors = {name: distribute_tensor(tensor, mesh, [Shard(0)]) for name, tensor in WHOLE.items()}
    if "load" in what:
        tree = {name: Stored(name, source) for name in WHOLE}
        read = read_stored(tree, lambda stored: tensors[stored.name])
        assert all(torch.equal(read[name].full_tensor(), tensor) for name, tensor in WHOLE.items())
        tensors = read
    if "save" in what:
        target.mkdir(exist_ok=True)
        write_sharded(target, tensors)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
