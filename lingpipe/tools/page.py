"""Functions that return a page of HTML and its parts. They escape plain texts."""

import base64
import html
import string
from collections.abc import Mapping, Sequence

from lingpipe import drawing

_PAGE = string.Template("""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>$title</title>
<style>
:root { color-scheme: light; }
body { background: #ffffff; color: #1f2328; font: 15px/1.5 system-ui, sans-serif; margin: 0 auto; max-width: 1100px;
  padding: 1.5rem; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.2rem; margin-top: 2.2rem; } h3 { font-size: 1rem; }
nav a { margin-right: 1rem; } summary { cursor: pointer; } img { max-width: 100%; }
code, pre { background: #f6f8fa; font: 13px/1.45 ui-monospace, monospace; }
pre { overflow-x: auto; overflow-wrap: anywhere; padding: .8rem; white-space: pre-wrap; }
pre.table { white-space: pre; }
.missing { border: 1px dashed #d0d7de; color: #656d76; padding: .6rem .9rem; }
</style>
</head>
<body>
<h1>$title</h1>
$introduction
<nav>$links</nav>
$sections
</body>
</html>
""")


def element(tag: str, text: str, kind: str | None = None) -> str:
    """Return an HTML element with a text. `kind` is the CSS class."""
    attribute = f' class="{kind}"' if kind else ''
    return f'<{tag}{attribute}>{html.escape(text)}</{tag}>'


def table(text: str) -> str:
    """Return a `<pre>` element that contains a plain-text table."""
    return element('pre', text, 'table')


def missing(reason: str, command: str | None = None) -> str:
    """Return a paragraph that says why a part of the page is missing, and which command adds it."""
    remedy = f' To add it: <code>{html.escape(command)}</code>' if command else ''
    return f'<p class="missing">{html.escape(reason)}{remedy}</p>'


def folded(summary: str, content: str) -> str:
    """Return HTML that shows `content`, which is HTML, after a click on `summary`."""
    return f'<details><summary>{html.escape(summary)}</summary>{content}</details>'


def image(content: bytes, media_type: str, description: str) -> str:
    """Return HTML that embeds a picture. `description` is for screen readers."""
    data = base64.b64encode(content).decode('ascii')
    return f'<img src="data:{media_type};base64,{data}" alt="{html.escape(description)}">'


def figure(drawn: drawing.Figure, description: str) -> str:
    """Return HTML that embeds a matplotlib figure. `description` is for screen readers."""
    return image(drawing.svg(drawn), 'image/svg+xml', description)


def text(title: str, introduction: Sequence[str], sections: Mapping[str, Sequence[str]]) -> str:
    """Return a complete HTML page, with its CSS.

    Args:
        introduction: HTML elements below the title.
        sections: dictionary from heading to the HTML elements below it.
    """
    anchors = {name: name.lower().replace(' ', '-') for name in sections}
    written = _PAGE.substitute(
        title=html.escape(title), introduction='\n'.join(introduction),
        links=''.join(f'<a href="#{anchor}">{html.escape(name)}</a>' for name, anchor in anchors.items()),
        sections='\n'.join('\n'.join([f'<section id="{anchors[name]}">', f'<h2>{html.escape(name)}</h2>', *parts,
                                      '</section>']) for name, parts in sections.items()))
    return written.encode('utf-8', 'replace').decode('utf-8')  # paths may contain bytes that are not text
