from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import monarch
from monarch.testing import LeakError, check_leaks

NOW = 0.0  # grace for what will not go by itself


def test_a_clean_block_passes() -> None:
    with check_leaks():
        read, write = os.pipe()
        os.close(read)
        os.close(write)


def test_an_open_descriptor_is_reported_with_what_it_is(tmp_path: Path) -> None:
    file = tmp_path / "left.txt"
    with pytest.raises(LeakError, match="1 thing") as caught, check_leaks(NOW):
        fd = os.open(file, os.O_CREAT | os.O_RDWR)
    os.close(fd)
    assert f"fd      {fd} -> {file}" in str(caught.value)


def test_a_running_thread_is_reported_with_where_it_is() -> None:
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait, name="left behind", daemon=True)
    with pytest.raises(LeakError, match=r"thread  left behind, at .*threading\.py:\d+ in wait"), check_leaks(NOW):
        thread.start()
    stop.set()
    thread.join()


def test_a_child_process_is_reported_with_its_command() -> None:
    command = [sys.executable, "-c", "print(flush=True), input()"]
    with pytest.raises(LeakError) as caught, check_leaks(NOW):
        child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert child.stdout is not None
        child.stdout.readline()  # it runs: just after exec the kernel may not show its command yet
    child.communicate(b"\n")
    assert f"process {child.pid}: {sys.executable} -c print(flush=True), input()" in str(caught.value)


def test_a_segment_of_the_runtime_is_reported() -> None:
    path = f"/dev/shm/monarch-test-{os.getpid()}"
    with pytest.raises(LeakError) as caught, check_leaks(NOW):
        Path(path).touch()
    os.unlink(path)
    assert f"segment {path}" in str(caught.value)


def test_a_segment_of_another_living_process_is_not() -> None:
    path = f"/dev/shm/monarch-test-1-{os.urandom(4).hex()}x"
    with check_leaks(NOW):
        Path(path).touch()
    os.unlink(path)


def test_sockets_of_this_process_are_reported_and_those_of_others_are_not(tmp_path: Path) -> None:
    parent = tmp_path / f"monarch-{os.getuid()}"
    monarch.configure(runtime_dir=str(tmp_path))
    with pytest.raises(LeakError) as caught, check_leaks(NOW):
        for name, pid in (("mine", os.getpid()), ("another", 1)):
            (parent / name).mkdir(parents=True)
            (parent / name / "pid").write_text(str(pid))
            (parent / name / "x.0").touch()
    text = str(caught.value)
    assert f"socket  {parent}/mine/x.0" in text
    assert "another" not in text


def test_what_is_still_closing_is_waited_for() -> None:
    going = threading.Event()
    thread = threading.Thread(target=going.wait, daemon=True)
    with check_leaks(grace=30):
        thread.start()
        threading.Timer(0.01, going.set).start()


def test_what_was_there_before_is_no_leak() -> None:
    read, write = os.pipe()
    with check_leaks(NOW):
        os.write(write, b"x")
    os.close(read)
    os.close(write)


def test_an_exception_of_the_block_passes_unchecked() -> None:
    with pytest.raises(KeyError), check_leaks(NOW):
        fds = os.pipe()
        raise KeyError
    for fd in fds:
        os.close(fd)
