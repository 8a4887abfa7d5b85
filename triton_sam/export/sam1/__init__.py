"""The exporter of SAM1: it loads the official model, traces its graphs, and provides the official predictor."""
