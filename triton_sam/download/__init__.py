"""The catalogue of official checkpoints, and verified, resumable downloads of checkpoints and ONNX files."""
