"""The engines of a server find each other: as processes of their own, which are told things, end and are killed."""

import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from orthrus_backend.triton.roster import Presence, Roster, folder_name

SERVER = 4000000000  # no process has this id
ENGINE = """
import sys
import time
from orthrus_backend.triton.roster import Roster

roster = Roster("model", int(sys.argv[1]))
def obey(request_id):
    time.sleep(float(sys.argv[2]))
    print(request_id, flush=True)


roster.join(obey)
print("joined", flush=True)
for line in sys.stdin:
    roster.tell(line.strip())
roster.close()
"""


class Engine(subprocess.Popen[str]):
    """Says what it hears, and passes on what it is told."""

    def __init__(self, server: int = SERVER, slowness: float = 0) -> None:
        command = [sys.executable, "-c", ENGINE, str(server), str(slowness)]
        super().__init__(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.hears() == "joined"

    def tell(self, request_id: str) -> None:
        assert self.stdin is not None
        self.stdin.write(f"{request_id}\n")
        self.stdin.flush()

    def hears(self) -> str:
        assert self.stdout is not None
        return self.stdout.readline().strip()

    def leave(self) -> None:
        assert self.stdin is not None
        self.stdin.close()
        assert self.wait(10) == 0

    def die(self) -> None:
        self.kill()
        self.wait(10)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the folders of this test's servers are."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.fixture
def engine(place: Path) -> Iterator[Callable[..., Engine]]:
    with ExitStack() as started:

        def start(server: int = SERVER, slowness: float = 0) -> Engine:
            one = started.enter_context(Engine(server, slowness))
            started.callback(one.kill)
            return one

        yield start


def test_all_others_hear_of_an_id_and_those_of_other_servers_do_not(engine: Callable[..., Engine]) -> None:
    first, second, third, elsewhere = engine(), engine(), engine(), engine(SERVER + 1)
    first.tell("a")
    assert (second.hears(), third.hears()) == ("a", "a")
    second.tell("b")
    assert (first.hears(), third.hears()) == ("b", "b")
    Roster("model", SERVER + 1).tell("c")
    assert elsewhere.hears() == "c"


def test_one_that_was_killed_is_dead_until_another_joins_and_one_that_left_is_not(
    engine: Callable[..., Engine],
) -> None:
    killed, gone, left = engine(), engine(), engine()
    roster = Roster("model", SERVER)
    assert roster.presence() == Presence(alive=frozenset({killed.pid, gone.pid, left.pid}))
    killed.die()
    gone.leave()
    assert roster.presence() == Presence(alive=frozenset({left.pid}), dead=frozenset({killed.pid}))
    left.tell("nobody hears this, and it harms nobody")
    new = engine()
    assert roster.presence() == Presence(alive=frozenset({left.pid, new.pid}))


def test_one_that_does_not_listen_holds_up_nobody_for_long(engine: Callable[..., Engine]) -> None:
    frozen, other = engine(), engine()
    frozen.send_signal(signal.SIGSTOP)
    roster, begun = Roster("model", SERVER), time.monotonic()
    for n in range(13):  # Linux keeps ten unread, or as many as net.unix.max_dgram_qlen says
        roster.tell(str(n))
        assert other.hears() == str(n)
    assert time.monotonic() - begun < 10


def test_one_that_takes_its_time_hears_everything_and_holds_up_nobody(engine: Callable[..., Engine]) -> None:
    slow, roster = engine(slowness=0.05), Roster("model", SERVER)
    begun = time.monotonic()
    for n in range(100):
        roster.tell(str(n))
    assert time.monotonic() - begun < 1
    assert [slow.hears() for _ in range(100)] == [str(n) for n in range(100)]


def test_a_death_is_seen_when_the_folder_was_removed(engine: Callable[..., Engine], place: Path) -> None:
    killed, left = engine(), engine()
    roster = Roster("model", SERVER)
    roster.presence()
    (folder,) = place.iterdir()
    shutil.rmtree(folder)
    assert roster.presence() == Presence(alive=frozenset({killed.pid, left.pid}))
    killed.die()
    assert roster.presence() == Presence(alive=frozenset({left.pid}), dead=frozenset({killed.pid}))
    roster.tell("nobody hears this, and it harms nobody")


def test_files_of_others_in_the_folder_are_nobody(engine: Callable[..., Engine], place: Path) -> None:
    one = engine()
    (next(place.iterdir()) / ".nfs0001").touch()
    roster = Roster("model", SERVER)
    assert roster.presence() == Presence(alive=frozenset({one.pid}))
    roster.tell("a")
    assert one.hears() == "a"


def test_nobody_else_may_enter_the_folder(place: Path) -> None:
    Roster("model", SERVER)
    (folder,) = place.iterdir()
    assert folder.stat().st_mode & 0o777 == 0o700


def test_a_folder_that_others_may_enter_is_refused_by_name(place: Path) -> None:
    open_to_all = place / folder_name("model", SERVER)
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    with pytest.raises(PermissionError, match=str(open_to_all)):
        Roster("model", SERVER)
    open_to_all.rmdir()
    (place / "theirs").mkdir(mode=0o700)
    open_to_all.symlink_to(place / "theirs")
    with pytest.raises(OSError, match=str(open_to_all)):
        Roster("model", SERVER)


def test_the_last_one_leaves_nothing_and_what_killed_ones_left_is_removed_by_the_next(
    engine: Callable[..., Engine], place: Path
) -> None:
    first, second, elsewhere = engine(), engine(), engine(SERVER + 1)
    assert len(list(place.iterdir())) == 2
    first.leave()
    second.leave()
    (in_use,) = place.iterdir()
    elsewhere.die()
    assert list(place.iterdir()) == [in_use]
    engine().leave()
    assert list(place.iterdir()) == []
