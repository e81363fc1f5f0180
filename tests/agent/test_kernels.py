"""The gradients written by hand are those of the formulas."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from turnscale.agent import kernels

FUNCTIONS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]] = {
    "normalise": (lambda x: kernels.normalise(x, 1e-6), lambda x: kernels._normalise(x, 1e-6)),
    "swiglu": (kernels.swiglu, kernels._swiglu),
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("shape", [(7, 64), (3, 5, 6, 16), (1, 2)])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 30.0])
def test_gradients_equal_those_of_the_formula(name: str, shape: tuple[int, ...], scale: float) -> None:
    function, formula = FUNCTIONS[name]
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(shape, generator=generator) * scale
    wide = x.double()
    outcome = []
    for tried in (function, formula):
        here = x.clone().requires_grad_()
        out = tried(here)
        out.backward(torch.randn(out.shape, generator=torch.Generator().manual_seed(2)))
        assert here.grad is not None
        outcome.append((out.detach(), here.grad))
    (out, grad), (expected, automatic) = outcome
    assert torch.equal(out, expected)
    assert (grad - automatic).abs().max() <= 3e-6 * automatic.abs().max() + 1e-9
    with torch.no_grad():
        assert torch.equal(function(x), expected)
    if name == "normalise":
        exact = wide / (wide.square().sum(-1, keepdim=True) + x.shape[-1] * 1e-6).sqrt()
        assert (out - exact).abs().max() < 1e-6


@pytest.mark.parametrize("name", FUNCTIONS)
def test_bfloat16_gradients_have_its_type(name: str) -> None:
    function, formula = FUNCTIONS[name]
    x = torch.randn(5, 32, generator=torch.Generator().manual_seed(1)).bfloat16()
    grads = []
    for tried in (function, formula):
        here = x.clone().requires_grad_()
        tried(here).sum().backward()
        assert here.grad is not None and here.grad.dtype == torch.bfloat16
        grads.append(here.grad.float())
    assert (grads[0] - grads[1]).abs().max() <= 0.03 * grads[1].abs().max()


def test_a_zero_row_has_a_finite_gradient() -> None:
    x = torch.zeros(2, 8, requires_grad=True)
    kernels.normalise(x, 1e-6).sum().backward()
    assert x.grad is not None and torch.isfinite(x.grad).all()
