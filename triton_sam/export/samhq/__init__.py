"""The export of SAM-HQ, and its official predictor. Prompts are SAM1's, and so is most of the code."""
