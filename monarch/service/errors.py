"""The errors of services. Each text names the service, and the replica where there is one."""

from __future__ import annotations

from typing import Any


class ServiceError(RuntimeError):
    """A request to a service was not answered; the subclasses say why. What an endpoint of a replica raises is an ActorError.

    Since 0.2.0.
    """


class ServiceOverloaded(ServiceError):
    """The service is full and did not take the request: nothing of it has run. `retry_after`: seconds after which a place
    may be free, a guess from how long requests take at present.

    Since 0.2.0.
    """

    def __init__(self, message: str, retry_after: float) -> None:
        super().__init__(message, retry_after)
        self.retry_after = retry_after

    def __str__(self) -> str:
        return str(self.args[0])


class ServiceTimeoutError(ServiceError, TimeoutError):
    """The request's time was over before it was answered. The text says whether it waited or ran then.

    Since 0.2.0.
    """


class ServiceUnavailableError(ServiceError):
    """The service has no replica any more, or was shut down. `__cause__` is why its last replica ended.

    Since 0.2.0.
    """


class ReplicaLostError(ServiceError):
    """The replica died, or was taken away, while it had the request, and nobody said that the request may run twice.

    `replica` is its number; `__cause__` says who died, how and where. Since 0.2.0.
    """

    def __init__(self, message: str, replica: int) -> None:
        super().__init__(message, replica)
        self.replica = replica

    def __str__(self) -> str:
        return str(self.args[0])


class ServiceUpdateError(ServiceError):
    """An update failed at a replica and was stopped there. The text says which replicas have it; `replica` is the number of
    the one that failed, which was replaced by one with the version before.

    Since 0.2.0.
    """

    def __init__(self, message: str, replica: int) -> None:
        super().__init__(message, replica)
        self.replica = replica

    def __str__(self) -> str:
        return str(self.args[0])


def caused(error: ServiceError, cause: Any) -> ServiceError:
    """Returns `error` with its cause: an exception, or a text."""
    if cause is not None:
        error.__cause__ = cause if isinstance(cause, BaseException) else ServiceError(str(cause))
    return error
