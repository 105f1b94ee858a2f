"""Which tokens enter the next step. Pure Python: torch is never imported below this package."""
