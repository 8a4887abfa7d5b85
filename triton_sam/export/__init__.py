"""Export checkpoints to ONNX.

Where there is a template for a model, the weights of a checkpoint fill it, which needs only onnx (the local extra):
`templates`, `filled`, `derive`, and `checkpoint` without torch. Other models are traced with torch and the official
packages (the export extra): `tracing`, `point_graphs` and the modules of the families. `exporter` is the base of
every family's exporter, `pipeline` stages, checks and installs, `rewrites` and `guards` change graphs without
changing numbers.
"""
