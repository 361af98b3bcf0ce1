"""Programs that a kubeconfig names to get credentials (`users[].user.exec`): `aws eks get-token`, `gke-gcloud-auth-plugin`.

The official client runs them too, but goes on without credentials when one fails, and reads JSON only.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

TIME_LIMIT = 120.0  # seconds; some wait for a person who signs in
_EARLY = timedelta(minutes=1)  # a token is renewed this long before it expires


class PluginError(RuntimeError):
    """A plugin gave no credentials: which, and its own words."""


class Credential:
    """What a plugin gave."""

    def __init__(self, status: Mapping[str, Any]) -> None:
        self.token: str | None = status.get("token")
        self.certificate: str | None = status.get("clientCertificateData")
        self.key: str | None = status.get("clientKeyData")
        self._expiry = _time(status.get("expirationTimestamp"))

    def expired(self, now: datetime) -> bool:
        return self._expiry is not None and now >= self._expiry - _EARLY

    def as_user(self) -> dict[str, str]:
        """As `users[].user` of a kubeconfig says it."""
        user = {"token": self.token} if self.token else {}
        if self.certificate and self.key:
            user["client-certificate-data"] = base64.b64encode(self.certificate.encode()).decode()
            user["client-key-data"] = base64.b64encode(self.key.encode()).decode()
        return user


def run(plugin: Mapping[str, Any], cluster: Mapping[str, Any], folder: Path) -> Credential:
    """Runs it. `folder` is the kubeconfig's, from which a relative command is taken. PluginError if it gives nothing."""
    command = str(plugin.get("command", ""))
    if "/" in command:
        command = str(folder / command)
    interactive = sys.stdin is not None and sys.stdin.isatty() and plugin.get("interactiveMode") != "Never"
    added = {str(entry["name"]): str(entry["value"]) for entry in plugin.get("env") or []}
    environment = os.environ | added | {"KUBERNETES_EXEC_INFO": json.dumps(_asked(plugin, cluster, interactive))}
    try:
        done = subprocess.run(
            [command, *map(str, plugin.get("args") or [])],
            env=environment,
            stdin=None if interactive else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=None if interactive else subprocess.PIPE,
            timeout=TIME_LIMIT,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise PluginError(f"the credential plugin {command!r} did not end within {TIME_LIMIT:g} s") from None
    except OSError as error:
        hint = f" {plugin['installHint']}" if plugin.get("installHint") else ""
        raise PluginError(f"cannot run the credential plugin {command!r}: {error.strerror}.{hint}") from error
    if done.returncode != 0:
        words = " ".join((done.stderr or b"").decode(errors="replace").split())
        said = f": {words}" if words else ""
        raise PluginError(f"the credential plugin {command!r} failed with status {done.returncode}{said}")
    return parse(command, done.stdout)


def parse(command: str, output: bytes) -> Credential:
    """Reads an ExecCredential in JSON or YAML."""
    import yaml  # comes with the official client

    try:
        found = yaml.safe_load(output.decode(errors="replace"))  # JSON is YAML
    except yaml.YAMLError:
        found = None
    if not isinstance(found, dict) or not isinstance(found.get("status"), dict):
        raise PluginError(f"the credential plugin {command!r} printed no ExecCredential with a status")
    credential = Credential(found["status"])
    if not credential.as_user():
        raise PluginError(f"the credential plugin {command!r} gave neither a token nor a certificate with its key")
    return credential


def _asked(plugin: Mapping[str, Any], cluster: Mapping[str, Any], interactive: bool) -> dict[str, Any]:
    spec: dict[str, Any] = {"interactive": interactive}
    if plugin.get("provideClusterInfo"):
        spec["cluster"] = {key: value for key, value in cluster.items() if key != "extensions"}
        for extension in cluster.get("extensions") or []:
            if extension.get("name") == "client.authentication.k8s.io/exec":
                spec["cluster"]["config"] = extension.get("extension")
    return {"apiVersion": plugin.get("apiVersion"), "kind": "ExecCredential", "spec": spec}


def _time(text: Any) -> datetime | None:
    if isinstance(text, datetime):  # YAML knows times
        return text if text.tzinfo else text.replace(tzinfo=UTC)
    try:
        found = datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return found if found.tzinfo else found.replace(tzinfo=UTC)
