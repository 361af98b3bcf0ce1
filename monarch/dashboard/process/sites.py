"""The sites of an observer: which routes are on which port."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from monarch._http.server import Site
from monarch._linux.loopback_peer import is_loopback
from monarch.dashboard.routes.telemetry_routes import query_routes, upload_routes

if TYPE_CHECKING:
    from monarch.dashboard.process.observer_config import ObserverConfig
    from monarch.telemetry.store import Store


def api_site(store: Store, program: Any) -> Site:
    """Returns the site for programs of this machine: SQL, what the dashboard shows, and uploads."""
    return Site([*query_routes(store), *upload_routes(store), *_dashboard(store, program)])


def dashboard_site(config: ObserverConfig, store: Store, program: Any, token: str) -> Site:
    """Returns the site for people: pages, which read."""
    return Site(
        _dashboard(store, program),
        config.dashboard_host,
        config.dashboard_port,
        token,
        *_tls(config, config.dashboard_host),
    )


def admin_site(config: ObserverConfig, store: Store | None, program: Any, host: str, port: int, token: str) -> Site:
    return Site(_admin(store, program), host, port, token, *_tls(config, host))


def _tls(config: ObserverConfig, host: str) -> tuple[str, str]:
    """Certificates are for what other machines reach."""
    return ("", "") if is_loopback(host) else (config.certificate, config.private_key)


def _dashboard(store: Store, program: Any) -> list[Any]:
    from monarch.dashboard.routes.page_routes import routes

    return routes(store, program)


def _admin(store: Store | None, program: Any) -> list[Any]:
    from monarch.dashboard.routes.admin_routes import routes

    return routes(program, store)
