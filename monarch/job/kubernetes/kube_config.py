"""The way to the API server and the user who asks: a kubeconfig, a configuration of this process, or the pod this runs in."""

from __future__ import annotations

import base64
import copy
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from monarch._linux import private_files
from monarch.job.progress import job_logger
from monarch.job.scheduled import SchedulerError

if TYPE_CHECKING:
    from kubernetes.client import Configuration

_REBIND = (
    "this job was pickled, and its KubeConfig.from_config(...) was of the process that made it: credentials in memory are "
    "not stored. Call state() of a job that you make anew, which takes the stored one over, or use KubeConfig.from_path"
)


_LARGEST = 4 << 20  # bytes of a kubeconfig


class KubeConfigError(SchedulerError):
    """No API server can be asked: what is wrong with the configuration."""


class NeedsRebind:
    """Stands in a pickled job where credentials of the process were that made it."""

    def __repr__(self) -> str:
        return "<needs rebind>"


@dataclass(frozen=True)
class KubeConfig:
    """The cluster, and the user that is shown to it. Without one, a job uses what Kubernetes gives to the pod it runs in."""

    local: Path | None = None
    remote: Configuration | NeedsRebind | None = None

    @classmethod
    def from_path(cls, path: str | os.PathLike[str]) -> KubeConfig:
        """A kubeconfig file, its current context. Read again whenever a client connects, so that it may be renewed."""
        return cls(local=Path(path).expanduser())

    @classmethod
    def from_config(cls, configuration: Configuration) -> KubeConfig:
        """A `kubernetes.client.Configuration` of this process. It is not stored with the job: later programs give theirs."""
        return cls(remote=configuration)

    @property
    def out_of_cluster(self) -> bool:
        """True if this runs outside the cluster: pods are then reached through the API server."""
        return self.local is not None or self.remote is not None

    @property
    def needs_rebind(self) -> bool:
        """True if it came from `from_config` in an earlier program: this one has to give a Configuration of its own."""
        return isinstance(self.remote, NeedsRebind)

    def __reduce__(self) -> tuple[Any, ...]:
        if self.remote is not None and not self.needs_rebind:
            job_logger().warning(
                "a KubernetesJob with KubeConfig.from_config is stored without its credentials: a later program that finds "
                "the job has to give its own"
            )
        return KubeConfig, (self.local, None if self.remote is None else NeedsRebind())


@dataclass(frozen=True)
class Access:
    """A configuration for the official client, what to call the server in sentences, and where both came from."""

    configuration: Configuration
    where: str
    source: KubeConfig | None

    def renewed(self) -> Access:
        """Returns it made anew: tokens and certificates in files may have been replaced. KubeConfigError as from `access`."""
        return access(self.source)

    def without_credentials(self, text: str) -> str:
        """Returns what a server said, without the token, which it might repeat."""
        for value in self.configuration.api_key.values():
            token = value.rpartition(" ")[2]
            text = text.replace(token, "<token>") if token else text
        return text


def access(kubeconfig: KubeConfig | None) -> Access:
    """KubeConfigError with the reason when there is none."""
    if kubeconfig is None:
        return _in_cluster()
    if isinstance(kubeconfig.remote, NeedsRebind):
        raise KubeConfigError(_REBIND)
    if kubeconfig.local is not None:
        return _from_file(kubeconfig.local)
    found = copy.deepcopy(kubeconfig.remote)
    if found is None:
        return _in_cluster()
    return _access(found, "KubeConfig.from_config", kubeconfig)


def _in_cluster() -> Access:
    from kubernetes import client, config

    found = client.Configuration()
    try:
        config.load_incluster_config(client_configuration=found)
    except config.ConfigException as error:
        raise KubeConfigError(
            f"Failed to load in-cluster Kubernetes config. {error} This does not seem to run in a pod: outside the cluster "
            'give kubeconfig=KubeConfig.from_path("~/.kube/config")'
        ) from error
    return _access(found, "the service account of this pod", None)


def _from_file(path: Path) -> Access:
    import yaml
    from kubernetes import client, config
    from kubernetes.config.kube_config import KubeConfigLoader

    try:
        loaded = yaml.safe_load(private_files.read(path, _LARGEST, own_group=True))
    except private_files.UntrustedFileError as error:
        raise KubeConfigError(
            f"the kubeconfig is not used, for it names programs to run, and somebody else may have written it: {error}"
        ) from error
    except ValueError as error:
        raise KubeConfigError(f"the kubeconfig cannot be used: {error}") from error
    except OSError as error:
        raise KubeConfigError(f"cannot read the kubeconfig {path}: {error.strerror}") from error
    except yaml.YAMLError as error:
        raise KubeConfigError(f"the kubeconfig {path} is not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(loaded, dict):
        raise KubeConfigError(f"the kubeconfig {path} is empty")
    found = client.Configuration()
    user, cluster = _current(loaded)
    plugin = user.pop("exec", None) if "token" not in user and "tokenFile" not in user else None
    try:
        credential = None if plugin is None else run_plugin(plugin, cluster, path.parent)
        user.update({} if credential is None else credential.as_user())
        KubeConfigLoader(config_dict=loaded, config_base_path=str(path.parent)).load_and_set(found)
    except (config.ConfigException, CredentialPluginError, KeyError) as error:
        raise KubeConfigError(f"the kubeconfig {path} cannot be used: {error}") from error
    if cluster.get("proxy-url"):  # which older versions of the client pass over
        found.proxy = cluster["proxy-url"]
    if credential is not None and credential.token:
        found.refresh_api_key_hook = _renewing(credential, plugin, cluster, path.parent)
    return _access(found, f"context {loaded.get('current-context')!r} of {path}", KubeConfig(local=path))


def _current(loaded: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """(user, cluster) of the current context; empty where there is none, which the official client explains."""

    def named(kind: str, key: str, name: Any) -> dict[str, Any]:
        entries = loaded.get(kind) or []
        found = next(
            (entry.get(key) for entry in entries if isinstance(entry, dict) and entry.get("name") == name), None
        )
        return found if isinstance(found, dict) else {}

    context = named("contexts", "context", loaded.get("current-context"))
    return named("users", "user", context.get("user")), named("clusters", "cluster", context.get("cluster"))


def _renewing(credential: Credential, plugin: Any, cluster: dict[str, Any], folder: Path) -> Any:
    """Returns what the official client calls before each request."""
    held = credential

    def renew(configuration: Configuration) -> None:
        nonlocal held
        if held.expired(datetime.now(UTC)):
            held = run_plugin(plugin, cluster, folder)
        configuration.api_key["BearerToken"] = f"Bearer {held.token}"

    return renew


def _access(configuration: Configuration, whose: str, source: KubeConfig | None) -> Access:
    # Requests are repeated by who waits, and each has a limit.
    configuration.retries = configuration.client_go_retries = False
    return Access(configuration, f"the Kubernetes API server {configuration.host} ({whose})", source)


# Programs that a kubeconfig names to get credentials (`users[].user.exec`): `aws eks get-token`, `gke-gcloud-auth-plugin`.
# The official client runs them too, but goes on without credentials when one fails, and reads JSON only.
PLUGIN_TIME_LIMIT = 120.0  # seconds; some wait for a person who signs in
_EARLY = timedelta(minutes=1)  # a token is renewed this long before it expires


class CredentialPluginError(RuntimeError):
    """A plugin gave no credentials: which, and its own words."""


class Credential:
    """A token or a certificate that a plugin gave."""

    def __init__(self, status: Mapping[str, Any]) -> None:
        self.token: str | None = status.get("token")
        self.certificate: str | None = status.get("clientCertificateData")
        self.key: str | None = status.get("clientKeyData")
        self._expiry = _expiry_time(status.get("expirationTimestamp"))

    def expired(self, now: datetime) -> bool:
        return self._expiry is not None and now >= self._expiry - _EARLY

    def as_user(self) -> dict[str, str]:
        """Returns it as `users[].user` of a kubeconfig says it."""
        user = {"token": self.token} if self.token else {}
        if self.certificate and self.key:
            user["client-certificate-data"] = base64.b64encode(self.certificate.encode()).decode()
            user["client-key-data"] = base64.b64encode(self.key.encode()).decode()
        return user


def run_plugin(plugin: Mapping[str, Any], cluster: Mapping[str, Any], folder: Path) -> Credential:
    """Runs a plugin; CredentialPluginError when it gives nothing. `folder`: of the kubeconfig, for relative commands."""
    command = str(plugin.get("command", ""))
    if "/" in command:
        command = str(folder / command)
    interactive = sys.stdin is not None and sys.stdin.isatty() and plugin.get("interactiveMode") != "Never"
    added = {str(entry["name"]): str(entry["value"]) for entry in plugin.get("env") or []}
    environment = os.environ | added | {"KUBERNETES_EXEC_INFO": json.dumps(_exec_info(plugin, cluster, interactive))}
    try:
        done = subprocess.run(
            [command, *map(str, plugin.get("args") or [])],
            env=environment,
            stdin=None if interactive else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=None if interactive else subprocess.PIPE,
            timeout=PLUGIN_TIME_LIMIT,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise CredentialPluginError(
            f"the credential plugin {command!r} did not end within {PLUGIN_TIME_LIMIT:g} s"
        ) from None
    except OSError as error:
        hint = f" {plugin['installHint']}" if plugin.get("installHint") else ""
        raise CredentialPluginError(f"cannot run the credential plugin {command!r}: {error.strerror}.{hint}") from error
    if done.returncode != 0:
        words = " ".join((done.stderr or b"").decode(errors="replace").split())
        said = f": {words}" if words else ""
        raise CredentialPluginError(f"the credential plugin {command!r} failed with status {done.returncode}{said}")
    return parse_credential(command, done.stdout)


def parse_credential(command: str, output: bytes) -> Credential:
    """Reads an ExecCredential in JSON or YAML."""
    import yaml  # comes with the official client

    try:
        found = yaml.safe_load(output.decode(errors="replace"))  # JSON is YAML
    except yaml.YAMLError:
        found = None
    if not isinstance(found, dict) or not isinstance(found.get("status"), dict):
        raise CredentialPluginError(f"the credential plugin {command!r} printed no ExecCredential with a status")
    credential = Credential(found["status"])
    if not credential.as_user():
        raise CredentialPluginError(
            f"the credential plugin {command!r} gave neither a token nor a certificate with its key"
        )
    return credential


def _exec_info(plugin: Mapping[str, Any], cluster: Mapping[str, Any], interactive: bool) -> dict[str, Any]:
    spec: dict[str, Any] = {"interactive": interactive}
    if plugin.get("provideClusterInfo"):
        spec["cluster"] = {key: value for key, value in cluster.items() if key != "extensions"}
        for extension in cluster.get("extensions") or []:
            if extension.get("name") == "client.authentication.k8s.io/exec":
                spec["cluster"]["config"] = extension.get("extension")
    return {"apiVersion": plugin.get("apiVersion"), "kind": "ExecCredential", "spec": spec}


def _expiry_time(text: Any) -> datetime | None:
    if isinstance(text, datetime):  # YAML knows times
        return text if text.tzinfo else text.replace(tzinfo=UTC)
    try:
        found = datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return found if found.tzinfo else found.replace(tzinfo=UTC)
