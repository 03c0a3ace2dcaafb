"""What makes the forward, the matrix products and decoding fast.

Each file has one function that callers use and a plain equivalent that computes the same slowly:

================== ================================================ ==========================================
file               fast                                             plain equivalent
================== ================================================ ==========================================
matmul             ``use_matmul_backend("onednn")``                 ``use_matmul_backend("torch")``
packing            ``packed_hidden``                                ``trunk_and_head.padded_hidden``
packing            ``select_backend``                               ``segments.attend_by_segment``
prefix_sharing     ``shared_hidden``                                ``trunk_and_head.padded_hidden``
chunked_head       ``head_logprobs``                                ``plain_head_logprobs``, same file
../with_head       ``last_token_hidden``                            ``padded_last``, same file
================== ================================================ ==========================================

Only rounding may differ between the two; ``tests/engine/test_kernels.py`` compares them. Nothing here imports from
above: only ``rlhf_core.training.functional``, torch and transformers. Which kernels a model allows, and which a run
uses, is decided in :mod:`rlhf_core.training.forward`.
"""
