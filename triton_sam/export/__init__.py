"""Checkpoint to ONNX. Everything in here needs the export extra (torch, sam2, onnx)."""
