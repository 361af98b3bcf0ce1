"""Hosts with an sshd each on this machine, and the files with which OpenSSH's client reaches them.

    with SshLab() as lab:
        subprocess.run(["ssh", lab.hosts[0].name, "hostname"], env=lab.env)

Keys, known hosts and client configuration are the lab's own: `env` puts an `ssh` first on PATH that names that
configuration to the real one. Besides the hosts there are names of what goes wrong:

    refuses    nobody listens at its port
    unknown    cannot be looked up
    stranger   an sshd that does not accept our key
    impostor   the first host under a name for which another host key is known
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from types import TracebackType

from tests.lab import site
from tests.lab.machine import Machine
from tests.lab.site import LabError, Site, find, free_port, until

HOSTS = 3

PROGRAMS = {
    "sshd": "openssh-server",
    "ssh": "openssh-client",
    "ssh-keygen": "openssh-client",
    "unshare": "util-linux",
    "nsenter": "util-linux",
}

# Files of a lab lie below a folder that others may write to (/tmp), which sshd would refuse by itself.
_SSHD = """\
ListenAddress {address}
Port {port}
HostKey {folder}/host-key
AuthorizedKeysFile {authorized}
PidFile none
StrictModes no
UsePAM no
PermitRootLogin yes
PasswordAuthentication no
KbdInteractiveAuthentication no
MaxStartups 100
LoginGraceTime 5
Subsystem sftp internal-sftp
"""

_CLIENT = """\
Host {name}
    HostName {address}
    Port {port}
    HostKeyAlias {alias}
"""

_CLIENT_ALL = """\
Host *
    IdentityFile {folder}/key
    IdentitiesOnly yes
    UserKnownHostsFile {folder}/known-hosts
    GlobalKnownHostsFile none
    StrictHostKeyChecking yes
    ControlMaster no
"""


def why_not() -> str | None:
    return site.why_not(PROGRAMS)


class SshLab:
    """Up when made. `env` is the environment in which `ssh` reaches its hosts by their names."""

    def __init__(self, hosts: int = HOSTS) -> None:
        self.site = Site("ssh")
        try:
            self._build(hosts)
        except BaseException:
            self.site.close()
            raise

    def _build(self, hosts: int) -> None:
        folder = self.site.folder
        os.makedirs(
            "/run/sshd", exist_ok=True
        )  # sshd insists on it, and nobody has made it where no service was started
        for name in ("host-key", "key"):
            _run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name))
        shutil.copy(folder / "key.pub", folder / "authorized")
        self.hosts: list[Machine] = [self.site.machine(f"s{number}", 20 + number) for number in range(1, hosts + 1)]
        self._stranger = self.site.machine("stranger", 30)
        refusing = self.site.address(31)
        self.site.publish({self.site.machine_name("refuses"): refusing})
        ports = {machine.name: free_port() for machine in (*self.hosts, self._stranger)}
        host_key = (folder / "host-key.pub").read_text()
        _run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / "other-key"))
        self._write("known-hosts", f"lab {host_key}impostor {(folder / 'other-key.pub').read_text()}")
        entries = [
            (machine.name, machine.address, ports[machine.name], "lab") for machine in (*self.hosts, self._stranger)
        ]
        entries += [
            ("refuses", refusing, free_port(), "lab"),
            ("impostor", self.hosts[0].address, ports[self.hosts[0].name], "impostor"),
        ]
        config = "\n".join(_CLIENT.format(name=name, address=at, port=port, alias=a) for name, at, port, a in entries)
        self._write("config", config + _CLIENT_ALL.format(folder=folder))
        self._write("bin/ssh", f'#!/bin/sh\nexec {find("ssh")} -F {folder}/config "$@"\n', 0o755)
        for machine in (*self.hosts, self._stranger):
            text = _SSHD.format(
                address=machine.address,
                port=ports[machine.name],
                folder=folder,
                authorized=folder / "authorized" if machine is not self._stranger else "none",
            )
            self._write(f"sshd-{machine.name}.conf", text)
            self.start_host(machine)

    def start_host(self, machine: Machine) -> None:
        config = self.site.folder / f"sshd-{machine.name}.conf"
        machine.start("sshd", [str(find("sshd")), "-D", "-e", "-f", str(config)], os.environ)
        log = machine.log("sshd")
        try:
            until(lambda: "Server listening" in log.read_text(), f"an sshd on {machine.name}")
        except LabError as error:
            raise LabError(f"{error}\n{log.read_text()}") from None

    @property
    def variables(self) -> dict[str, str]:
        """Returns what to change in an environment, so that `ssh` reaches the hosts."""
        return {"PATH": f"{self.site.folder}/bin:{os.environ['PATH']}"}

    @property
    def env(self) -> dict[str, str]:
        """This process's environment with `variables`, and without an agent's keys."""
        return {name: value for name, value in os.environ.items() if name != "SSH_AUTH_SOCK"} | self.variables

    def processes(self) -> dict[str, list[str]]:
        """Returns what runs on the hosts but for the sshds that listen: command lines by host."""
        found = {host.name: [line for line in host.processes().values() if not _listens(line)] for host in self.hosts}
        return {name: lines for name, lines in found.items() if lines}

    def reset(self) -> None:
        """Puts it back as it was when it was made: nothing runs on the hosts but the sshds."""
        for host in self.hosts:
            host.kill_processes(lambda line: not _listens(line))
        for host in self.hosts:
            if not host.processes():
                self.start_host(host)

    def _write(self, name: str, text: str, mode: int = 0o600) -> Path:
        path = self.site.folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        path.chmod(mode)
        return path

    def close(self) -> None:
        self.site.close()

    def __enter__(self) -> SshLab:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _listens(line: str) -> bool:
    """Returns whether this is the command line of an sshd that waits for connections, and not of one that serves one."""
    return "sshd -D" in line or "[listener]" in line


def _run(*command: str) -> None:
    ran = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
    if ran.returncode:
        raise LabError(f"{' '.join(command)}: {ran.stderr.strip()}")
