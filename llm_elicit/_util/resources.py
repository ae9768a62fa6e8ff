"""The search path of templates, feature spaces and example campaigns.

The user's own folder (`./prompts`, `./datasets`, `./examples`) comes before what
the package ships, so that a file can be overridden by copying and editing it.
"""

from __future__ import annotations

from pathlib import Path

from llm_elicit._util.sanitize import visible
from llm_elicit.errors import InputError

_NOUNS = {"examples": "campaign", "prompts": "template", "datasets": "feature space"}
_PACKAGE = Path(__file__).parents[1]


def search_path(folder: str) -> list[Path]:
    """Return the folders that are searched for `folder`, in order.

    An installed wheel carries the files under `_data`; a checkout has them beside the package.
    """
    candidates = [Path.cwd() / folder, _PACKAGE / "_data" / folder, _PACKAGE.parent / folder]
    return [path for path in dict.fromkeys(candidates) if path.is_dir()]


def shipped(path: Path) -> bool:
    """Return whether a file belongs to the package."""
    roots = (_PACKAGE / "_data", *(_PACKAGE.parent / name for name in ("prompts", "datasets")))
    return any(path.resolve().is_relative_to(root.resolve()) for root in roots)


def find(folder: str, name: str, suffix: str) -> Path:
    """Find a file by its path or by its name in `folder`.

    Raises:
        InputError: there is no such file; the message lists the known names.

    Examples:
        >>> find("datasets", "california_housing", ".yaml").name
        'california_housing.yaml'
    """
    direct = Path(name)
    if direct.suffix == suffix and direct.is_file():
        return direct
    bare = name.removesuffix(suffix).removeprefix(f"{folder}/")
    for root in search_path(folder):
        path = root / f"{bare}{suffix}"
        if path.is_file():
            return path
    names = ", ".join(available(folder, suffix)) or "none"
    noun, quoted = _NOUNS.get(folder, folder), visible(repr(name), 200)
    if direct.is_dir():
        raise InputError(f"{quoted} is a folder, where a {noun} is expected: a {suffix} file")
    if direct.is_file():
        raise InputError(f"{quoted} is no {noun}: name a {suffix} file")
    raise InputError(
        f"no {noun} {quoted}: there is no such {suffix} file here or in the package; known: {names}"
    )


def available(folder: str, suffix: str) -> list[str]:
    """Return the names in `folder` that `find` accepts, sorted.

    Examples:
        >>> "penguins" in available("datasets", ".yaml")
        True
    """
    return sorted(
        {
            path.relative_to(root).with_suffix("").as_posix()
            for root in search_path(folder)
            for path in root.rglob(f"*{suffix}")
        }
    )
