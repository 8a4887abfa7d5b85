"""SAM1: load, trace, official predictor."""
