"""The parts of a build that depend on the environment: metadata with addresses, and the extension.

1. `SLUICEGATE_REPOSITORY` is the address of the repository, for example on GitHub or GitLab. If it
   is set, the README's relative links lead to the repository's files: at the tag of a release,
   otherwise on `main`.
2. If it is not set, a relative link becomes its text, pictures and project links are omitted.
3. `SLUICEGATE_SITE` is the address of the documentation, if it is published.
4. With `SLUICEGATE_NATIVE=1` the wheel contains the compiled encoder of rows, and is for one
   version of Python on one platform. An editable installation has it beside the source.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sysconfig
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

_CODE = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
_RELATIVE = re.compile(r"(!?)\[([^]]+)\]\((?!https?:)([^)\s]+)\)")
_COMMENT = re.compile(r"^<!--.*?-->\n", re.MULTILINE)
EXTENSION = Path("sluicegate", "postgres", "copying", "_rows.c")
"""The source of the extension, below `src`."""


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
        image, text, target = link.groups()
        if image:  # a host shows the file itself under `raw`
            return f"![{text}]({files.replace('/blob/', '/raw/')}/{target})" if files else ""
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


class CompileHook(BuildHookInterface[Any]):
    """Adds the extension to a wheel if `SLUICEGATE_NATIVE` is 1."""

    _folder: TemporaryDirectory[str] | None = None

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile into a temporary folder, or beside the source if the build is editable."""
        if os.environ.get("SLUICEGATE_NATIVE") != "1":
            return
        build_data.update(pure_python=False, infer_tag=True)
        source = Path(self.root, "src", EXTENSION)
        if version == "editable":
            compile_extension(source, source.parent)
            return
        self._folder = TemporaryDirectory()
        try:
            built = compile_extension(source, Path(self._folder.name))
        except RuntimeError:
            self._folder.cleanup()
            raise
        build_data["force_include"][str(built)] = str(EXTENSION.with_name(built.name))

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove the temporary folder."""
        if self._folder is not None:
            self._folder.cleanup()


def compile_extension(source: Path, folder: Path) -> Path:
    """Compile as Python was compiled, by `CC` if it is set. Raises `RuntimeError` on failure."""
    found = sysconfig.get_config_vars()
    built = folder / f"{source.stem}{found['EXT_SUFFIX']}"
    link, compiler = found.get("LDSHARED") or "cc -shared", found.get("CC") or "cc"
    if "CC" in os.environ and link.startswith(compiler):
        link = os.environ["CC"] + link.removeprefix(compiler)
    flags = [found.get("CFLAGS") or "", found.get("CCSHARED") or "", os.environ.get("CFLAGS", "")]
    command = [
        *shlex.split(" ".join([link, *flags])),
        f"-I{sysconfig.get_path('include')}",
        str(source),
        "-o",
        str(built),
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603  # of the one who builds
        reason = done.stderr if done.returncode else ""
    except OSError as error:
        reason = str(error)
    if reason:
        raise RuntimeError(
            f"{source.name} was not compiled, which SLUICEGATE_NATIVE=1 asks for. Install a C "
            "compiler and the headers of Python, or build without the variable.\n"
            f"{shlex.join(command)}\n{reason}"
        )
    return built
