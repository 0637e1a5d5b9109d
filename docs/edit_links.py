"""No edit links as long as the project has no address: MkDocs would warn about relative ones."""  # noqa: INP001  # a hook of MkDocs, loaded by its path

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig


def on_config(config: MkDocsConfig) -> None:
    """Drop `edit_uri` without a `repo_url`."""
    if not config.repo_url:
        config.edit_uri = None
