"""The routes of the service: v0 (the contract of 2024), v1, videos, large, and live (the WebSocket of the page)."""
