"""Adapters: each lets the service speak the protocol of one other tool, see registry.py."""
