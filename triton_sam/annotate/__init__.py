"""Annotates many images: sources, prompts, a folder of results with which an interrupted run continues, and writers."""
