"""Stubs for type checkers of modules that are made from a table: `python -m tests.support.path_stubs` writes them."""

from __future__ import annotations

from pathlib import Path

from monarch._older_paths import _alias_modules

FOLDER = Path(__file__).parents[2] / "stubs" / "monarch-stubs"


def expected() -> dict[Path, str]:
    """Returns the stubs of all modules of the table."""
    found = {}
    names = _alias_modules.modules()
    packages = {name.rpartition(".")[0] for name in names}
    for name in sorted(names):
        parts = name.split(".")[1:]
        path = FOLDER.joinpath(*parts, "__init__") if name in packages else FOLDER.joinpath(*parts)
        if len(parts) > 1:
            found[path.with_suffix(".pyi")] = _text(name)
    return found


def _text(module: str) -> str:
    lines = [
        f"from {home} import {real} as {alias}\n"
        for alias, (home, real) in sorted(_alias_modules.homes(module).items())
    ]
    return "".join(lines)


def main() -> None:
    for path, text in expected().items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


if __name__ == "__main__":
    main()
