"""Official checkpoints and published ONNX files: the catalogue, and verified, resumable downloads."""
