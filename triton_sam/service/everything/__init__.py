"""Everything: all objects of an image, as one answer or as events."""
