"""What makes the forward, the matrix products and decoding fast.

Each file has one function that callers use and a plain equivalent that computes the same slowly:

================== ================================================ ==========================================
file               fast                                             plain equivalent
================== ================================================ ==========================================
matmul             ``use_matmul_backend("onednn")``                 ``use_matmul_backend("torch")``
packing            ``packed_hidden``                                ``padded.padded_hidden``
packing            ``select_backend``                               ``segments.attend_by_segment``
prefix_sharing     ``shared_hidden``                                ``padded.padded_hidden``
last_token         ``last_token_hidden``                            ``padded_last``, same file
chunked_head       ``head_logprobs``                                ``plain_head_logprobs``, same file
decode_step        ``decode_step``                                  ``plain_step``, same file
kv_cache           ``make_cache``                                   ``transformers.DynamicCache``
================== ================================================ ==========================================

Only rounding may differ between the two; ``tests/engine/test_kernels.py`` compares them. Nothing here imports from
above: only ``rlhf_core.training.functional``, torch and transformers. Which kernels a model allows, and which a run
uses, is decided in :mod:`rlhf_core.training.forward`.
"""
