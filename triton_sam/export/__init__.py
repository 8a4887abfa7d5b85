"""Export checkpoints to ONNX.

Where there is a template for a model, the weights of a checkpoint fill it, which needs onnx alone (the local extra).
Other models are traced with torch and the official packages (the export extra): `tracing`, `point_graphs` and the
modules of the families.
"""
