"""Finds a Chromium, or says how to get one: python -m tests.gateway.chromium."""

import shutil
import sys

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
MISSING = f"no browser on PATH ({', '.join(NAMES)}); on Debian: apt-get install chromium"


def find_chromium() -> str | None:
    """The program, or None."""
    return next((found for name in NAMES if (found := shutil.which(name))), None)


if __name__ == "__main__":
    sys.exit(0 if find_chromium() else MISSING)
