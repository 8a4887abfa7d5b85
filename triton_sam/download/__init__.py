"""The catalogue of official checkpoints, and verified downloads of checkpoints and ONNX files that can be resumed."""
