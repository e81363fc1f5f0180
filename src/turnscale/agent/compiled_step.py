"""The forward pass of :mod:`turnscale.agent.transformer` as machine code: dense models, float32, one CPU thread.

At widths of some hundred a decode step is bound by the number of tensor operations rather than by arithmetic. Here a
step is one call. Arrays are feature-major, [features, columns], a column being a row's token. Every inner loop runs
over columns and nothing is ever summed across them: what a row gets depends neither on its neighbours nor on how many
they are. Columns past the last row fill up a vector; what they hold is never read.

Products and attention go four by four: as many sums as stay in registers, and the most that the compiler turns into
vector instructions.

Every operation is rounded as written, with multiply-adds where they are asked for and nowhere else: no fast-math flag
leaves a choice to the compiler, which would make another one where the code is compiled anew or taken from disk. And
numbers that are not finite stay that. The operations and their order are those of the trainer's forward pass, whose
roundings these repeat: a multiply-add in one where the other has none would show in the ratios.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numba.extending import intrinsic
from numpy.typing import NDArray

Array = NDArray[np.float32]
Function = Callable[..., Any]


def machine_code(**options: Any) -> Callable[[Function], Function]:
    """Compile a function at its first call. The code is kept beside this file, or where that cannot be written in the
    user's own cache; where neither can, every process compiles again."""

    def decorate(function: Function) -> Function:
        try:
            made: Function = njit(cache=True, error_model="numpy", **options)(function)
        except RuntimeError as error:
            warnings.warn(f"{error}; set NUMBA_CACHE_DIR to a folder that can be written", stacklevel=2)
            made = njit(error_model="numpy", **options)(function)
        return made

    return decorate


ONE, HALF = np.float32(1.0), np.float32(0.5)
LOWEST, HIGHEST = np.float32(-87.0), np.float32(88.0)
PER_LN2, LN2_HIGH, LN2_LOW = np.float32(1 / np.log(2)), np.float32(0.693359375), np.float32(-2.12194440e-4)
TAYLOR = tuple(
    np.float32(c)
    for c in (
        1.9875691500e-4,
        1.3981999507e-3,
        8.3334519073e-3,
        4.1665795894e-2,
        1.6666665459e-1,
        5.0000001201e-1,
    )
)  # exp(r) = 1 + r + r^2 times this polynomial, on |r| <= ln 2 / 2 (Cephes)


class Weights(NamedTuple):
    """Weights of all L layers, arranged as in :class:`turnscale.agent.transformer.Layer`; absent ones are empty.

    ``cos`` and ``sin`` are [T, D / 2], ``final_gain`` is [H], ``head`` [V, H].
    """

    embedding: Array
    qkv: Array
    qkv_bias: Array
    qk_gain: Array
    out: Array
    out_bias: Array
    gate_up: Array
    gate_up_bias: Array
    down: Array
    down_bias: Array
    final_gain: Array
    head: Array
    cos: Array
    sin: Array


class Scratch(NamedTuple):
    """Flat working memory for C columns at most, B of them rows.

    Numbers in each: stream and inner H C, wide (heads + 2 kv_heads) D C and found heads D C, one and own as much for
    B columns, both 2 F C, size C, logits V B. ``scores`` is [T, B].
    """

    stream: Array
    inner: Array
    wide: Array
    found: Array
    one: Array
    own: Array
    both: Array
    size: Array
    scores: Array
    logits: Array


def _fma(context: Any, x: Any, y: Any, z: Any) -> Any:
    """x y + z, rounded once."""

    def generate(_: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.fma(*arguments)

    return z(x, y, z), generate


fma: Any = intrinsic(_fma)


@machine_code(inline="always")
def exponential(x: Any) -> Any:
    """exp(x) in float32 to 2 units in the last place, without a call, so that loops over it are vectorised."""
    x = LOWEST if x < LOWEST else x
    x = HIGHEST if x > HIGHEST else x
    power = np.floor(fma(x, PER_LN2, HALF))
    r = fma(power, -LN2_LOW, fma(power, -LN2_HIGH, x))
    p = TAYLOR[0]
    p = fma(p, r, TAYLOR[1])
    p = fma(p, r, TAYLOR[2])
    p = fma(p, r, TAYLOR[3])
    p = fma(p, r, TAYLOR[4])
    p = fma(p, r, TAYLOR[5])
    whole = np.int32(power) if power >= LOWEST * PER_LN2 - ONE else np.int32(0)  # not a number has no integer
    bits = np.int32((whole + np.int32(127)) << np.int32(23))
    return (fma(p, r * r, r) + ONE) * bits.view(np.float32)


@machine_code()
def product(weight: Array, x: Array, out: Array) -> None:
    """out = weight x, of [O, I] and [I, C]: four outputs at a time, so that what is read of x serves all four."""
    outputs, inputs = weight.shape
    columns = x.shape[1]
    for o in range(outputs):
        for c in range(columns):
            out[o, c] = 0
    for block in range(outputs // 4):
        o = 4 * block
        out0, out1, out2, out3 = out[o], out[o + 1], out[o + 2], out[o + 3]
        for four in range(inputs // 4):
            for c in range(columns):
                sum0, sum1, sum2, sum3 = out0[c], out1[c], out2[c], out3[c]
                for i in range(4):
                    here = x[4 * four + i, c]
                    sum0 = fma(weight[o, 4 * four + i], here, sum0)
                    sum1 = fma(weight[o + 1, 4 * four + i], here, sum1)
                    sum2 = fma(weight[o + 2, 4 * four + i], here, sum2)
                    sum3 = fma(weight[o + 3, 4 * four + i], here, sum3)
                out0[c], out1[c], out2[c], out3[c] = sum0, sum1, sum2, sum3
        for rest in range(o, o + 4):
            for i in range(inputs // 4 * 4, inputs):
                for c in range(columns):
                    out[rest, c] = fma(weight[rest, i], x[i, c], out[rest, c])
    for o in range(outputs // 4 * 4, outputs):
        for i in range(inputs):
            for c in range(columns):
                out[o, c] = fma(weight[o, i], x[i, c], out[o, c])


@machine_code()
def normalise(x: Array, out: Array, size: Array, floor: float) -> None:
    """out = x / sqrt(sum of squares + floor) over the features of [H, C], summed in float64."""
    features, columns = x.shape
    total = np.full(columns, np.float64(floor), np.float64)
    for h in range(features):
        for c in range(columns):
            total[c] += np.float64(x[h, c]) * np.float64(x[h, c])
    for c in range(columns):
        size[c] = np.float32(np.sqrt(total[c]))
    for h in range(features):
        for c in range(columns):
            out[h, c] = x[h, c] / size[c]


@machine_code()
def rotate(x: Array, size: Array, gain: Array, cos: Array, sin: Array, floor: float) -> None:
    """Norm (where ``gain`` [D] is not empty) and rotary embedding of one interleaved head [D, B], in place; ``cos``
    and ``sin`` are [D / 2]."""
    dim, rows = x.shape
    if gain.size:
        normalise(x, x, size, floor)
        for d in range(dim):
            for b in range(rows):
                x[d, b] *= gain[d]
    for d in range(dim // 2):
        real, imaginary = x[2 * d], x[2 * d + 1]
        for b in range(rows):
            turned = real[b] * cos[d] - imaginary[b] * sin[d]
            imaginary[b] = real[b] * sin[d] + imaginary[b] * cos[d]
            real[b] = turned


@machine_code()
def attend(
    query: Array, keys: Array, values: Array, found: Array, scores: Array, size: Array, held: int
) -> None:
    """Attention of one head's queries [D, B] over the ``held`` first positions of its keys and values
    [T, D, B or more]; found is as the query."""
    compare(query, keys, scores, held)
    softmax(scores, size, held, query.shape[1])
    collect(scores, values, found, held)


@machine_code()
def compare(query: Array, keys: Array, scores: Array, held: int) -> None:
    """scores [T, B] = query keys over the features, four positions at a time, for :func:`attend`."""
    dim, rows = query.shape
    for t in range(held):
        for b in range(rows):
            scores[t, b] = 0
    for block in range(held // 4):
        t = 4 * block
        scores0, scores1, scores2, scores3 = scores[t], scores[t + 1], scores[t + 2], scores[t + 3]
        keys0, keys1, keys2, keys3 = keys[t], keys[t + 1], keys[t + 2], keys[t + 3]
        for four in range(dim // 4):
            for b in range(rows):
                sum0, sum1, sum2, sum3 = scores0[b], scores1[b], scores2[b], scores3[b]
                for i in range(4):
                    here = query[4 * four + i, b]
                    sum0 = fma(keys0[4 * four + i, b], here, sum0)
                    sum1 = fma(keys1[4 * four + i, b], here, sum1)
                    sum2 = fma(keys2[4 * four + i, b], here, sum2)
                    sum3 = fma(keys3[4 * four + i, b], here, sum3)
                scores0[b], scores1[b], scores2[b], scores3[b] = sum0, sum1, sum2, sum3
        for rest in range(t, t + 4):
            for d in range(dim // 4 * 4, dim):
                for b in range(rows):
                    scores[rest, b] = fma(keys[rest, d, b], query[d, b], scores[rest, b])
    for t in range(held // 4 * 4, held):
        for d in range(dim):
            for b in range(rows):
                scores[t, b] = fma(keys[t, d, b], query[d, b], scores[t, b])


@machine_code()
def collect(scores: Array, values: Array, found: Array, held: int) -> None:
    """found [D, B] = scores values over the positions, four at a time, for :func:`attend`."""
    dim, rows = found.shape
    for d in range(dim):
        for b in range(rows):
            found[d, b] = 0
    for block in range(held // 4):
        t = 4 * block
        for d in range(dim):
            for b in range(rows):
                total = fma(scores[t, b], values[t, d, b], found[d, b])
                total = fma(scores[t + 1, b], values[t + 1, d, b], total)
                total = fma(scores[t + 2, b], values[t + 2, d, b], total)
                found[d, b] = fma(scores[t + 3, b], values[t + 3, d, b], total)
    for t in range(held // 4 * 4, held):
        for d in range(dim):
            for b in range(rows):
                found[d, b] = fma(scores[t, b], values[t, d, b], found[d, b])


@machine_code()
def softmax(x: Array, size: Array, held: int, rows: int) -> None:
    """Over the first ``held`` of [T, B or more], in place, summed in float64."""
    for b in range(rows):
        size[b] = x[0, b]
    for t in range(1, held):
        for b in range(rows):
            size[b] = max(size[b], x[t, b])
    for t in range(held):
        for b in range(rows):
            x[t, b] = exponential(x[t, b] - size[b])
    total = np.zeros(rows, np.float64)
    for t in range(held):
        for b in range(rows):
            total[b] += np.float64(x[t, b])
    for b in range(rows):
        size[b] = np.float32(1.0 / total[b])
    for t in range(held):
        for b in range(rows):
            x[t, b] *= size[b]


@machine_code()
def swiglu(gate: Array, up: Array) -> None:
    """gate = silu(gate) up, over [F, C] each."""
    for f in range(gate.shape[0]):
        one, other = gate[f], up[f]
        for c in range(one.shape[0]):
            one[c] = one[c] / (ONE + exponential(-one[c])) * other[c]


@machine_code()
def add(x: Array, inner: Array) -> None:
    """x += inner, [H, C] each."""
    for h in range(x.shape[0]):
        for c in range(x.shape[1]):
            x[h, c] += inner[h, c]


@machine_code()
def shift(x: Array, bias: Array) -> None:
    """x += bias: [H, C] and [H], which may be empty."""
    for h in range(bias.shape[0]):
        for c in range(x.shape[1]):
            x[h, c] += bias[h]


@machine_code()
def scale(x: Array, gain: Array) -> None:
    """x *= gain: [H, C] and [H]."""
    for h in range(x.shape[0]):
        for c in range(x.shape[1]):
            x[h, c] *= gain[h]


@machine_code()
def place(x: Array, out: Array) -> None:
    """Copy [H, B] to the first columns of [H, B or more]."""
    for h in range(x.shape[0]):
        for b in range(x.shape[1]):
            out[h, b] = x[h, b]


@machine_code()
def forward(
    weights: Weights,
    scratch: Scratch,
    keys: Array,
    values: Array,
    length: int,
    ids: Any,
    eps: float,
    heads: int,
) -> None:
    """Append the tokens [n, B] at ``length``; the logits [V, B] after the last one are left in the scratch.

    Keys and values are [L, kv_heads, T, D, B or more].
    """
    n, rows = ids.shape
    columns = n * rows
    layers, kv_heads, _, dim, _ = keys.shape
    width, inner_width = weights.embedding.shape[1], weights.down.shape[2]
    group, all_heads = heads // kv_heads, heads + 2 * kv_heads
    floor, head_floor = np.float32(width * eps), np.float32(dim * eps)
    size = scratch.size
    x = scratch.stream[: width * columns].reshape(width, columns)
    inner = scratch.inner[: width * columns].reshape(width, columns)
    wide = scratch.wide[: all_heads * dim * columns].reshape(all_heads * dim, columns)
    found = scratch.found[: heads * dim * columns].reshape(heads * dim, columns)
    one = scratch.one[: all_heads * dim * rows].reshape(all_heads, dim, rows)
    own = scratch.own[: heads * dim * rows].reshape(heads, dim, rows)
    gate = scratch.both[: inner_width * columns].reshape(inner_width, columns)
    up = scratch.both[inner_width * columns : 2 * inner_width * columns].reshape(inner_width, columns)
    both = scratch.both[: 2 * inner_width * columns].reshape(2 * inner_width, columns)
    for j in range(n):
        for b in range(rows):
            for h in range(width):
                x[h, j * rows + b] = weights.embedding[ids[j, b], h]
    for layer in range(layers):
        normalise(x, inner, size, floor)
        product(weights.qkv[layer], inner, wide)
        shift(wide, weights.qkv_bias[layer])
        for j in range(n):
            if n == 1:
                one, own = wide.reshape(all_heads, dim, rows), found.reshape(heads, dim, rows)
            else:
                pick(wide, one.reshape(all_heads * dim, rows), j)
            here = length + j
            for h in range(heads + kv_heads):
                rotate(
                    one[h], size, weights.qk_gain[layer, h], weights.cos[here], weights.sin[here], head_floor
                )
            for h in range(kv_heads):
                place(one[heads + h], keys[layer, h, here])
                place(one[heads + kv_heads + h], values[layer, h, here])
                for q in range(h * group, (h + 1) * group):
                    attend(one[q], keys[layer, h], values[layer, h], own[q], scratch.scores, size, here + 1)
            if n > 1:
                put(own.reshape(heads * dim, rows), found, j)
        product(weights.out[layer], found, inner)
        shift(inner, weights.out_bias[layer])
        add(x, inner)
        normalise(x, inner, size, floor)
        product(weights.gate_up[layer], inner, both)
        shift(both, weights.gate_up_bias[layer])
        swiglu(gate, up)
        product(weights.down[layer], gate, inner)
        shift(inner, weights.down_bias[layer])
        add(x, inner)
    last = scratch.both[: width * rows].reshape(width, rows)
    pick(x, last, n - 1)
    final = scratch.inner[: width * rows].reshape(width, rows)
    normalise(last, final, size, floor)
    scale(final, weights.final_gain)
    logits = scratch.logits[: weights.head.shape[0] * rows].reshape(weights.head.shape[0], rows)
    product(weights.head, final, logits)


@machine_code()
def pick(x: Array, out: Array, j: int) -> None:
    """out [H, B] = the j-th B columns of x."""
    rows = out.shape[1]
    for h in range(out.shape[0]):
        for b in range(rows):
            out[h, b] = x[h, j * rows + b]


@machine_code()
def put(x: Array, out: Array, j: int) -> None:
    """The j-th B columns of out = x [H, B]."""
    rows = x.shape[1]
    for h in range(x.shape[0]):
        for b in range(rows):
            out[h, j * rows + b] = x[h, b]


@machine_code()
def gather(held: Array, length: int, rows: Any, buffer: Array) -> None:
    """held [L, kv_heads, T, D, B]: what ``rows`` hold at the first ``length`` positions moves to the first places."""
    layers, kv_heads, _, dim, _ = held.shape
    count = rows.shape[0]
    for layer in range(layers):
        for h in range(kv_heads):
            for t in range(length):
                for d in range(dim):
                    line = held[layer, h, t, d]
                    for b in range(count):
                        buffer[b] = line[rows[b]]
                    for b in range(count):
                        line[b] = buffer[b]
