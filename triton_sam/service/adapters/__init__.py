"""Adapters for the protocols of other tools, one module per tool; registry.py lists them."""
