"""Processor time and memory of real processes."""

import subprocess
import sys
import time

import psutil

from loadtest.usage import UsageWatch

WORK = """
import time
held = bytearray(b"x") * (64 << 20)
end = time.process_time() + 0.6
while time.process_time() < end:
    pass
print(flush=True)
time.sleep(60)
"""


def test_time_of_new_processes_counts_from_their_start_and_that_of_old_ones_from_the_first_look() -> None:
    with (
        subprocess.Popen([sys.executable, "-c", WORK], stdout=subprocess.PIPE) as old,
        subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as idle,
    ):
        assert old.stdout is not None
        old.stdout.readline()
        family = [psutil.Process(old.pid), psutil.Process(idle.pid)]
        watch = UsageWatch(lambda: family)
        with subprocess.Popen([sys.executable, "-c", WORK], stdout=subprocess.PIPE) as new:
            family.append(psutil.Process(new.pid))
            assert new.stdout is not None
            new.stdout.readline()
            usage = watch.finish()
            new.kill()
        old.kill()
        idle.kill()
    assert 0.6 <= usage.cpu_seconds < 1.5
    assert 128 << 20 < usage.peak_pss < 400 << 20
    assert usage.driver_cpu_seconds < usage.seconds + 1


def test_a_process_that_has_gone_is_no_fault() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        family = [psutil.Process(process.pid)]
        watch = UsageWatch(lambda: family)
        process.wait()
        time.sleep(0.01)
        assert watch.finish().peak_pss >= 0
