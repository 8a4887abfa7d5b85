"""Small helpers that know nothing of Segment Anything."""
