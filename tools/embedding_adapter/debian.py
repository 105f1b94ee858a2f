"""Files and descriptions of Debian packages, fetched with apt into a folder of their own; nothing is installed.

Which mirror and which release is the system's own apt configuration. Works on Debian and its relatives.
"""

import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from debian.deb822 import Deb822

from tools.embedding_adapter.pairs import Pair, one_line, shortened, unique

_SYNOPSIS = 15  # characters, at least
_SHORTEST, _LONGEST = 80, 500  # characters of a description


class DebianArchive:
    """Packages unpacked under `folder`, fetched when first asked for."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lists = folder / "apt" / "lists"
        self._options = ["-o", f"Dir::State::Lists={self._lists}", "-o", f"Dir::Cache={folder / 'apt' / 'cache'}"]
        self._options += ["-o", "Acquire::Languages=en"]

    def unpacked(self, package: str) -> Path:
        """The root folder of a package's files.

        Raises:
            RuntimeError: apt or dpkg failed; their own message is in it.
        """
        root = self._folder / "files" / package
        if not root.is_dir():
            self._update()
            downloads = self._folder / "downloads" / package
            downloads.mkdir(parents=True, exist_ok=True)
            _run(["apt-get", *self._options, "download", package], downloads)
            (archive,) = downloads.glob("*.deb")
            partial = root.with_name(f"{package}.partial")
            partial.mkdir(parents=True, exist_ok=True)
            _run(["dpkg-deb", "--extract", str(archive), str(partial)], downloads)
            partial.rename(root)
        return root

    def versions(self) -> dict[str, str]:
        """The file that each fetched package came in, which names its version."""
        return {path.parent.name: path.name for path in sorted(self._folder.glob("downloads/*/*.deb"))}

    def descriptions(self) -> list[Pair]:
        """Synopsis and first paragraph of the description of the archive's packages, grouped by source package."""
        self._update()
        packages = self._entries("binary-*_Packages", "Package", "Source")
        sources = {str(entry["Package"]): _source(entry) for entry in packages}
        pairs = []
        for entry in self._entries("i18n_Translation-en", "Package", "Description-en"):
            synopsis, _, rest = str(entry["Description-en"]).partition("\n")
            long = next(_paragraphs(rest), "")
            if len(synopsis) >= _SYNOPSIS and len(long) >= _SHORTEST and "transitional" not in synopsis.lower():
                package = str(entry["Package"])
                pairs.append(Pair(synopsis, shortened(long, _LONGEST), sources.get(package, package)))
        return list(unique(pairs))

    def _entries(self, file: str, *fields: str) -> Iterator[Deb822]:
        """These fields of each entry of the release's own lists (not of its updates) of this name."""
        for path in sorted(self._lists.glob(f"*_main_{file}*")):
            if "security" not in path.name and "updates" not in path.name:
                text = _run(["/usr/lib/apt/apt-helper", *self._options, "cat-file", str(path)], self._folder)
                yield from Deb822.iter_paragraphs(text.splitlines(), fields=list(fields), use_apt_pkg=False)

    def _update(self) -> None:
        if not self._lists.is_dir():
            for folder in (self._lists / "partial", self._folder / "apt" / "cache" / "archives" / "partial"):
                folder.mkdir(parents=True)
            _run(["apt-get", *self._options, "update"], self._folder)


def _paragraphs(long: str) -> Iterator[str]:
    """Paragraphs of a long description: lines that begin with a blank, a dot between paragraphs, lists indented."""
    for block in long.replace("\n .\n", "\n\n").split("\n\n"):
        if not any(line.startswith("  ") for line in block.splitlines()):
            yield one_line(block)


def _source(entry: Deb822) -> str:
    """The source package, without the version that may follow it."""
    return str(entry.get("Source", entry["Package"])).partition(" ")[0]


def _run(command: Sequence[str], folder: Path) -> str:
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    except FileNotFoundError:
        raise RuntimeError(f"{command[0]} is not there: the texts come from Debian packages, by apt") from None
    except subprocess.CalledProcessError as error:
        raise RuntimeError(f"{' '.join(command)}: {error.stderr.strip()}") from error
    return done.stdout
