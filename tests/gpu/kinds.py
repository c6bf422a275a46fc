"""What kind of work an operator is, and so which bytes and FLOPs it is charged for.

An operator of no kind fails: nothing runs on the pretended device uncharged.
"""

from __future__ import annotations

import functools
from enum import Enum

import torch


class Kind(Enum):
    FREE = "free"  # views, and memory that nothing is written to
    MATMUL = "matmul"
    ATTENTION = "attention"
    ATTENTION_BACKWARD = "attention backward"
    STREAM = "stream"  # reads each input and writes each output once: elementwise, reductions, cat
    FILL = "fill"  # does not read what it writes
    GATHER = "gather"  # reads as much of its first input as it writes
    SCATTER = "scatter"  # writes, into its first input, as much as it reads
    SORT = "sort"  # several passes over its input
    TRANSFER = "transfer"  # between main memory and the device
    FUSED = "fused"  # a kernel of the project: each input read once, each output written once


KERNELS = "dopsd"  # namespace of the project's fused operators
NAMES = {
    Kind.FREE: "empty empty_like empty_strided new_empty new_empty_strided detach alias lift_fresh"
    " _reshape_alias _unsafe_view set_ resize_ is_pinned prim_device sym_size sym_stride",
    Kind.MATMUL: "mm addmm addmm_ bmm baddbmm",
    Kind.ATTENTION: "_scaled_dot_product_flash_attention _scaled_dot_product_efficient_attention"
    " _scaled_dot_product_flash_attention_for_cpu",
    Kind.ATTENTION_BACKWARD: "_scaled_dot_product_flash_attention_backward"
    " _scaled_dot_product_efficient_attention_backward"
    " _scaled_dot_product_flash_attention_for_cpu_backward",
    Kind.STREAM: "sum mean amax amin argmax argmin max min any all prod var var_mean logsumexp norm"
    " linalg_vector_norm cumsum cumprod _softmax _log_softmax _softmax_backward_data"
    " _log_softmax_backward_data cat stack clone _to_copy flip roll repeat tril triu"
    " constant_pad_nd slice_backward select_backward native_dropout native_dropout_backward isfinite"
    " nonzero masked_select equal bincount _unique2 unique_consecutive unique_dim repeat_interleave"
    " _foreach_norm _foreach_mul_ _foreach_mul _foreach_add _foreach_add_ _foreach_lerp_"
    " _foreach_addcmul_ _foreach_addcdiv_ _foreach_sqrt _foreach_sqrt_ _foreach_div_ _foreach_div"
    " _foreach_zero_ _foreach_copy_ _foreach_sub _foreach_pow _foreach_neg_ _foreach_reciprocal_"
    " _foreach_addcdiv _foreach_addcmul _fused_adamw_ _fused_adam_ isin floor_divide floor_divide_",
    Kind.FILL: "fill_ zero_ copy_ full full_like ones ones_like zeros zeros_like new_full new_zeros"
    " new_ones arange linspace uniform_ normal_ random_ bernoulli_ rand randn randint scalar_tensor"
    " eye randperm fill _assert_async",
    Kind.GATHER: "index index_select gather embedding take _unsafe_index take_along_dim",
    Kind.SCATTER: "index_put_ index_put _index_put_impl_ scatter scatter_ scatter_add scatter_add_"
    " index_add index_add_ index_copy_ index_fill_ embedding_dense_backward masked_scatter",
    Kind.SORT: "sort topk argsort kthvalue",
    Kind.TRANSFER: "_local_scalar_dense item is_nonzero",
}
BY_NAME = {name: kind for kind, names in NAMES.items() for name in names.split()}


@functools.cache
def kind_of(func: torch._ops.OpOverload) -> Kind:
    """Return the kind of an operator.

    Raises:
        NotImplementedError: if the model does not know what it costs.
    """
    if func.namespace == KERNELS:
        return Kind.FUSED
    name = func._overloadpacket.__name__
    if name in BY_NAME:
        return BY_NAME[name]
    if func.is_view:
        return Kind.FREE
    if torch.Tag.pointwise in func.tags:
        return Kind.STREAM
    raise NotImplementedError(
        f"{func}: the pretended GPU does not know what this operator costs; add it to"
        " tests/gpu/kinds.py"
    )
