"""Draws the diagrams of the pages: `docs/assets/NAME.svg` from `NAME.dot`, by Graphviz.

`make diagrams` runs it. The digest in a drawing tells from which source it was made: a drawing
depends on the installed fonts, so drawings of two machines differ.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

ASSETS = Path(__file__).parents[2] / "docs" / "assets"
COMMON = """{
graph [fontname="sans-serif" nodesep=0.35 ranksep=0.4]
node [fontname="sans-serif" fontsize=13 shape=box style="rounded,filled" height=0.4]
edge [fontname="sans-serif" fontsize=12 arrowsize=0.8]
"""
STYLE = """\
<style>.graph>polygon{fill:#fff}.node path,.node ellipse{fill:#eceef8;stroke:#3f51b5}\
text{fill:#555}.node text{fill:#3f51b5;font-weight:600}\
.edge path{stroke:#3f51b5;stroke-width:1.5}.edge polygon{fill:#3f51b5;stroke:#3f51b5}\
.answer path{stroke:#2e7d32}.answer polygon{fill:#2e7d32;stroke:#2e7d32}\
.failed path{stroke:#c62828}.failed polygon{fill:#c62828;stroke:#c62828}\
@media(prefers-color-scheme:dark){.graph>polygon{fill:#1e2129}\
.node path,.node ellipse{fill:#2a2f4a;stroke:#9fa8da}text{fill:#bbb}.node text{fill:#c5cae9}\
.edge path{stroke:#9fa8da}.edge polygon{fill:#9fa8da;stroke:#9fa8da}\
.answer path{stroke:#81c784}.answer polygon{fill:#81c784;stroke:#81c784}\
.failed path{stroke:#ef9a9a}.failed polygon{fill:#ef9a9a;stroke:#ef9a9a}}</style>"""


def sources() -> list[Path]:
    return sorted(ASSETS.glob("*.dot"))


def digest(source: Path) -> str:
    """A comment for the drawing of this source."""
    return f"<!-- {source.name} {hashlib.sha256(source.read_bytes()).hexdigest()[:16]} -->"


def drawing(source: Path) -> str:
    """The drawing as SVG, in colours for light and dark pages."""
    # 110 MB, so only for `make diagrams`
    from pygraphviz import AGraph  # pyright: ignore[reportMissingImports]

    graph = AGraph(string=source.read_text(encoding="utf-8").replace("{\n", COMMON, 1))
    text = graph.draw(format="svg", prog="dot").decode()
    text = text[text.index("<svg") :]
    text = re.sub(r"<!--.*?-->\n|<title>.*?</title>\n", "", text, flags=re.DOTALL)
    top = f'{digest(source)}\n<g id="graph0"'
    return text.replace('<g id="graph0"', f"{STYLE}\n{top}")


def main() -> None:
    for source in sources():
        source.with_suffix(".svg").write_text(drawing(source), encoding="utf-8")


if __name__ == "__main__":
    main()
