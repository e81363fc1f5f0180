"""Multi-turn task families behind one protocol."""
