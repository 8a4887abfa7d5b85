"""All objects of an image, as one response or as events."""
