"""Export checkpoints to ONNX.

If there is a template for a model, it is filled with the checkpoint's weights, which needs only onnx (the local extra):
`templates`, `filled` and `checkpoint`. Other models are traced with torch and the official packages (the
export extra): `tracing`, `point_graphs` and the modules of the families. `exporter` is the base of every family's
exporter, `pipeline` stages, checks and installs, `rewrites` and `guards` change graphs without changing results.
"""
