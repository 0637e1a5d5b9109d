"""The project's metadata that depends on its address: the description and the links of a package index.

1. `SLUICEGATE_REPOSITORY` is the address of the repository, for example on GitHub or GitLab. If it
   is set, the README's relative links lead to the repository's files: at the tag of a release,
   otherwise on `main`.
2. If it is not set, a relative link becomes its text, and there are no project links.
3. `SLUICEGATE_SITE` is the address of the documentation, if it is published.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_CODE = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
_RELATIVE = re.compile(r"\[([^]]+)\]\((?!https?:)([^)\s]+)\)")
_COMMENT = re.compile(r"^<!--.*?-->\n", re.MULTILINE)


class AddressHook(MetadataHookInterface):
    """Sets `readme` and `urls`."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Fill in the two dynamic fields of `[project]`."""
        repository, site = _address("SLUICEGATE_REPOSITORY"), _address("SLUICEGATE_SITE")
        tag = "main" if "dev" in metadata["version"] else f"v{metadata['version']}"
        text = Path(self.root, "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {
            "content-type": "text/markdown",
            "text": description(text, repository and f"{repository}/blob/{tag}"),
        }
        metadata["urls"] = urls(repository, site, tag)


def _address(name: str) -> str:
    return os.environ.get(name, "").rstrip("/")


def description(readme: str, files: str) -> str:
    """The README as a package index shows it; `files` is the address of the repository's files."""

    def absolute(link: re.Match[str]) -> str:
        text, target = link.groups()
        if not files:
            return text
        page = f"README.md{target}" if target.startswith("#") else target
        return f"[{text}]({files}/{page})"

    parts = _CODE.split(_COMMENT.sub("", readme))
    parts[::2] = [_RELATIVE.sub(absolute, prose) for prose in parts[::2]]
    return "".join(parts)


def urls(repository: str, site: str, tag: str) -> dict[str, str]:
    """The links beside the description."""
    found = {"Documentation": site} if site else {}
    if repository:
        found.setdefault("Documentation", f"{repository}/blob/{tag}/docs/index.md")
        found |= {
            "Source": repository,
            "Issues": f"{repository}/issues",
            "Changelog": f"{repository}/blob/{tag}/CHANGELOG.md",
        }
    return found
