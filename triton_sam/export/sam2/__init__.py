"""SAM2.1: load, trace, official predictor."""
