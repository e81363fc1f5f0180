"""Where the credit of a batch lies: dead gradients and the mass of each turn. Logged for every method."""

from __future__ import annotations

from torch import Tensor

from turnscale.batch import TurnBatch

TURNS_LOGGED = 12


def credit_shares(advantages: Tensor, batch: TurnBatch) -> dict[str, float]:
    """Shares read from the advantages before normalisation.

    Args:
        advantages: [B, T].
        batch: the batch they belong to.

    Returns:
        ``dead_gradient_share``: share of action tokens whose advantage is exactly 0.
        ``advantage_mass_turn_<t>``: share of the summed |A| that lies on turn t, for the first turns.
    """
    mask = batch.action_mask
    size = advantages.abs()[mask].double()
    turn = batch.turn[mask]
    metrics = {"dead_gradient_share": float((size == 0).double().mean()) if len(size) else 0.0}
    total = float(size.sum())
    if total > 0:
        mass = size.new_zeros(int(turn.max()) + 1).index_add(0, turn, size) / total
        for index, share in enumerate(mass[:TURNS_LOGGED].tolist()):
            metrics[f"advantage_mass_turn_{index}"] = share
    return metrics
