"""The exporter of the SAM3 tracker: it loads the official model, traces it, and provides the official predictor."""
