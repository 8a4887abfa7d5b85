"""The session model for images."""
