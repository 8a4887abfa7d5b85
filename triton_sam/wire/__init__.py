"""What a client and a server say to each other: requests, answers, names of tensors."""
