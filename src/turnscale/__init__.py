"""Turnscale: reproduce and audit reinforcement-learning results for multi-turn LLM agents."""

__version__ = "0.1.0"
