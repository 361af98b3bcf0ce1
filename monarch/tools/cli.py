"""The command `monarch`: what is done from a shell rather than from a program.

    monarch worker   serves this machine as a host until a client shuts it down
    monarch secret   makes a job's secret
    monarch certs    makes a job's certificates
    verbs            the other commands, in monarch.tools.verbs:
        apply, run, exec, shell, kill, context                    jobs, and commands on their hosts
        status, stacks, doctor, debug, query, metrics, profile, tui, dashboard, logs
                                                                  looking into a program that runs
        replay                                                    an actor that was recorded, once more
        completion                                                for the shell
        demo, init                                                a look at it, and a project to begin from
    no verb          shows what runs here, and what to do next

Exit codes are in monarch.tools.exit_codes. `--json` is every verb's: the result, or why there is none, as JSON on stdout.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NoReturn

from monarch._linux import private_files, terminal
from monarch.job import modules
from monarch.job.worker_launch import TLS, new_secret
from monarch.tools import certs, exit_codes, json_output, verbs, worker_stdin
from monarch.tools.verbs import shell_verb

shell_on_job = shell_verb.shell_on_job


def __getattr__(name: str) -> Any:
    """Finds `load_current_job` here as well; importing it loads what most verbs do without."""
    if name == "load_current_job":
        from monarch.job import load_current_job

        return load_current_job
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


TRUST_ALL = "trust_all_connections"
SECRET_FILE = "MONARCH_SECRET_FILE"

_NEAR = (
    0.75  # how much alike a word has to be to one that may be meant: `stat` and `status` are, `serve` and `secret` not
)

# Exceptions whose text needs no class name in front of it.
_SELF_EXPLAINING = (OSError, ValueError, ModuleNotFoundError)

_TOP = """\
One Python script drives a cluster of processes. This command does what belongs in a shell.

examples:
  monarch demo                                      what this can do, in a few seconds
  monarch init my_project                           a project that runs, to begin from
  monarch run --nproc-per-node 8 train.py           run a program on every rank, as torchrun does
  monarch apply cluster.job                         start a job, an object in cluster.py, and keep its hosts
  monarch exec --all --stream nvidia-smi            a command on all of them
  monarch status                                    what they are doing, and who waits for whom
  monarch kill                                      give them back
  monarch secret ~/.job-secret                      make the secret that all hosts of a job share
  monarch worker --address 'tcp://*:26600'          serve this machine as a host
  monarch certs ./job-certs --host node1 --host node2
  monarch worker --help                             more about one command

--json, of every command: the result as JSON on stdout, one document a line; an error as well, with its exit code.
How a coding agent drives a cluster with these is in SKILL.md, beside the package's tools:
  python -c 'import monarch.tools.cli as c, pathlib; print(pathlib.Path(c.__file__).with_name("SKILL.md"))'
"""

_CERTS = """\
Makes a certificate authority for one job, and one certificate with its key that all hosts and clients of the job
use, each as server and as client. The certificate names every --host, this machine and localhost.

  ca.pem        the authority: what the others' certificates are checked against   (not secret)
  ca-key.pem    its key: signs further certificates; not needed to run             (keep it or delete it)
  host.pem      the certificate that every host and client shows                   (not secret)
  host-key.pem  its key: who has it may run code on the job's hosts                (secret)

examples:
  monarch certs ./job-certs --host node1.cluster --host 10.0.0.7
  monarch certs ./job-certs --host '*.cluster' --days 7 --force
"""

_SECRET = """\
Makes the secret of a job, 256 random bits as text. Whoever has it may attach to the job's hosts and run code there: give the
same to every host and client (MONARCH_SECRET_FILE), and to nobody else.

FILE is made with mode 0600. Without FILE the secret is printed; a file that the output goes to gets mode 0600.

examples:
  monarch secret ~/.job-secret
  MONARCH_SECRET_FILE=~/.job-secret monarch worker --address 'tcp://*:26600'
  export MONARCH_SECRET=$(monarch secret)
"""

_WORKER = """\
Serves this machine as a host of a job: clients attach with attach_to_workers(workers=["tcp://this-machine:26600"]) and
spawn processes here. It goes on when a client leaves, and ends when one shuts the host down (HostMesh.shutdown).

Who may attach: whoever knows the job's secret (monarch secret) or has its certificates (monarch certs); given both, whoever
has both.
The secret comes from the environment variable MONARCH_SECRET, or from the file that MONARCH_SECRET_FILE or --secret-file
names (yours alone: chmod 600), never from an argument, because everybody on this machine can read those.

examples:
  MONARCH_SECRET_FILE=~/.job-secret monarch worker --address 'tcp://*:26600'
  monarch worker --address tcp://0.0.0.0:26600 --secret-file ~/.job-secret \\
      --ca job-certs/ca.pem --certificate job-certs/host.pem --private-key job-certs/host-key.pem
  monarch worker --address ipc:///tmp/host1 --once

exit codes: 0 shut down or its lease over, 130 interrupted, others for errors
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command with `arguments` (None: those of this process) and returns its exit code.

    Wrong usage, --help and --version raise SystemExit, as argparse does. Never raises Exception.
    """
    parser = get_parser()
    _complete(parser)
    words = sys.argv[1:] if arguments is None else list(arguments)
    # As far as can be said of words that cannot be read.
    verb, as_json = next((word for word in words if not word.startswith("-")), ""), "--json" in words
    try:
        options = parser.parse_args(words)
        if options.verb is None:
            from monarch.tools import welcome

            terminal.show(welcome.here(_version()))
            return 0
        verb, as_json = options.verb, options.json
        modules.search_here()  # jobs are named as MODULE.ATTRIBUTE, and kept jobs may be of a class of such a module
        with json_output.only_json() if as_json else nullcontext():
            return _run(options)
    except UsageError as error:
        if as_json:
            with json_output.only_json():
                json_output.fail(verb, error, error.message, exit_codes.USAGE)
        raise


def _run(options: argparse.Namespace) -> int:
    """Does what the verb does; what it raises is told, and is its exit status."""
    command: Callable[[argparse.Namespace], int | None] = options.command
    try:
        return command(options) or 0
    except BrokenPipeError:  # the reader of our output has gone: nobody is left to tell
        if not options.json:  # which has nothing left to write when the command ends
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return exit_codes.FAILED
    except KeyboardInterrupt as error:
        return _ended_by(options, error, "interrupted")
    except Exception as error:
        text = str(error).strip() or "no further explanation"
        shown = text if isinstance(error, _SELF_EXPLAINING) else f"{type(error).__name__}: {text}"
        terminal.note(f"monarch {options.verb}: {shown}")
        return _ended_by(options, error, shown)


def _ended_by(options: argparse.Namespace, error: BaseException, message: str) -> int:
    status = exit_codes.of(error)
    return json_output.fail(options.verb, error, message, status) if options.json else status


def _complete(parser: argparse.ArgumentParser) -> None:
    """Answers a shell that asks for words, and ends; see `monarch completion`."""
    if "_ARGCOMPLETE" in os.environ:
        import argcomplete

        from monarch.tools import completers

        completers.attach(parser)
        argcomplete.autocomplete(parser)


def get_parser() -> argparse.ArgumentParser:
    """Makes the parser of the command's arguments, which are described at `monarch VERB --help`."""
    parser = _new("monarch", _TOP)
    parser.add_argument("--version", action="version", version=f"pymonarch {_version()}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", dest="verb")

    def command(
        name: str, line: str, text: str, run: Callable[[argparse.Namespace], int | None]
    ) -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=line, **_texts(text))
        added.set_defaults(command=run, parser=added)
        json_output.add_argument(added)
        return added

    worker = command("worker", "serve this machine as a host of a job", _WORKER, _worker)
    worker.add_argument(
        "--address",
        required=True,
        metavar="URL",
        help="where to listen: tcp://HOST:PORT, tcp://*:PORT (all addresses), tcp://[IPV6]:PORT, ipc://PATH, "
        "or dial@bind (advertise the first, listen on the second)",
    )
    worker.add_argument("--secret-file", metavar="FILE", help="the job's secret; instead of MONARCH_SECRET(_FILE)")
    worker.add_argument("--ca", metavar="FILE", help=f"the job's authority, PEM (or {TLS['ca']})")
    worker.add_argument("--certificate", metavar="FILE", help=f"this host's, PEM (or {TLS['certificate']})")
    worker.add_argument("--private-key", metavar="FILE", help=f"of the certificate, PEM (or {TLS['private_key']})")
    worker.add_argument(
        "--trust-all-connections",
        action="store_true",
        help="let in everybody who can reach the address; only safe where strangers cannot reach it",
    )
    worker.add_argument(
        "--lease",
        metavar="SECONDS",
        help="end after so long without a client (also 30m, 4h; 0: never; default: MONARCH_WORKER_LEASE, else never)",
    )
    worker.add_argument(
        "--once",
        action="store_true",
        help="run_worker_loop_until_shutdown instead of run_worker_loop_forever: when a client shuts the host down, "
        "the loop returns and the command ends after it",
    )

    worker.add_argument(
        "--stdin",
        action="store_true",
        help="read the job's secret and the like from stdin, as one line of JSON, and end when stdin does",
    )

    secret_command = command("secret", "make a job's secret", _SECRET, _secret)
    secret_command.add_argument("file", nargs="?", metavar="FILE", help="file to write to, with mode 0600; else stdout")
    secret_command.add_argument("--force", action="store_true", help="replace a file that is there")

    made = command("certs", "make a job's certificate authority and certificate", _CERTS, _certs)
    made.add_argument("directory", metavar="DIRECTORY", help="directory to write to; made with mode 0700 if missing")
    made.add_argument(
        "--host",
        action="append",
        default=[],
        type=_checked(certs.parse_host),
        metavar="NAME_OR_IP",
        help="a machine that the certificate is for; once for each",
    )
    made.add_argument(
        "--days", default=30, type=_checked(_days), metavar="N", help="how long it is valid (default: 30)"
    )
    made.add_argument(
        "--force", action="store_true", help="replace what is there; the old certificates are then useless"
    )
    for verb in verbs.all_verbs():
        verb.arguments(command(verb.NAME, verb.LINE, verb.TEXT, verb.run))
    return parser


class UsageError(SystemExit):
    """Wrong usage, which the parser has told on stderr."""

    def __init__(self, message: str) -> None:
        super().__init__(exit_codes.USAGE)
        self.message = message


class _GuessingParser(argparse.ArgumentParser):
    """A parser that says of a misspelt verb or choice which one may be meant, rather than list them all. Where a verb allows
    abbreviations, both spellings of an option are one, and what fits several is none."""

    def _get_option_tuples(self, option_string: str) -> list[Any]:
        found = super()._get_option_tuples(option_string)
        return found[:1] if len({entry[0].dest for entry in found}) == 1 else []

    def error(self, message: str) -> NoReturn:
        try:
            super().error(message)
        except SystemExit:
            raise UsageError(message) from None

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        try:
            super()._check_value(action, value)
        except argparse.ArgumentError as error:
            import difflib  # slow to import, and few misspell

            near = difflib.get_close_matches(str(value), map(str, action.choices or ()), 1, _NEAR)
            if near:
                error.message = f"invalid choice: {value!r}: did you mean {near[0]!r}?"
            raise


def _new(name: str, text: str) -> argparse.ArgumentParser:
    return _GuessingParser(prog=name, **_texts(text))


def _texts(text: str) -> dict[str, Any]:
    """Puts what stands before `examples:` before the list of options, and the rest behind it."""
    description, examples, rest = text.partition("examples:")
    return {
        "description": description.rstrip(),
        "epilog": examples + rest,
        "formatter_class": argparse.RawDescriptionHelpFormatter,
        "allow_abbrev": False,  # an abbreviation would change its meaning when an option is added
    }


def _checked(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """`parse` for argparse, which shows the text of no exception but its own."""

    def parsed(text: str) -> Any:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return parsed


def _days(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= certs.MOST_DAYS:
        raise ValueError(f"{text!r} is not a number of days from 1 to {certs.MOST_DAYS}")
    return int(text)


def _version() -> str:
    # Not by an import: `monarch` is the table of names, and everything here stands behind it.
    version: str = sys.modules["monarch"].__version__
    return version


# --- monarch certs


def _certs(options: argparse.Namespace) -> int | None:
    made = certs.make_certificates(options.directory, options.host, options.days, force=options.force)
    if options.json:
        from monarch.tools.documents import NewCertificates

        files = (str(path.absolute()) for path in (made.ca, made.ca_key, made.certificate, made.private_key))
        ca, ca_key, certificate, private_key = files
        return json_output.end(
            NewCertificates(
                ca=ca,
                ca_key=ca_key,
                certificate=certificate,
                private_key=private_key,
                names=list(made.names),
                days=options.days,
            )
        )
    terminal.show(_explanation(made, options.days))
    return None


def _explanation(made: certs.Certificates, days: int) -> str:
    return f"""\
Made a certificate authority and a certificate for this job, valid for {days} days:

  {made.ca}: the authority, which others are checked against; give it to every host and client
  {made.certificate}: the certificate they show; give it to every host and client
  {made.private_key}: its key, SECRET (who has it may run code on the hosts); give it to every host and client
  {made.ca_key}: signs further certificates, SECRET; not needed to run: keep it here, or delete it

The certificate is for: {", ".join(made.names)}

On every host:
  monarch worker --address 'tcp://*:26600' --ca {made.ca} --certificate {made.certificate} --private-key {made.private_key}

In the program:
  attach_to_workers(workers=[...], ca="{made.ca}", certificate="{made.certificate}", private_key="{made.private_key}")

Or, for both, in the environment:
  export {TLS["ca"]}={made.ca.absolute()}
  export {TLS["certificate"]}={made.certificate.absolute()}
  export {TLS["private_key"]}={made.private_key.absolute()}"""


# --- monarch secret


def _secret(options: argparse.Namespace) -> int | None:
    if options.json:
        return _secret_as_json(options)
    if options.file is None:
        sys.stdout.flush()
        _print_secret(sys.stdout.fileno())
        return None
    path = _write_secret(options.file, force=options.force).absolute()
    terminal.show(
        f"Made a secret for one job in {path} (mode 0600). Give every host and client a copy, and on each:\n\n"
        f"  export {SECRET_FILE}={path}"
    )
    return None


def _secret_as_json(options: argparse.Namespace) -> int:
    from monarch.tools.documents import NewSecret

    if options.file is None:
        json_output.make_private()
        return json_output.end(NewSecret(file=None, secret=new_secret()))
    path = _write_secret(options.file, force=options.force).absolute()
    return json_output.end(NewSecret(file=str(path), secret=None))


def _write_secret(path: str | os.PathLike[str], *, force: bool = False) -> Path:
    """Writes a new secret to a new file of mode 0600. FileExistsError if there is one, unless `force`: then it is replaced,
    and the old secret is of no use any more."""
    file = Path(path)
    try:
        private_files.write(file, f"{new_secret()}\n".encode(), replace=force)
    except FileExistsError:
        raise FileExistsError(
            f"{file} is already there; --force replaces it, after which hosts and clients with the old secret are refused"
        ) from None
    return file


def _print_secret(descriptor: int = 1) -> None:
    """Writes a new secret to standard output. A file that it goes to is made private first, as those who read it ask."""
    json_output.make_private(descriptor)
    os.write(descriptor, f"{new_secret()}\n".encode())


# --- monarch worker


def _worker(options: argparse.Namespace) -> int | None:
    _serve(options)
    if not options.json:
        return None
    from monarch.tools.documents import WorkerEnded

    return json_output.end(WorkerEnded(address=options.address))


def _serve(options: argparse.Namespace) -> None:
    if options.stdin:
        _worker_by_stdin(options)
        return
    settings: dict[str, Any] = {"address": options.address, **_tls(options)}
    if options.lease is not None:
        settings["lease"] = options.lease
    if options.secret_file is not None:
        # The runtime reads it, so that a file means the same however it is named; before MONARCH_SECRET, if that is set.
        os.environ[SECRET_FILE] = os.path.abspath(options.secret_file)
    import monarch.actor  # what serving loads, --help need not

    _log_as_worker()
    name = "run_worker_loop_until_shutdown" if options.once else "run_worker_loop_forever"
    getattr(monarch.actor, name)(**settings)


def _worker_by_stdin(options: argparse.Namespace) -> None:
    if given := [
        name for name in ("secret_file", *TLS, "trust_all_connections", "once", "lease") if getattr(options, name)
    ]:
        options.parser.error(f"--stdin says what {_option(given[0])} would say; give one of them")
    with open(0, "rb", buffering=0, closefd=False) as stdin:  # unbuffered: its end is for the watcher
        orders = worker_stdin.read_orders(stdin)
    _log_as_worker()
    worker_stdin.serve(options.address, orders)


def _tls(options: argparse.Namespace) -> dict[str, str]:
    """The TLS arguments of the worker loop. When none is given it asks the environment by itself, so here only for some."""
    given = {name: value for name in TLS if (value := getattr(options, name)) is not None}
    if options.trust_all_connections:
        if given:
            options.parser.error(f"--trust-all-connections checks nobody, so it takes no {_option(next(iter(given)))}")
        return {"ca": TRUST_ALL}
    if not given:
        return {}
    given |= {name: value for name in TLS.keys() - given if (value := os.environ.get(TLS[name]))}
    if lacking := [name for name in TLS if name not in given]:
        options.parser.error(
            f"TLS takes all of {', '.join(map(_option, TLS))}; missing: "
            f"{', '.join(f'{_option(name)} (or {TLS[name]})' for name in lacking)}"
        )
    return given


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")


def _log_as_worker() -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(terminal.VisibleFormatter("monarch worker: %(message)s"))
    logging.basicConfig(handlers=[handler], level=logging.INFO)


if __name__ == "__main__":
    sys.exit(main())
