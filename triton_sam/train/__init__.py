"""Train the small default model on generated scenes. This package needs the `train` extra."""
