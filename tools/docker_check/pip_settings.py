"""The caller's pip settings, for a pip in another root: a configuration file, and the files and folders that it names.

Understands what `pip config list` says and nothing of what the settings mean.
"""

import ast
import configparser
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

PRECEDENCE = ("global", "user", "site", ":env:")  # weakest first


@dataclass(frozen=True, slots=True)
class PipSettings:
    """A folder to be seen in the other root at its own path, and which folders beside it."""

    file: Path  # pip.conf
    folders: tuple[Path, ...]


def collect(folder: Path) -> PipSettings:
    """Write the settings into `folder`, with a copy of each file that they name."""
    listed = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    settings = [(name, str(ast.literal_eval(value))) for name, _, value in (line.partition("=") for line in listed)]
    settings.sort(key=lambda setting: PRECEDENCE.index(setting[0].partition(".")[0]) if _general(setting[0]) else -1)
    config = configparser.RawConfigParser()
    folders: dict[Path, None] = {}
    for name, value in settings:
        variant, _, key = name.partition(".")
        section = "global" if _general(name) else variant
        words = []
        for word in value.split():
            path = Path(url2pathname(urlsplit(word).path)) if word.startswith("file:") else Path(word)
            if path.is_absolute() and path.is_dir():
                # An index refers to files beside it.
                folders[path.parent if word.startswith("file:") else path] = None
            elif path.is_absolute() and path.is_file():
                word = str(shutil.copy(path, folder / f"{len(list(folder.iterdir()))}-{path.name}"))
            words.append(word)
        if not config.has_section(section):
            config.add_section(section)
        config.set(section, key, "\n".join(words))
    file = folder / "pip.conf"
    with file.open("w") as written:
        config.write(written)
    return PipSettings(file, (folder, *folders))


def _general(name: str) -> bool:
    """Whether a setting is for all of pip's commands and not for one of them, such as `install`."""
    return name.partition(".")[0] in PRECEDENCE
