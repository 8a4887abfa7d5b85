"""Every instance of a concept in an image: the request, the tokens of a text, and the choice of instances."""
