"""Attention of the decoding step, compiled for a model's heads: torch's own waits longer for keys and values.

Suffixes as in :mod:`~rlhf_plugin_native.decode_step`.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import os
import platform
import subprocess
import tempfile
import weakref
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from rlhf_core.config import ConfigError
from rlhf_plugin_native.decode_step import UNSUPPORTED, DecodeStep, agrees, decode_step

log = logging.getLogger(__name__)
_agrees: weakref.WeakKeyDictionary[torch.nn.Module, bool] = weakref.WeakKeyDictionary()
# Sums in any order, and no infinities: what -ffast-math allows, without its switch for the whole process.
FLAGS = (
    *("-O3", "-march=native", "-mprefer-vector-width=512", "-fopenmp", "-shared", "-fPIC"),
    *("-fassociative-math", "-fno-signed-zeros", "-fno-trapping-math", "-fno-math-errno", "-ffinite-math-only"),
    "-freciprocal-math",
)
BITS = {torch.float32: 32, torch.bfloat16: 16}


def compiled_step(model: Any) -> DecodeStep | None:
    """:func:`decode_step` with this attention; None, with a warning, where it cannot be or the model differs from it.

    Raises:
        ConfigError: it cannot be compiled here.
    """
    if _agrees.get(model) is False:
        return None
    try:
        assert platform.machine() == "x86_64", f"this is {platform.machine()}"
        step = decode_step(model)
        assert step is not None, "its decoding step is that of transformers"
        step.attend = compiled_attention
        if model not in _agrees:
            assert agrees(model, step), "its compiled attention computes something else"
            _agrees[model] = True
    except ConfigError:
        raise
    except UNSUPPORTED as error:
        _agrees[model] = False
        log.warning("rollout.compile has no effect on %s: %s", type(model).__name__, error)
        return None
    return step


def compiled_attention(
    q_BKGD: torch.Tensor,
    keys_BKLD: torch.Tensor,
    values_BKLD: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    scale: float = 1.0,
) -> torch.Tensor:
    """As ``F.scaled_dot_product_attention``, where the query heads of a key-value head are the rows of its query.

    Args:
        attn_mask: bool ``[B, 1, 1, L]``; each row sees a position at least.

    Raises:
        ConfigError: it cannot be compiled here.
    """
    rows, heads, group, width = q_BKGD.shape
    if q_BKGD.dtype not in BITS or platform.machine() != "x86_64":
        return F.scaled_dot_product_attention(q_BKGD, keys_BKLD, values_BKLD, attn_mask=attn_mask, scale=scale)
    attend, q_BKGD = _compiled(BITS[q_BKGD.dtype], heads, group, width), q_BKGD.contiguous()
    out_BKGD = torch.empty_like(q_BKGD)
    strides = (*keys_BKLD.stride()[:3], *values_BKLD.stride()[:3], 0 if attn_mask is None else attn_mask.stride(0))
    sizes = (ctypes.c_int64 * 9)(rows, keys_BKLD.shape[2], *strides)
    tensors = (q_BKGD, keys_BKLD, values_BKLD, out_BKGD, attn_mask)
    places = (ctypes.c_void_p(None if t is None else t.data_ptr()) for t in tensors)
    attend(*places, sizes, ctypes.c_float(scale), torch.get_num_threads())
    return out_BKGD


@functools.cache
def _compiled(bits: int, heads: int, group: int, width: int) -> Any:
    sizes = {"BITS": bits, "HEADS": heads, "GROUP": group, "WIDTH": width}
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "attention.so"
        words = [*FLAGS, *(f"-D{name}={size}" for name, size in sizes.items()), "-o", str(library)]
        compiler = os.environ.get("CXX") or "g++"
        try:
            source = Path(__file__).with_name("attention.cpp")
            subprocess.run([compiler, str(source), *words], check=True, capture_output=True, text=True)
            return ctypes.CDLL(str(library)).attend
        except (OSError, subprocess.CalledProcessError) as error:
            raise ConfigError(
                "the decoding step cannot be compiled",
                where="rollout.compile",
                why=(getattr(error, "stderr", None) or str(error)).strip().partition("\n")[0],
                fix="install a C++ compiler (g++), or leave rollout.compile out",
            ) from error
