"""The exporter of SAM2.1: it loads the official model, traces its graphs, and provides the official predictor."""
