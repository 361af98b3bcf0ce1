from __future__ import annotations

import gc
import pickle
import subprocess
import sys

import pytest

from monarch.testing import InProcessCluster, Local


def test_what_is_inside_is_the_same_object_after_pickling() -> None:
    local = Local([1, 2])
    assert pickle.loads(pickle.dumps(local)) is local


def test_a_handle_that_was_sent_lives_until_the_cluster_is_left() -> None:
    with InProcessCluster():
        with InProcessCluster():
            data = pickle.dumps(Local(["only the message knows it"]))
        gc.collect()
        assert pickle.loads(data).value == ["only the message knows it"]
    gc.collect()
    with pytest.raises(RuntimeError, match="a Local arrived that is gone"):
        pickle.loads(data)


def test_another_process_cannot_have_it() -> None:
    data = pickle.dumps(Local(1))
    program = f"import pickle; pickle.loads({data!r})"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "a Local arrived that belongs to process" in done.stderr
