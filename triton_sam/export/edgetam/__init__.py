"""The export of EdgeTAM's image half, and transformers' EdgeTamModel as its reference."""
