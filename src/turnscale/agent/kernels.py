"""Row-wise functions and products of the transformer with gradients written by hand.

The formula is the forward pass; automatic differentiation of it would keep more and take two to three times the
passes over memory, which is what the row-wise functions cost. Where no gradient is wanted the formula is all that
runs.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

# Float32 products of a multiple of so many rows, and of two such multiples at least, go to oneDNN on a CPU: it uses
# the widest instructions of any processor, where the library behind torch.mm does so on one maker's only. oneDNN
# makes a program for each shape, which costs more time than a product and half a megabyte, so only few shapes may
# reach it; and with fewer rows its fixed cost is the larger part. None is the plain path: torch.mm always.
ONEDNN_ROWS: int | None = 64


def filled(rows: int, like: Tensor) -> int:
    """The number of rows, ``rows`` at least, with which products in the type and place of ``like`` are fastest."""
    if ONEDNN_ROWS is None or rows < 2 * ONEDNN_ROWS or not _has_onednn(like):
        return rows
    return -(-rows // ONEDNN_ROWS) * ONEDNN_ROWS


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x weight^T + bias: x [N, H], weight [O, H], bias [O] -> [N, O]."""
    if not _for_onednn(x):
        return F.linear(x, weight, bias)
    return _with_gradient(_Linear, _product, x, weight, bias)


def normalise(x: Tensor, eps: float) -> Tensor:
    """x / sqrt(sum of squares + H eps) over the last dimension (H); the root in float64 on a CPU, else in float32.

    This is the root-mean-square norm over sqrt(H); that factor and the gain are in the matrix that follows. The
    library's rms_norm takes twice as long on small rows.
    """
    return _with_gradient(_Normalise, _normalise, x, eps)


def swiglu(both: Tensor) -> Tensor:
    """[..., 2 F] gate and up projections side by side -> [..., F]: silu(gate) up."""
    return _with_gradient(_Swiglu, _swiglu, both)


def _has_onednn(x: Tensor) -> bool:
    return x.dtype == torch.float32 and x.device.type == "cpu" and torch.backends.mkldnn.is_available()


def _for_onednn(x: Tensor) -> bool:
    rows = len(x)
    return (
        ONEDNN_ROWS is not None
        and x.dim() == 2
        and rows >= 2 * ONEDNN_ROWS
        and rows % ONEDNN_ROWS == 0
        and _has_onednn(x)
    )


def _product(left: Tensor, right: Tensor, bias: Tensor | None = None) -> Tensor:
    """left right^T + bias in oneDNN; without a gradient of its own."""
    out: Tensor = torch.ops.mkldnn._linear_pointwise(left, right, bias, "none", [], "")
    return out


def _normalise(x: Tensor, eps: float) -> Tensor:
    return (x.float() / _size(x, eps)).to(x.dtype)


def _size(x: Tensor, eps: float) -> Tensor:
    wide = torch.float64 if x.device.type == "cpu" else torch.float32
    size = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=wide)
    return torch.hypot(size, size.new_tensor((x.shape[-1] * eps) ** 0.5)).float()


def _swiglu(both: Tensor) -> Tensor:
    gate, up = both.chunk(2, -1)
    return F.silu(gate) * up


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return _product(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """The left factor of a product is copied when it is transposed, so the narrower one goes there."""
        x, weight = ctx.saved_tensors
        grad = grads[0]
        to_x = to_weight = to_bias = None
        if ctx.needs_input_grad[0]:
            to_x = _product(grad, weight.t())
        if ctx.needs_input_grad[1]:
            wide = grad.shape[1] > x.shape[1]
            to_weight = _product(x.t(), grad.t()).t() if wide else _product(grad.t(), x.t())
        if ctx.needs_input_grad[2]:
            to_bias = grad.sum(0)
        return to_x, to_weight, to_bias


class _Normalise(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, eps: float) -> Tensor:
        size = _size(x, eps)
        out = (x.float() / size).to(x.dtype)
        ctx.save_for_backward(out, size)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        """With y = x / s: dL/dx = (g - y <g, y>) / s."""
        out, size = ctx.saved_tensors
        grad, wide = grads[0].float(), out.float()
        along = (grad * wide).sum(-1, keepdim=True)
        return torch.addcmul(grad, wide, along, value=-1.0).div_(size).to(out.dtype), None


class _Swiglu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, both: Tensor) -> Tensor:
        ctx.save_for_backward(both)
        return _swiglu(both)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        """silu(gate) is computed again instead of kept; both gradients go straight into one tensor."""
        (both,) = ctx.saved_tensors
        gate, up = both.chunk(2, -1)
        out = torch.empty_like(both)
        to_gate, to_up = out.chunk(2, -1)
        torch.mul(grads[0], F.silu(gate), out=to_up)
        to_gate.copy_(torch.ops.aten.silu_backward(grads[0] * up, gate))
        return out


def _with_gradient(function: Any, formula: Any, *arguments: Any) -> Tensor:
    """The function where gradients are wanted, else the formula."""
    wanted = torch.is_grad_enabled() and any(
        isinstance(one, Tensor) and one.requires_grad for one in arguments
    )
    result: Tensor = function.apply(*arguments) if wanted else formula(*arguments)
    return result
