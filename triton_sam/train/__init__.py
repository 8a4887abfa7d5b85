"""Train the small default model on generated scenes (needs the `train` extra)."""
