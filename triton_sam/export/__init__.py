"""Checkpoint to ONNX. All but `registry`, `install` and `progress` needs the export extra (torch, sam2, onnx)."""
