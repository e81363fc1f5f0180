"""Makers of the generated pages of docs/reference."""
