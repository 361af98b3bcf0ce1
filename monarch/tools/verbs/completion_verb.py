"""monarch completion: what makes a shell complete its words."""

from __future__ import annotations

import argparse

from monarch.tools import json_output

NAME = "completion"
LINE = "print what makes bash, zsh or fish complete monarch's words"
TEXT = """\
Prints a few lines of shell. A shell that runs them completes verbs, options, and pids, ranks, meshes, jobs and contexts when
Tab is pressed. It asks this program for them, which needs the package argcomplete: pip install 'pymonarch[completion]'

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
    script = argcomplete.shellcode(["monarch"], shell=options.shell)
    if options.shell == "zsh":
        script = _with_completions(script)
    if options.json:
        from monarch.tools.documents import CompletionScript

        return json_output.end(CompletionScript(shell=options.shell, script=script))
    print(script, flush=True)
    return 0


def _with_completions(script: str) -> str:
    """Returns zsh's script, which loads zsh's completions first where nobody has.

    Its first line stays the first: it says which command the script is for, where that lies in a folder of completions.
    """
    first, rest = script.split("\n", 1)
    return f"{first}\n(( $+functions[compdef] )) || {{ autoload -Uz compinit && compinit -i }}\n{rest}"
