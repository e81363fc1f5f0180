"""The Llama / Qwen2 / Qwen3 / Qwen3-MoE layout as a function of a dictionary of weights.

One function serves decoding (merged weights, preallocated cache) and the update (weights that are differentiable
in the adapter), so the sampler and the trainer cannot disagree about the architecture. It is faster than the
module path on small models because projections are fused, norm gains are folded into the matrices that follow
them, and no mask or position bookkeeping is done: all rows start at position 0 and are padded on the right.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedConfig

from turnscale.agent.kernels import filled, linear, normalise, swiglu

# Up to this width effective weights W + s B A are cheaper than separate adapter matrices: the full weight gradient
# costs less than many small operations, and copies of the weights do not matter.
FUSED_WIDTH = 512
LAYOUTS = ("llama", "qwen2", "qwen3", "qwen3_moe")


@dataclass(frozen=True)
class Shape:
    """The numbers of the layout that its weights do not show."""

    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    eps: float
    rope_theta: float
    experts_per_token: int
    normalise_experts: bool


def unsupported(config: PreTrainedConfig) -> str | None:
    """Why ``config`` is not of this layout, or None when it is."""
    rope = getattr(config, "rope_parameters", None) or {}
    layer_types = getattr(config, "layer_types", None) or ["full_attention"]
    if config.model_type not in LAYOUTS:
        return f"architecture {config.model_type}"
    if rope.get("rope_type", "default") != "default" or rope.get("partial_rotary_factor", 1.0) != 1.0:
        return f"rotary scaling {rope}"
    if any(kind != "full_attention" for kind in layer_types) or (
        getattr(config, "use_sliding_window", False) and getattr(config, "sliding_window", None)
    ):
        return "sliding-window attention"
    if config.hidden_act not in ("silu", "swish"):
        return f"activation {config.hidden_act}"
    if getattr(config, "pretraining_tp", 1) != 1:
        return "tensor-parallel pretraining"
    return None


def worthwhile(config: PreTrainedConfig) -> bool:
    """Whether this path is the better one for a model: its layout is known and it is small."""
    return unsupported(config) is None and int(config.hidden_size) <= FUSED_WIDTH


def shape_of(config: PreTrainedConfig) -> Shape:
    """The Shape of a configuration for which :func:`unsupported` is None."""
    return Shape(
        layers=config.num_hidden_layers,
        heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
        head_dim=getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads,
        eps=config.rms_norm_eps,
        rope_theta=config.rope_parameters["rope_theta"],
        experts_per_token=getattr(config, "num_experts_per_tok", 0) or 0,
        normalise_experts=bool(getattr(config, "norm_topk_prob", False)),
    )


@dataclass(frozen=True)
class Layer:
    """One decoder layer: [out, in] matrices with the preceding norm's gain folded in, queries scaled by 1/sqrt(D).

    ``qk_gain`` is [heads + kv_heads, head_dim] or None. Dense layers have ``gate_up`` [2 F, H] and ``down``
    [H, F]; sparse ones have them with a leading expert dimension and a ``router`` [E, H]. The rows of queries and
    keys (and their gains) are in the order of :func:`interleave`.
    """

    qkv: Tensor
    qkv_bias: Tensor | None
    qk_gain: Tensor | None
    out: Tensor
    out_bias: Tensor | None
    gate_up: Tensor
    gate_up_bias: Tensor | None
    down: Tensor
    down_bias: Tensor | None
    router: Tensor | None

    def project(self, inner: Tensor) -> Tensor:
        """[N, H] -> [N, (heads + 2 kv_heads) D]: queries, keys and values side by side."""
        return linear(inner, self.qkv, self.qkv_bias)

    def merge(self, x: Tensor, attended: Tensor) -> Tensor:
        """The residual stream ``x`` [N, H] plus what the heads found, [N, heads D]."""
        return added(x, attended, self.out, self.out_bias)

    def feed(self, x: Tensor, inner: Tensor, shape: Shape) -> Tensor:
        """The residual stream ``x`` [N, H] plus the feed-forward part of ``inner``, dense or of experts."""
        if self.router is not None:
            return x + mixture(inner, self, shape)
        both = linear(inner, self.gate_up, self.gate_up_bias)
        return added(x, swiglu(both), self.down, self.down_bias)


class Block(Protocol):
    """What the forward pass asks of a decoder layer: of one :class:`Layer`, or of several policies' at once."""

    @property
    def qk_gain(self) -> Tensor | None: ...
    def project(self, inner: Tensor) -> Tensor: ...
    def merge(self, x: Tensor, attended: Tensor) -> Tensor: ...
    def feed(self, x: Tensor, inner: Tensor, shape: Shape) -> Tensor: ...


class Held(Protocol):
    """What the forward pass asks of keys and values: of one :class:`Cache`, or of several policies' at once."""

    @property
    def length(self) -> int: ...
    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor: ...
    def advance(self, n: int) -> None: ...


@dataclass(frozen=True)
class Network:
    """Embedding [V, H], layers, final gain [H], output matrix [V, H] and rotations [T, D / 2] (complex64)."""

    shape: Shape
    embedding: Tensor
    layers: tuple[Block, ...]
    final_gain: Tensor
    head: Tensor
    rotation: Tensor


def build(shape: Shape, weights: Mapping[str, Tensor], max_len: int) -> Network:
    """Arrange weights named as in the transformers state dict. Differentiable in them; copies, never aliases."""
    layers = []
    scale = shape.head_dim**-0.5
    root = weights["model.norm.weight"].shape[0] ** 0.5  # the factor normalise leaves out
    for index in range(shape.layers):
        prefix = f"model.layers.{index}."

        def get(name: str, prefix: str = prefix) -> Tensor | None:
            return weights.get(prefix + name)

        gain = weights[prefix + "input_layernorm.weight"] * root
        dim = shape.head_dim
        parts = [weights[f"{prefix}self_attn.{n}_proj.weight"] for n in "qkv"]
        qkv = torch.cat([interleave(parts[0], dim), interleave(parts[1], dim), parts[2]])
        biases = [get(f"self_attn.{n}_proj.bias") for n in "qkv"]
        bias = _cat([None if b is None else interleave(b, dim) for b in biases[:2]] + biases[2:])
        q_gain, k_gain = get("self_attn.q_norm.weight"), get("self_attn.k_norm.weight")
        qk_gain = None
        if q_gain is not None and k_gain is not None:
            # scale and the norm's factor sqrt(D) cancel on the queries
            q_gain, k_gain = interleave(q_gain, dim), interleave(k_gain, dim) / scale
            qk_gain = torch.cat([q_gain.expand(shape.heads, -1), k_gain.expand(shape.kv_heads, -1)])
        else:
            rows = torch.ones(len(qkv), dtype=qkv.dtype, device=qkv.device)
            rows[: shape.heads * shape.head_dim] = scale
            qkv, bias = qkv * rows[:, None], None if bias is None else bias * rows
        mlp_gain = weights[prefix + "post_attention_layernorm.weight"] * root
        router = get("mlp.gate.weight")
        if router is None:
            gate_up = torch.cat([weights[prefix + f"mlp.{n}_proj.weight"] for n in ("gate", "up")])
            down = weights[prefix + "mlp.down_proj.weight"]
            mlp_bias = [get(f"mlp.{n}_proj.bias") for n in ("gate", "up")]
        else:
            gate_up = weights[prefix + "mlp.experts.gate_up_proj"]
            down = weights[prefix + "mlp.experts.down_proj"]
            mlp_bias = [None, None]
        layers.append(
            Layer(
                qkv=qkv * gain,
                qkv_bias=bias,
                qk_gain=qk_gain,
                out=weights[prefix + "self_attn.o_proj.weight"],
                out_bias=get("self_attn.o_proj.bias"),
                gate_up=gate_up * mlp_gain,
                gate_up_bias=_cat(mlp_bias),
                down=down,
                down_bias=get("mlp.down_proj.bias"),
                router=None if router is None else router * mlp_gain,
            )
        )
    embedding = weights["model.embed_tokens.weight"]
    head = weights.get("lm_head.weight", embedding)
    half = torch.arange(0, shape.head_dim, 2, device=embedding.device, dtype=torch.float32) / shape.head_dim
    angles = torch.arange(max_len, device=embedding.device).float()[:, None] * shape.rope_theta**-half
    return Network(
        shape,
        embedding,
        tuple(layers),
        weights["model.norm.weight"] * root,
        head,
        torch.polar(torch.ones_like(angles), angles),
    )


def interleave(rows: Tensor, dim: int) -> Tensor:
    """Rows of heads of ``dim`` in the order 0, D/2, 1, D/2 + 1, ...: what a rotation turns together lies together.

    A pair is then one complex number and the rotary embedding one product. Queries and keys are reordered alike,
    so their products stay what they were.
    """
    return rows.unflatten(0, (-1, 2, dim // 2)).transpose(1, 2).reshape(rows.shape)


class Cache:
    """Preallocated keys and values per layer for up to ``batch`` rows; slot = position for every row.

    Keys are kept transposed, [B, kv_heads, head_dim, max_len], which is the order a single query reads them in.
    """

    def __init__(self, network: Network, batch: int, max_len: int) -> None:
        shape = network.shape
        like = network.embedding
        dims = (shape.layers, batch, shape.kv_heads)
        self.keys = torch.empty((*dims, shape.head_dim, max_len), dtype=like.dtype, device=like.device)
        self.values = torch.empty((*dims, max_len, shape.head_dim), dtype=like.dtype, device=like.device)
        self.length = 0

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Attention of new queries [B, heads, n, D] over what is held and over their own keys and values."""
        return attention(query, *self.append(layer, key, value))

    def advance(self, n: int) -> None:
        """Count the n tokens per row that every layer has appended by now as held."""
        self.length += n

    def append(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Store [B, kv_heads, n, head_dim] at the current length and return all keys and values so far."""
        rows, end = key.shape[0], self.length + key.shape[2]
        keys, values = self.keys[layer, :rows], self.values[layer, :rows]
        keys[..., self.length : end] = key.transpose(2, 3)
        values[:, :, self.length : end] = value
        return keys[..., :end].transpose(2, 3), values[:, :, :end]

    def keep(self, rows: Tensor) -> None:
        """Go on with ``rows`` ([n] long, n at most the batch): what they hold moves to the first n places."""
        for held in (self.keys[..., : self.length], self.values[..., : self.length, :]):
            held[:, : len(rows)] = held[:, rows]


def hidden_states(
    network: Network, ids: Tensor, cache: Held | None = None, at: Tensor | None = None
) -> Tensor:
    """[B, n] long -> [B, n, H]: the normalised hidden states (without the final gain) of ``ids``.

    Without a cache the rows start at position 0; with one they continue at its length, which grows by n. ``at``
    [N] long, places in the flattened ids, asks for those only, [N, H]: what follows the last layer's attention is
    not computed for the others. Without a cache, rows of padding fill the products up; they are cut off again.
    """
    shape = network.shape
    batch, n = ids.shape
    tokens = batch * n
    rows = filled(tokens, network.embedding) if cache is None else tokens
    start = 0 if cache is None else cache.length
    rotation = network.rotation[start : start + n, None]
    rotated = shape.heads + shape.kv_heads
    x = network.embedding[F.pad(ids.flatten(), (0, rows - tokens))]
    for index, layer in enumerate(network.layers):
        qkv = layer.project(normalise(x, shape.eps))[:tokens].view(batch, n, -1, shape.head_dim)
        qk, value = qkv[:, :, :rotated], qkv[:, :, rotated:].transpose(1, 2)
        if layer.qk_gain is not None:
            qk = normalise(qk, shape.eps) * layer.qk_gain
        qk = rotate(qk, rotation).transpose(1, 2)
        query, key = qk[:, : shape.heads], qk[:, shape.heads :]
        if cache is None:
            attended = attention(query, key, value)
        else:
            attended = cache.attend(index, query, key, value)
        attended = attended.transpose(1, 2).reshape(tokens, -1)
        if at is not None and layer is network.layers[-1]:
            tokens, rows = len(at), filled(len(at), x)
            x, attended = x[F.pad(at, (0, rows - tokens))], attended[at]
        attended = F.pad(attended, (0, 0, 0, rows - tokens)) if rows > tokens else attended
        x = layer.merge(x, attended)
        x = layer.feed(x, normalise(x, shape.eps), shape)
    if cache is not None:
        cache.advance(n)
    found = normalise(x, shape.eps)[:tokens]
    return found.view(batch, n, -1) if at is None else found


def rotate(x: Tensor, rotation: Tensor) -> Tensor:
    """The rotary embedding of interleaved heads [..., D]; ``rotation`` [..., D / 2] is complex."""
    pairs = torch.view_as_complex(x.float().unflatten(-1, (-1, 2)))
    return torch.view_as_real(pairs * rotation).flatten(-2).to(x.dtype)


def added(x: Tensor, inner: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x + inner weight^T + bias: x [N, H], inner [N, F], weight [H, F]."""
    return x + linear(inner, weight, bias)


def attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Causal grouped-query attention. query [B, heads, n, D]; key, value [B, kv_heads, m, D], m >= n -> as query.

    The query carries the factor 1 / sqrt(D) already and the last one sees all m keys. One query per row needs no
    mask: its group becomes the rows of one product.
    """
    batch, heads, n, dim = query.shape
    kv_heads, m = key.shape[1:3]
    if n == 1:
        grouped = query.reshape(batch, kv_heads, heads // kv_heads, dim)
        weights = torch.matmul(grouped, key.transpose(2, 3))
        return torch.matmul(weights.float().softmax(-1).to(value.dtype), value).view(batch, heads, 1, dim)
    mask = None
    if m > n:
        mask = torch.ones(n, m, dtype=torch.bool, device=query.device).tril(m - n)
    return F.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, is_causal=mask is None, scale=1.0, enable_gqa=kv_heads != heads
    )


def mixture(x: Tensor, layer: Layer, shape: Shape) -> Tensor:
    """[N, H] -> [N, H]: SwiGLU experts of one sparse layer; each token goes to its top experts only."""
    assert layer.router is not None
    probabilities = F.linear(x, layer.router).float().softmax(-1)
    share, chosen = probabilities.topk(shape.experts_per_token, dim=-1)
    if shape.normalise_experts:
        share = share / share.sum(-1, keepdim=True)
    share = share.to(x.dtype)
    result = torch.zeros_like(x)
    for expert in range(layer.router.shape[0]):
        token, slot = (chosen == expert).nonzero(as_tuple=True)
        if len(token):
            inner = swiglu(linear(x[token], layer.gate_up[expert]))
            out = linear(inner, layer.down[expert]) * share[token, slot, None]
            result = result.index_add(0, token, out)
    return result


def logits(network: Network, hidden: Tensor) -> Tensor:
    """[..., H] normalised hidden states -> [..., V] in float32."""
    return linear(hidden * network.final_gain, network.head).float()


def _cat(biases: list[Tensor | None]) -> Tensor | None:
    present = [bias for bias in biases if bias is not None]
    return torch.cat(present) if present else None
