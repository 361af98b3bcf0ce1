"""Sources of a setting's value: five layers, a higher one hiding those below it.

    runtime      what `configure` set in this process
    client       what `configure` set in the client that started this process
    environment  this process's environment variables
    inherited    what the client had from its own environment, so that it also holds on other hosts
    default      the table

Knows nothing of processes: `snapshot` gives a plain dict of strings for a child, `restore` takes it there.
"""

from __future__ import annotations

import reprlib
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from monarch._linux.locks import Lock
from monarch.config.kinds import Kind

#: {"client": {name: text}, "inherited": {name: text}}: only dicts and str, so that any codec carries it
Snapshot = dict[str, dict[str, str]]

Values = dict[str, Any]

_ALL = "All are in docs/settings.md and in monarch.get_global_config()"


class Setting:
    """A setting; `default` as a program would give it, `env` its environment variable if any."""

    __slots__ = ("default", "doc", "env", "inert", "kind", "name")

    def __init__(
        self, name: str, kind: Kind, default: Any, env: str | None, doc: str = "", inert: bool = False
    ) -> None:
        self.name = name
        self.kind = kind
        self.default = default
        self.env = env
        self.doc = doc
        self.inert = inert  # stored and given back, read by nothing


class Layers:
    """The values of one process's settings. Thread-safe; reading takes no lock.

    The environment is read at the first use, not before, and again by `restore`.
    """

    def __init__(self, table: Iterable[Setting], environ: Mapping[str, str]) -> None:
        self._settings = {setting.name: setting for setting in table}
        self._environ = environ
        self._lock = Lock()
        self._default = {name: setting.kind.check(setting.default) for name, setting in self._settings.items()}
        self._inherited: Values = {}
        self._environment: Values | None = None  # None: not read yet
        self._client: Values = {}
        self._runtime: Values = {}
        self.current: Values = {}  # the layers merged, for reading; replaced whole, never changed; {}: not merged yet
        self._reported: set[str] = set()  # inert settings that `without_effect` has named

    def get(self, name: str) -> Any:
        """The kept value (durations: float seconds). ValueError for an unknown name."""
        try:
            return self.current[name]
        except KeyError:
            self._setting(name)
            return self._load()[name]

    def show(self) -> Values:
        """A fresh dict of all settings as a program sees them."""
        return {name: self._settings[name].kind.show(value) for name, value in self._load().items()}

    def check(self, values: Mapping[str, object]) -> Values:
        """The kept forms of `values`, or the error of `configure`."""
        return {name: self._check(name, value) for name, value in values.items()}

    def set(self, values: Mapping[str, object]) -> None:
        """Add `values` to the runtime layer; all of them or, on an error, none."""
        checked = self.check(values)
        with self._lock:
            self._merge(runtime=self._runtime | checked)

    def without_effect(self, names: Iterable[str]) -> list[str]:
        """Returns those of `names` that are inert and set to something else than their default; each is given once."""
        with self._lock:
            found = [
                name
                for name in names
                if self._setting(name).inert
                and name not in self._reported
                and self.current[name] != self._default[name]
            ]
            self._reported.update(found)
        return found

    def runtime(self) -> Values:
        """The runtime layer, to be given to `set_runtime` later."""
        return dict(self._runtime)

    def set_runtime(self, runtime: Values) -> None:
        """Replace the runtime layer by what `runtime()` gave."""
        with self._lock:
            self._merge(runtime=dict(runtime))

    def origins(self) -> list[tuple[Setting, str, str]]:
        """Each setting with its value as text and the layer that it comes from, by name."""
        current = self._load()
        with self._lock:
            above = (
                ("runtime", self._runtime),
                ("client", self._client),
                ("environment", self._environment or {}),
                ("inherited", self._inherited),
            )
            return [
                (setting, setting.kind.write(current[name]), next((at for at, has in above if name in has), "default"))
                for name, setting in sorted(self._settings.items())
            ]

    def snapshot(self) -> Snapshot:
        """Returns what a child of this process must be told."""
        self._load()
        with self._lock:
            client = self._client | self._runtime
            below = self._default | self._inherited | (self._environment or {})
        inherited = {name: value for name, value in below.items() if value != self._default[name]}
        return {"client": self._written(client), "inherited": self._written(inherited)}

    def restore(self, snapshot: Mapping[str, Mapping[str, str]]) -> None:
        """Take over the client's values and read the environment again. ``{}`` forgets the client's values.

        ValueError for a setting this process does not know (the client runs another version) or cannot read.
        """
        client = self._read_all(snapshot.get("client", {}))
        inherited = self._read_all(snapshot.get("inherited", {}))
        environment = self._read_environment()
        with self._lock:
            self._inherited, self._environment, self._client = inherited, environment, client
            self._merge(runtime=self._runtime)

    def told(self, snapshot: Mapping[str, Mapping[str, str]], name: str) -> Any:
        """The kept value of one setting in the process that gave `snapshot`. ValueError as for `restore`."""
        for layer in ("client", "inherited"):
            text = snapshot.get(layer, {}).get(name)
            if text is not None:
                return self._setting(name).kind.read(text)
        return self._default[name]

    # The layers.

    def _load(self) -> Values:
        if not self.current:
            with self._lock:
                self._merge(runtime=self._runtime)
        return self.current

    def _merge(self, *, runtime: Values) -> None:
        """Under the lock: make `runtime` the top layer and merge all."""
        if self._environment is None:
            self._environment = self._read_environment()
        self._runtime = runtime
        self.current = self._default | self._inherited | self._environment | self._client | runtime

    def _read_environment(self) -> Values:
        values: Values = {"enable_log_forwarding": True} if _in_notebook() else {}
        values = {name: value for name, value in values.items() if name in self._settings}
        for setting in self._settings.values():
            text = self._environ.get(setting.env, "") if setting.env else ""
            if not text:  # set to nothing is not set
                continue
            try:
                values[setting.name] = setting.kind.read(text)
            except ValueError as error:
                if setting.inert:
                    continue  # nothing reads it, and the variable may belong to another program
                raise ValueError(
                    f"invalid value {text!r} of the environment variable {setting.env} (setting "
                    f"`{setting.name}`): {error}"
                ) from None
        return values

    # One setting.

    def _setting(self, name: str) -> Setting:
        if name not in self._settings:
            close = [known for known in self._settings if name in known] or _similar(name, self._settings)
            hint = f"; did you mean {' or '.join(f'`{known}`' for known in close[:3])}?" if close else "."
            raise ValueError(f"invalid configuration key: `{name}`{hint} {_ALL}")
        return self._settings[name]

    def _check(self, name: str, value: object) -> Any:
        setting = self._setting(name)
        try:
            return setting.kind.check(value)
        except (TypeError, ValueError) as error:
            kind = TypeError if isinstance(error, TypeError) else ValueError
            raise kind(f"invalid value `{reprlib.repr(value)}` for configuration key `{name}` ({error})") from None

    def _written(self, values: Values) -> dict[str, str]:
        return {name: self._settings[name].kind.write(value) for name, value in values.items()}

    def _read_all(self, texts: Mapping[str, str]) -> Values:
        return {name: self._setting(name).kind.read(text) for name, text in texts.items()}


def _similar(name: str, known: Iterable[str]) -> list[str]:
    import difflib  # slow to import, and few misspell

    return difflib.get_close_matches(name, list(known), n=1)


def _in_notebook() -> bool:
    """Returns whether this runs in IPython or Jupyter, where a child's output must be brought to the cell."""
    ipython = sys.modules.get("IPython")  # never imported for this: if it were running, it would be there
    get_ipython = getattr(ipython, "get_ipython", None)
    return get_ipython is not None and get_ipython() is not None
