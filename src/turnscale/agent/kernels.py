"""Row-wise functions of the transformer with gradients written by hand.

The formula is the forward pass; automatic differentiation of it would keep more and take two to three times the
passes over memory, which is what these functions cost. Where no gradient is wanted the formula is all that runs.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


def normalise(x: Tensor, eps: float) -> Tensor:
    """x / sqrt(sum of squares + H eps) over the last dimension (H), in float32 inside.

    This is the root-mean-square norm over sqrt(H); that factor and the gain are in the matrix that follows. The
    library's rms_norm takes twice as long on small rows.
    """
    return _wanted(_Normalise, _normalise, x, eps)


def swiglu(both: Tensor) -> Tensor:
    """[..., 2 F] gate and up projections side by side -> [..., F]: silu(gate) up."""
    return _wanted(_Swiglu, _swiglu, both)


def _normalise(x: Tensor, eps: float) -> Tensor:
    return (x.float() / _size(x, eps)).to(x.dtype)


def _size(x: Tensor, eps: float) -> Tensor:
    size = torch.linalg.vector_norm(x.float(), dim=-1, keepdim=True)
    return torch.hypot(size, size.new_tensor((x.shape[-1] * eps) ** 0.5))


def _swiglu(both: Tensor) -> Tensor:
    gate, up = both.chunk(2, -1)
    return F.silu(gate) * up


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


def _wanted(function: Any, formula: Any, x: Tensor, *rest: float) -> Tensor:
    """The function where gradients are wanted, else the formula."""
    wanted = torch.is_grad_enabled() and x.requires_grad
    result: Tensor = function.apply(x, *rest) if wanted else formula(x, *rest)
    return result
