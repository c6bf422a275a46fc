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
FOREACH = "norm mul mul_ add add_ sub pow lerp_ addcmul addcmul_ addcdiv addcdiv_ sqrt sqrt_ div"
FOREACH += " div_ zero_ copy_ neg_ reciprocal_"
REDUCTIONS = "sum mean amax amin argmax argmin max min any all prod var var_mean logsumexp norm"
REDUCTIONS += " linalg_vector_norm cumsum cumprod aminmax equal bincount nonzero masked_select"
REDUCTIONS += " _unique2 unique_consecutive unique_dim nll_loss_forward nll_loss_backward"
REDUCTIONS += " log_sigmoid_forward log_sigmoid_backward masked_fill_"
STREAMS = "_softmax _safe_softmax _log_softmax _softmax_backward_data _log_softmax_backward_data"
STREAMS += " cat stack clone _to_copy flip roll repeat repeat_interleave tril triu constant_pad_nd"
STREAMS += (
    " slice_backward select_backward native_dropout native_dropout_backward isin floor_divide"
)
STREAMS += " floor_divide_ _fused_adamw_ _fused_adam_"
COLLECTIVES = "c10d"  # between GPUs: not modelled
NAMES = {
    Kind.FREE: "empty empty_like empty_strided new_empty new_empty_strided detach alias lift_fresh"
    " _reshape_alias _unsafe_view set_ resize_",
    Kind.MATMUL: "mm addmm addmm_ bmm baddbmm",
    Kind.ATTENTION: "_scaled_dot_product_flash_attention _scaled_dot_product_efficient_attention"
    " _scaled_dot_product_flash_attention_for_cpu",
    Kind.ATTENTION_BACKWARD: "_scaled_dot_product_flash_attention_backward"
    " _scaled_dot_product_efficient_attention_backward"
    " _scaled_dot_product_flash_attention_for_cpu_backward",
    Kind.STREAM: " ".join([STREAMS, REDUCTIONS, *(f"_foreach_{n}" for n in FOREACH.split())]),
    Kind.FILL: "fill fill_ zero_ copy_ full full_like ones ones_like zeros zeros_like new_full"
    " new_zeros new_ones arange linspace scalar_tensor eye randperm rand randn randint uniform_"
    " normal_ random_ bernoulli_",
    Kind.GATHER: "index _unsafe_index index_select gather embedding take",
    Kind.SCATTER: "index_put_ index_put _index_put_impl_ scatter scatter_ scatter_add scatter_add_"
    " index_add index_add_ index_copy index_copy_ index_fill_ embedding_dense_backward"
    " masked_scatter",
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
    if func.namespace == COLLECTIVES:
        return Kind.FREE
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
