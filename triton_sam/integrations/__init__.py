"""Modules that other programs load, each named after its program."""
