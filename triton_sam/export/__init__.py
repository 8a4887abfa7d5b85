"""Checkpoint to ONNX. All but `registry`, `exporter` and `settings` needs the export extra (torch, sam2, onnx)."""
