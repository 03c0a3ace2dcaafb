"""float32 matrix products by oneDNN instead of MKL, which uses 256-bit vectors on CPUs that are not Intel's.
The processor decides, never a timing, so the same machine always gives the same run.
"""

from __future__ import annotations

import inspect
import logging
import warnings
from pathlib import Path
from typing import Any, Literal

import torch

log = logging.getLogger(__name__)
Products = Literal["auto", "torch", "onednn"]

WORTH_IT = 1 << 21
"""Multiplications below which the call costs more than it saves."""
BLOCK_ROWS = 2048
"""Rows of an accumulated product that are computed at a time, so that no second result of full size is held."""
CPUINFO = Path("/proc/cpuinfo")

_installed: list[torch.library.Library] = []


def use_matmul_backend(kind: Products) -> bool:
    """Choose which library multiplies float32 matrices on the CPU, for the whole process. Return whether oneDNN does:
    not, with a warning, where this torch does not have it or its results differ.

    Args:
        kind: ``auto`` takes oneDNN on x86 processors with AVX-512 that are not Intel's; ``torch`` leaves everything as
            torch has it, and is the plain equivalent; ``onednn`` insists.
    """
    wanted = kind == "onednn" or (kind == "auto" and _onednn_is_faster())
    if wanted == bool(_installed):
        return wanted
    if not wanted:
        _installed.pop()._destroy()
        return False
    try:
        if not _agrees():
            raise RuntimeError("its products differ from torch's")
        _installed.append(_install())
    except (RuntimeError, AttributeError, TypeError) as error:
        log.warning("oneDNN cannot be used on this machine, so torch multiplies float32 matrices: %s", error)
    return bool(_installed)


def replaced() -> bool:
    """Whether oneDNN multiplies at present."""
    return bool(_installed)


def _onednn_is_faster() -> bool:
    """Linux names the processor's vendor; elsewhere nothing is changed."""
    avx512 = torch.backends.cpu.get_cpu_capability() == "AVX512" and torch.backends.mkldnn.is_available()
    return avx512 and CPUINFO.is_file() and "GenuineIntel" not in CPUINFO.read_text()


def _product(a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    return torch.ops.mkldnn._linear_pointwise.default(a, b.t(), bias, "none", [], "")


def _worth_it(a: torch.Tensor, b: torch.Tensor) -> bool:
    """A product of float32 matrices, not of a vector, and large enough; what torch refuses is left to torch."""
    return (
        a.dtype is b.dtype is torch.float32
        and a.shape[0] > 1
        and a.shape[1] == b.shape[0]
        and a.shape[0] * a.shape[1] * b.shape[1] >= WORTH_IT
    )


def _install() -> torch.library.Library:
    """Put our kernels in place; ``addmm.out`` keeps torch's, and is what small products are done with."""
    original = torch.ops.aten.addmm.out

    def mm(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        if _worth_it(a, b):
            return _product(a, b)
        out = a.new_empty((a.shape[0], b.shape[1]))
        return original(out, a, b, beta=0, out=out)

    def mm_out(a: torch.Tensor, b: torch.Tensor, *, out: torch.Tensor) -> torch.Tensor:
        if _worth_it(a, b) and out.dtype is a.dtype and out.shape == (a.shape[0], b.shape[1]):
            return out.copy_(_product(a, b))
        return original(out.resize_(a.shape[0], b.shape[1]), a, b, beta=0, out=out)

    def addmm(c: torch.Tensor, a: torch.Tensor, b: torch.Tensor, *, beta: float = 1, alpha: float = 1) -> torch.Tensor:
        if beta == alpha == 1 and c.dim() == 1 and c.shape[0] == b.shape[1] and c.dtype is a.dtype and _worth_it(a, b):
            return _product(a, b, c)
        return original(c, a, b, beta=beta, alpha=alpha, out=a.new_empty((a.shape[0], b.shape[1])))

    def addmm_(c: torch.Tensor, a: torch.Tensor, b: torch.Tensor, *, beta: float = 1, alpha: float = 1) -> torch.Tensor:
        if beta == alpha == 1 and c.dtype is a.dtype and c.shape == (a.shape[0], b.shape[1]) and _worth_it(a, b):
            for rows_c, rows_a in zip(c.split(BLOCK_ROWS), a.split(BLOCK_ROWS), strict=True):
                rows_c.add_(_product(rows_a, b))
            return c
        return original(c, a, b, beta=beta, alpha=alpha, out=c)

    library = torch.library.Library("aten", "IMPL")
    override = {"allow_override": True} if "allow_override" in inspect.signature(library.impl).parameters else {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns about every override
        for name, kernel in {"mm": mm, "mm.out": mm_out, "addmm": addmm, "addmm_": addmm_}.items():
            library.impl(name, kernel, "CPU", **override)
    return library


def _agrees() -> bool:
    """Products of the layouts that models use, against torch's in float64."""
    torch_rng = torch.Generator().manual_seed(0)

    def matrix(rows: int, columns: int) -> torch.Tensor:
        return torch.randn(rows, columns, generator=torch_rng)

    wide, tall, bias = matrix(48, 320), matrix(200, 320), matrix(1, 200)[0]
    cases: list[tuple[Any, Any, Any]] = [
        (wide, tall.t(), None),
        (wide, tall.t(), bias),
        (wide, tall.t().contiguous(), None),
        (wide.t(), matrix(48, 64), None),
        (matrix(320, 48).t(), tall.t(), None),
        (wide[:, ::2], tall.t()[::2], None),
    ]
    wants = [a.double() @ b.double() + (0 if c is None else c) for a, b, c in cases]
    return all(bool((_product(*case) - want).abs().max() < 1e-3) for case, want in zip(cases, wants))
