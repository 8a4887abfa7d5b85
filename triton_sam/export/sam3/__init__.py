"""SAM3 tracker: load, trace, official predictor."""
