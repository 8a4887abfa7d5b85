"""The messages between clients and servers: requests, answers, names of tensors."""
