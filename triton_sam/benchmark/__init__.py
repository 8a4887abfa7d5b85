"""What `triton-sam benchmark` measures, how it is written down, and how two results are compared."""
