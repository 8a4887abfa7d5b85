"""The session model for videos."""
