"""What makes the forward, the matrix products and decoding fast.

Each file has one function that callers use and a plain equivalent that computes the same slowly; only rounding may
differ between the two (``tests/engine/test_kernels.py``):

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
"""
