"""No edit links as long as the project has no address: MkDocs would warn about relative ones. And no
selector of versions in a site without a list of them.
"""  # noqa: INP001  # a hook of MkDocs, loaded by its path

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig


def on_config(config: MkDocsConfig) -> None:
    """Drop `edit_uri` without a `repo_url`, and the selector unless mike builds the site."""
    if not config.repo_url:
        config.edit_uri = None
    if "MIKE_DOCS_VERSION" not in os.environ:
        config.extra.pop("version", None)
