"""The page at `/`, which shows iterative retrieval as it happens: its files, and the endpoints below /demo for it.

What the page may ask for is its own affair, and no API for others: the endpoints are not in /openapi.json.
"""
