"""The commands of ``triton-sam``: each module has add_arguments(parser) and run(args), which returns the exit code."""
