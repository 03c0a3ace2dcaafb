"""float32 matrix products by torch's default (MKL) and by oneDNN, in 10^9 operations per second of one core.

Shapes of SmolLM2-135M: rows x inputs x outputs; 32 rows is a decoding step, 512 rows a micro-batch of the update.
"""

from __future__ import annotations

import time

import torch

from rlhf_core.models.layers.matmul import use_matmul_backend
from scripts.bench._processor import least_seconds

LAYERS = {"projection": (576, 576), "up": (576, 1536), "down": (1536, 576), "head": (576, 49152)}


def operations_per_second(rows: int, inputs: int, outputs: int) -> dict[str, float]:
    """Forward product, gradient of the input and gradient of the weight."""
    x, w, g = torch.randn(rows, inputs), torch.randn(outputs, inputs), torch.randn(rows, outputs)
    products = {"forward": lambda: x @ w.t(), "input gradient": lambda: g @ w, "weight gradient": lambda: g.t() @ x}
    return {
        name: round(2e-9 * rows * inputs * outputs / least_seconds(f, time.process_time), 1)
        for name, f in products.items()
    }


def run() -> dict[str, dict[str, float]]:
    results: dict[str, dict[str, float]] = {}
    for kind in ("torch", "onednn"):
        if use_matmul_backend(kind) == (kind == "onednn"):
            for rows in (8, 32, 512):
                for name, (inputs, outputs) in LAYERS.items():
                    if rows == 512 and name == "head":
                        continue  # the update multiplies by the head in chunks
                    results[f"{kind} {rows} x {name}"] = operations_per_second(rows, inputs, outputs)
    use_matmul_backend("torch")
    return results
