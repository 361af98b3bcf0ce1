"""Several jobs of one project, one of them active: what lies in the folder `.monarch`.

.monarch/default/spec              which job: MODULE.ATTRIBUTE
.monarch/default/state.pkl         the job that runs, when one does
.monarch/job_state.pkl             a link to the active context's state.pkl
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

from monarch._linux import private_files
from monarch.job import cache, modules
from monarch.job.job_trait import JobTrait, job_load
from monarch.job.names import DEFAULT_JOB_PATH, FOLDER
from monarch.job.progress import job_logger

DEFAULT = "default"
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*\Z")


def names() -> list[str]:
    """All contexts of this folder, sorted."""
    folder = Path(FOLDER)
    if not folder.is_dir():
        return []
    return sorted(entry.name for entry in folder.iterdir() if _NAME.match(entry.name) and entry.is_dir())


def active() -> str:
    """The context that the link names; without one it is `default`."""
    try:
        name = Path(os.readlink(DEFAULT_JOB_PATH)).parent.name
    except OSError:
        return DEFAULT
    return name if _NAME.match(name) else DEFAULT  # whoever has made the link: what the name leads to is checked


def state_path(name: str) -> Path:
    """Returns the file in which the job of this context is kept."""
    return Path(FOLDER, _checked(name), "state.pkl")


def create(name: str) -> None:
    """A new context, which becomes the active one. FileExistsError when there is one of that name."""
    if Path(FOLDER, _checked(name)).exists():
        raise FileExistsError(f"there is a context {name!r} already: monarch context use {name}")
    use(name)


def use(name: str) -> None:
    """Makes it the active context, and makes it when it is not there."""
    cache.make_folder(Path(FOLDER, _checked(name)))
    _keep_plain_file()
    link = Path(DEFAULT_JOB_PATH)
    new = link.with_name(f".{link.name}.{os.getpid()}")
    new.symlink_to(Path(name, "state.pkl"))
    os.replace(new, link)


def remove(name: str) -> None:
    """Ends its job, as far as that can be, and removes it; when it was the active one, `default` is. FileNotFoundError when
    there is none."""
    folder = Path(FOLDER, _checked(name))
    if not folder.is_dir():
        raise FileNotFoundError(f"there is no context {name!r}; there are: {', '.join(names()) or 'none'}")
    private_files.resolve(folder / "state.pkl")  # a link of somebody else's may lead to a folder of ours
    try:
        job_load(state_path(name)).kill()
    except FileNotFoundError:
        pass
    except Exception as exc:
        job_logger().warning("the job of context %s could not be ended: %s", name, exc)
    was_active = active() == name
    shutil.rmtree(folder)
    if was_active:
        use(DEFAULT)


def _checked(name: str) -> str:
    if not _NAME.match(name):
        raise ValueError(f"{name!r} is not a name of a context: letters, digits, _, . and - are")
    return name


def _keep_plain_file() -> None:
    """A job's file from before there were contexts is that of `default`."""
    plain = Path(DEFAULT_JOB_PATH)
    if plain.is_file() and not plain.is_symlink():
        cache.make_folder(Path(FOLDER, DEFAULT))
        os.replace(plain, state_path(DEFAULT))


# --- which job


def set_current_job(spec: str) -> None:
    """Remembers `MODULE.ATTRIBUTE`, which names a job in a module, as the job of the active context."""
    load(spec)
    name = active()
    use(name)
    private_files.write(Path(FOLDER, name, "spec"), f"{spec}\n".encode(), replace=True)


def current_spec() -> str:
    """Returns the `MODULE.ATTRIBUTE` that `set_current_job` remembered. FileNotFoundError when none was; PermissionError when
    others could have written it."""
    path = Path(FOLDER, active(), "spec")
    try:
        return cache.read_named(path).strip()
    except FileNotFoundError:
        raise FileNotFoundError(
            f"no job is set in context {active()!r} ({path} is missing): run monarch apply MODULE.ATTRIBUTE, or call "
            f"monarch.job.set_current_job('module.attribute')"
        ) from None


def load_current_job() -> JobTrait:
    """The job that `set_current_job` remembered, imported anew. FileNotFoundError when none was; PermissionError when others
    could have written it; as `job_load` otherwise."""
    return load(current_spec())


def load(spec: str) -> JobTrait:
    """The job that `MODULE.ATTRIBUTE` names. ValueError without a dot, ImportError and AttributeError when it is not there,
    TypeError when it is no job. Modules of a working directory in which others may write are not imported."""
    module_name, dot, attribute = spec.rpartition(".")
    if not dot or not module_name or not attribute:
        raise ValueError(f"a job is named as MODULE.ATTRIBUTE, got {spec!r}")
    module = modules.load(module_name)
    try:
        found = getattr(module, attribute)
    except AttributeError:
        raise AttributeError(f"module {module_name} ({module.__file__}) has no {attribute!r}") from None
    if not isinstance(found, JobTrait):
        raise TypeError(f"{spec} is {type(found).__name__}, and a job is wanted")
    return found
