"""Training: base checkpoints, critic warm-up, and the reinforcement-learning loop with exact resume."""
