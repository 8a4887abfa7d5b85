"""Automatic masks: a grid of clicks, and the filters of the official mask generators. Pure functions, without I/O."""
