"""Every random stream of a job, named, so that adding one never shifts another.

A stream is a function of (seed, name): evaluation draws from its own streams, which is why how often a run
is validated cannot change what it learns.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch


def stream_seed(seed: int, *names: str | int) -> int:
    """A 63-bit seed for the stream ``names`` of ``seed``."""
    text = "/".join([str(seed), *map(str, names)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def numpy_stream(seed: int, *names: str | int) -> np.random.Generator:
    """A NumPy generator for the stream."""
    return np.random.default_rng(stream_seed(seed, *names))


def torch_stream(seed: int, *names: str | int, device: str = "cpu") -> torch.Generator:
    """A torch generator for the stream."""
    import torch

    return torch.Generator(device=device).manual_seed(stream_seed(seed, *names))


def fix_threads(threads: int) -> None:
    """Fix the thread count and deterministic kernels of this process (another count gives other bits)."""
    import torch

    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(True, warn_only=True)
