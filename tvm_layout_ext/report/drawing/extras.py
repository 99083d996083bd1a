"""What drawings need of the extra ``viz``: templates of jinja2, figures of matplotlib."""

from __future__ import annotations

from importlib import resources
from typing import Any

from ...errors import LayoutExtError


class MissingExtraError(LayoutExtError, ImportError):
    """A library of the extra ``viz`` that is not installed."""

    def __init__(self, library: str) -> None:
        super().__init__(
            f"The picture needs {library}, which is not installed: "
            "pip install 'tvm-layout-ext[viz]'."
        )


def template(package: str, name: str) -> Any:
    """Read a template of jinja2 that lies in a package."""
    try:
        import jinja2
    except ImportError:
        raise MissingExtraError("jinja2") from None
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    text = resources.files(package).joinpath(name).read_text(encoding="utf-8")
    return environment.from_string(text)
