"""The docs link to the repository once the project has an address."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.examples.example import ROOT

pytest.importorskip("material")

from mkdocs.config import load_config
from mkdocs.structure.files import File
from mkdocs.structure.pages import Page

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig

REPOSITORY = "https://git.example/water/sluicegate"


def settings() -> MkDocsConfig:
    """As a build has them, after the hooks."""
    config = load_config(str(ROOT / "mkdocs.yml"))
    return config.plugins.on_config(config)


def edit_link(config: MkDocsConfig) -> str | None:
    index = File("index.md", config.docs_dir, config.site_dir, use_directory_urls=True)
    return Page(None, index, config).edit_url


def test_without_an_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLUICEGATE_REPOSITORY", raising=False)
    config = settings()
    assert not config.repo_url
    assert not config.site_url
    assert edit_link(config) is None


def test_with_an_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLUICEGATE_REPOSITORY", REPOSITORY)
    monkeypatch.setenv("SLUICEGATE_SITE", "https://docs.example/")
    config = settings()
    assert (config.repo_url, config.repo_name) == (REPOSITORY, "Sluicegate")
    assert config.site_url == "https://docs.example/"
    assert edit_link(config) == f"{REPOSITORY}/edit/main/docs/index.md"
