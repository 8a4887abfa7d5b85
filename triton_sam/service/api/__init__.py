"""The routes of the service: the contract of 2024 (v0), the modern one (v1), the page's WebSocket (live)."""
