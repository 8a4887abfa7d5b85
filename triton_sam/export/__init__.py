"""Export checkpoints to ONNX.

All modules except `registry`, `exporter` and `settings` need the export extra (torch, sam2, onnx).
"""
