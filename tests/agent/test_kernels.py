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


@pytest.mark.parametrize("shape", [(192, 24, 56), (256, 56, 24), (128, 1, 5)])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("trained", ["all", "weight", "x"])
def test_onednn_products_and_gradients_equal_the_plain_ones(
    monkeypatch: pytest.MonkeyPatch, shape: tuple[int, int, int], biased: bool, trained: str
) -> None:
    rows, width, out = shape
    generator = torch.Generator().manual_seed(0)
    given = [torch.randn(size, generator=generator) for size in ((rows, width), (out, width), (out,))]
    wanted = {"all": (0, 1, 2), "weight": (1,), "x": (0,)}[trained]
    calls: list[int] = []
    product = kernels._product
    monkeypatch.setattr(kernels, "_product", lambda *them: (calls.append(1), product(*them))[1])
    found = []
    for least in (64, None):
        monkeypatch.setattr(kernels, "ONEDNN_ROWS", least)
        here = [one.clone().requires_grad_(place in wanted) for place, one in enumerate(given)]
        result = kernels.linear(here[0], here[1], here[2] if biased else None)
        result.backward(torch.randn(result.shape, generator=torch.Generator().manual_seed(1)))
        found.append([result.detach(), *(one.grad for one in here)])
        with torch.no_grad():
            assert torch.equal(kernels.linear(here[0], here[1], here[2] if biased else None), result)
    for one, other in zip(*found, strict=True):
        assert (one is None) == (other is None)
        if one is not None and other is not None:
            assert torch.allclose(one, other, atol=1e-4)
    products = 2 + (0 in wanted) + (1 in wanted) if torch.backends.mkldnn.is_available() else 0
    assert len(calls) == products, "oneDNN in the first round only"


@pytest.mark.parametrize(
    "rows, dtype", [(64, torch.float32), (129, torch.float32), (192, torch.float64), (192, torch.bfloat16)]
)
def test_small_or_other_products_take_the_plain_path(
    monkeypatch: pytest.MonkeyPatch, rows: int, dtype: torch.dtype
) -> None:
    monkeypatch.setattr(kernels, "_product", None)
    x, weight = torch.ones(rows, 3, dtype=dtype), torch.ones(2, 3, dtype=dtype)
    assert torch.equal(kernels.linear(x, weight), torch.full((rows, 2), 3, dtype=dtype))


def test_rows_are_filled_up_to_few_numbers_where_that_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    like = torch.zeros(1)
    expected = {1: 1, 127: 127, 128: 128, 129: 192, 1000: 1024}
    if torch.backends.mkldnn.is_available():
        assert {rows: kernels.filled(rows, like) for rows in expected} == expected
    assert kernels.filled(1000, like.double()) == 1000
    monkeypatch.setattr(kernels, "ONEDNN_ROWS", None)
    assert kernels.filled(1000, like) == 1000
