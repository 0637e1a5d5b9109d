"""The hooks of the docs build."""

from __future__ import annotations

import importlib.util
import re
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import sluicegate

ROOT = Path(__file__).parents[2]


def hook(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def page(path: str) -> Any:
    return SimpleNamespace(file=SimpleNamespace(src_uri=path))


def words(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip()


def test_the_changelog_has_every_fragment(tmp_path: Path) -> None:
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    fragments = tmp_path / "changelog.d"
    fragments.mkdir()
    (fragments / "+one.added.md").write_text("A sink of one kind.\n", encoding="utf-8")
    (fragments / "+two.fixed.md").write_text("A repair.\n", encoding="utf-8")
    (fragments / "README.md").write_text("Not a change.\n", encoding="utf-8")
    shown = words(hook("changelog_page").unreleased(tmp_path))
    assert shown == "## Not yet released ### Added - A sink of one kind. ### Fixed - A repair."


def test_the_changelog_has_every_release() -> None:
    """The newest one is of this version, unless it is not yet released."""
    shown = hook("changelog_page").on_page_markdown("# Top\n", page=page("changelog.md"))
    releases = re.findall(r"^## (\d\S*) \(\d{4}-\d\d-\d\d\)$", shown, re.M)
    assert releases[-1] == "0.1.0"
    assert "dev" in sluicegate.__version__ or releases[0] == sluicegate.__version__


def test_other_pages_stay_as_they_are() -> None:
    assert hook("changelog_page").on_page_markdown("text", page=page("index.md")) == "text"
    html = '<p title="sluicegate._core.errors.X">\n\n</p>'
    assert hook("reference_html").on_post_page(html, page=page("index.md")) == html


def shown(html: str) -> str:
    repaired = hook("reference_html").on_post_page(html, page=page("reference/api/errors.md"))
    assert isinstance(repaired, str)
    return repaired


def test_no_private_path_is_shown() -> None:
    assert (
        shown('<a title="Clock (sluicegate._core.clock.Clock)" href="#x">Clock</a>')
        == '<a href="#x">Clock</a>'
    )
    assert shown('<span title="enum.Enum">Enum</span>') == '<span title="enum.Enum">Enum</span>'


def test_only_public_bases_are_shown() -> None:
    private = '<code><span title="sluicegate.http.client.HttpBase">HttpBase</span></code>'
    public = '<code><a class="autorefs" href="#sluicegate.SinkError">SinkError</a></code>'
    assert shown(f'<p class="doc doc-class-bases">\nBases: {private}</p>') == ""
    both = shown(f'<p class="doc doc-class-bases">\nBases: {private}, {public}</p>')
    assert both == f'<p class="doc doc-class-bases">\nBases: {public}</p>'


def test_code_keeps_its_empty_lines() -> None:
    assert shown("<div>\n\n  <pre>a\n\n  b</pre>\n\n</div>") == "<div>\n<pre>a\n\n  b</pre>\n</div>"


def head(path: str, markdown: str) -> dict[str, Any]:
    shown = page(path)
    shown.meta = {}
    assert hook("page_head").on_page_markdown(markdown, page=shown) == markdown
    return {**shown.meta}


def test_a_page_has_its_heading_as_title_and_its_beginning_as_description() -> None:
    text = '# Write to `X`\n\n`pip install "x"`, then [go](on.md).\n\n```python\n1\n```\n\nMore.\n'
    assert head("how-to/x.md", text) == {
        "title": "Write to X",
        "description": "pip install &quot;x&quot;, then go.",
        "search": {"boost": 2.0},
    }
    assert head("reference/api/x.md", "# X { #x }\n\nNames.\n")["title"] == "X"


def test_the_titles_of_the_home_page_and_of_the_reference() -> None:
    config = SimpleNamespace(site_name="S")
    shown = hook("page_head").on_post_page
    home = shown("<title>S - S</title>", page=page("index.md"), config=config)
    assert home == "<title>S</title>"
    reference = shown("<title>X - S</title>", page=page("reference/api/x.md"), config=config)
    assert reference == "<title>X, reference - S</title>"


def test_text_about_a_program_above_it_does_not_describe_the_page() -> None:
    shown = head("index.md", "# X\n\n```python\n1\n```\n\nThis prints 1.\n")
    assert shown["description"] == "X: a program, and how it works."


def test_long_programs_are_not_searched() -> None:
    short = '<div class="highlight"><pre>one\n</pre></div>'
    long = f'<div class="highlight"><pre>{"line" + chr(10)}{"line" * 2}{chr(10) * 12}</pre></div>'
    shown = hook("page_head").on_page_content(short + long)
    assert shown == short + long.replace("<div ", "<div data-search-exclude ", 1)
