"""How well does a served model segment? Clicks and boxes are simulated on pictures whose objects are known.

Everything goes through the served path, client and server included. `triton-sam evaluate` is the front door, and
docs/how-to/evaluate.md says how clicks are simulated and what each figure means. Needs the `evaluate` extra.
"""
