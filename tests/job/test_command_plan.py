"""Tests of what each process of an exec_command runs, and where its output goes."""

from __future__ import annotations

import pytest

from monarch.job.commands import command_plan
from monarch.job.commands.printer import CommandPrinter
from monarch.spmd.main_program import is_python


@pytest.mark.parametrize(
    ("cmd", "words"),
    [
        (["echo", "a b", "$HOME"], ["echo", "a b", "$HOME"]),
        (["hostname"], ["hostname"]),
        (["echo $HOME"], ["bash", "-c", "echo $HOME"]),
        ("hostname", ["bash", "-c", "hostname"]),
        (["train.py"], ["train.py"]),
        (["a;b"], ["bash", "-c", "a;b"]),
    ],
)
def test_words(cmd: list[str] | str, words: list[str]) -> None:
    assert command_plan.words_of(cmd) == words


@pytest.mark.parametrize("cmd", [[], "", [""], ["  "]])
def test_no_command(cmd: list[str] | str) -> None:
    with pytest.raises(ValueError, match="cmd is empty"):
        command_plan.words_of(cmd)


@pytest.mark.parametrize("cmd", [None, 3, [1, 2], {"a": 1}, b"ls"])
def test_what_is_no_command(cmd: object) -> None:
    with pytest.raises(TypeError, match="cmd is a list of strings"):
        command_plan.words_of(cmd)  # type: ignore[arg-type]


def test_python_programs() -> None:
    assert is_python(["a.py", "x"]) and is_python(["-m", "mod"])
    assert not is_python(["python", "a.py"]) and not is_python(["bash", "-c", "a.py"]) and not is_python([])


def test_a_place_has_the_chosen_dimensions_too() -> None:
    place = command_plan.coordinates({"hosts": 1}, {"gpu": 3}, ["hosts", "gpu"])
    assert place == {"hosts": 1, "gpu": 3} and list(place) == ["hosts", "gpu"]
    assert command_plan.rank_environment(place, {"hosts": 2, "gpu": 4}) == {
        "MONARCH_RANK_hosts": "1", "MONARCH_SIZE_hosts": "2", "MONARCH_RANK_gpu": "3", "MONARCH_SIZE_gpu": "4"
    }  # fmt: skip
    assert command_plan.prefix(place) == "[hosts=1 gpu=3] "


def test_outputs_of_several_never_share_a_folder() -> None:
    place = {"hosts": 0, "gpu": 3}
    assert command_plan.output_folder("/out", place, 8) == "/out/hosts_0_gpu_3"
    assert command_plan.output_folder("/out", place, 1) == "/out"
    assert command_plan.output_folder("/out/$SUBDIR/x", place, 8) == "/out/hosts_0_gpu_3/x"
    assert command_plan.output_folder("/out/$SUBDIR", {}, 1) == "/out/rank_0"


def test_statuses_are_as_shells_say_them() -> None:
    assert [command_plan.shell_status(code) for code in (0, 7, -9, -15, -200)] == [0, 7, 137, 143, 255]


def test_one_process_is_printed_as_it_comes(capfd: pytest.CaptureFixture[str]) -> None:
    printer = CommandPrinter([None])
    printer.write(0, 1, b"50%\r")
    assert capfd.readouterr().out == "50%\r"
    printer.write(0, 2, b"no newline")
    printer.end(0)
    assert capfd.readouterr() == ("", "no newline")


def test_several_are_printed_in_whole_lines(capfd: pytest.CaptureFixture[str]) -> None:
    printer = CommandPrinter(["[0] ", "[1] "])
    printer.write(0, 1, b"a\nb")
    printer.write(1, 1, b"c\n")
    printer.write(0, 1, b"b\n\nlast")
    printer.end(0)
    printer.end(1)
    assert capfd.readouterr().out == "[0] a\n[1] c\n[0] bb\n[0] \n[0] last\n"


def test_lines_stay_whole_without_a_prefix_too(capfd: pytest.CaptureFixture[str]) -> None:
    printer = CommandPrinter(["", "> "])
    printer.write(0, 1, b"a b")
    assert capfd.readouterr().out == ""
    printer.write(0, 1, b" c\nrest")
    assert capfd.readouterr().out == "a b c\n"
    printer.write(1, 1, b"10%\r20%\r")
    assert capfd.readouterr().out == "> 10%\r> 20%\r"
    printer.end(0)
    assert capfd.readouterr().out == "rest\n"


def test_the_beginning_of_a_line_may_be_a_prompt(capfd: pytest.CaptureFixture[str]) -> None:
    """Then what follows is shown as it comes, up to the end of the line."""
    printer = CommandPrinter([("", "e> "), ""])
    printer.write(0, 1, b"whole\n")
    assert not printer.has_partial(0)
    printer.write(0, 1, b"(Pdb) ")
    assert printer.has_partial(0) and capfd.readouterr().out == "whole\n"
    printer.show_partial(0)
    printer.write(0, 1, b"c")
    assert not printer.has_partial(0) and capfd.readouterr().out == "(Pdb) c"
    printer.write(0, 1, b"\n")
    printer.write(0, 1, b"x")
    assert printer.has_partial(0) and capfd.readouterr().out == "\n"
    printer.write(0, 2, b"name: ")
    printer.show_partial(0)
    printer.end(0)
    assert capfd.readouterr() == ("x", "e> name: ")


def test_a_line_without_end_is_printed_in_parts(capfd: pytest.CaptureFixture[str]) -> None:
    printer = CommandPrinter(["> ", "> "])
    for _ in range(5):
        printer.write(0, 1, b"x" * 65536)
    assert len(capfd.readouterr().out) > 5 * 65536
