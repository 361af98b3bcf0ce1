"""monarch completion: what makes a shell complete its words."""

from __future__ import annotations

import argparse

NAME = "completion"
LINE = "print what makes bash, zsh or fish complete monarch's words"
TEXT = """\
Prints a few lines of shell. A shell that runs them completes verbs, options and the names of contexts when Tab is pressed. It
asks this program for them, which needs the package argcomplete: pip install 'pymonarch[completion]'

examples:
  monarch completion bash >> ~/.bashrc
  monarch completion zsh >> ~/.zshrc
  monarch completion fish > ~/.config/fish/completions/monarch.fish
"""


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=("bash", "zsh", "fish"), help="which shell")


def run(options: argparse.Namespace) -> int:
    try:
        import argcomplete
    except ModuleNotFoundError:
        raise ModuleNotFoundError(
            "completing words needs the package argcomplete: pip install 'pymonarch[completion]'"
        ) from None
    print(argcomplete.shellcode(["monarch"], shell=options.shell), flush=True)
    return 0
