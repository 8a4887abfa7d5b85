"""Train the small default model on generated scenes. Needs the `train` extra."""
