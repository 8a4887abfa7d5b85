"""The export of SAM-HQ, and its official predictor. Prompts and most of the code are SAM1's."""
