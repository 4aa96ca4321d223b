"""A page of HTML that needs no other file: its elements, whose texts are escaped, and its style."""

import base64
import re
from xml.etree import ElementTree

Element = ElementTree.Element

# HTML does not allow control characters (except tab and line feed), halves of surrogate pairs, and non-characters.
_NOT_ALLOWED = re.compile('[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]')
_STYLE = """
:root { color-scheme: light dark; --ink: #1f2328; --soft: #656d76; --paper: #ffffff; --card: #f6f8fa; --line: #d0d7de;
  --wait: #e6e8eb; --s0: #0969da; --s1: #bc4c00; --s2: #1a7f37; --s3: #8250df; --s4: #bf3989; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6edf3; --soft: #9198a1; --paper: #0d1117; --card: #161b22;
  --line: #30363d; --wait: #30363d; --s0: #58a6ff; --s1: #f0883e; --s2: #3fb950; --s3: #bc8cff; --s4: #f778ba; } }
body { background: var(--paper); color: var(--ink); font: 15px/1.5 system-ui, sans-serif; margin: 0 auto;
  max-width: 1080px; padding: 1.5rem; }
h1 { font-size: 1.6rem; margin: 0 0 .25rem; } h2 { font-size: 1.2rem; margin: 2.2rem 0 .6rem; }
h3 { font-size: .95rem; margin: 0 0 .3rem; }
nav a, .fact { margin-right: 1rem; } nav { margin-top: .8rem; } a { color: var(--s0); }
p { margin: .5rem 0; } .soft, figcaption, .missing { color: var(--soft); }
.missing { border: 1px dashed var(--line); border-radius: 6px; padding: .6rem .9rem; }
code, pre { font: 13px/1.45 ui-monospace, monospace; } code { background: var(--card); padding: .1em .3em; }
pre { background: var(--card); border-radius: 6px; margin: .5rem 0; overflow-x: auto; padding: .8rem;
  white-space: pre-wrap; overflow-wrap: anywhere; }
.wide { overflow-x: auto; } .wide > svg { min-width: 720px; }
table { border-collapse: collapse; font-size: 13px; font-variant-numeric: tabular-nums; }
th, td { border-bottom: 1px solid var(--line); padding: .3rem .55rem; text-align: left; white-space: nowrap; }
th { color: var(--soft); font-weight: 600; } .number { text-align: right; }
.charts { display: grid; gap: 1rem; grid-template-columns: repeat(auto-fill, minmax(min(100%, 470px), 1fr)); }
figure { border: 1px solid var(--line); border-radius: 6px; margin: 0; padding: .8rem; }
.images { display: flex; flex-wrap: wrap; gap: .8rem; } .images figure { text-align: center; }
.images img { display: block; height: 88px; image-rendering: pixelated; margin: 0 auto .3rem; width: 88px; }
figcaption { font-size: 13px; } summary { cursor: pointer; margin: .5rem 0; }
.key { border-radius: 2px; display: inline-block; height: .8em; margin: 0 .35em 0 .9em; width: .8em; }
svg { display: block; height: auto; width: 100%; } svg text { fill: var(--ink); font: 12px system-ui, sans-serif; }
svg .soft { fill: var(--soft); } svg .end { text-anchor: end; } svg .middle { text-anchor: middle; }
svg .inside { fill: #1f2328; font-size: 11px; text-anchor: middle; }
svg line { stroke: var(--line); } svg .limit { stroke: #cf222e; stroke-width: 2; } svg .wait { fill: var(--wait); }
svg polyline { fill: none; stroke-linejoin: round; stroke-width: 1.8; }
"""
_SERIES_STYLE = ''.join(
    f'.s{index} {{ background: var(--s{index}); fill: var(--s{index}); stroke: var(--s{index}); }}\n'
    for index in range(5))


def element(tag: str, *children: Element | str, **attributes: object) -> Element:
    """Returns an element.

    Args:
        tag: its name.
        *children: elements and texts, in order.
        **attributes: its attributes; `class_` is 'class', other underscores are dashes.
    """
    made = ElementTree.Element(
        tag, {name.rstrip('_').replace('_', '-'): _clean(str(value)) for name, value in attributes.items()})
    for child in children:
        if not isinstance(child, str):
            made.append(child)
        elif len(made):
            made[-1].tail = (made[-1].tail or '') + _clean(child)
        else:
            made.text = (made.text or '') + _clean(child)
    return made


def _clean(text):
    return _NOT_ALLOWED.sub('\N{REPLACEMENT CHARACTER}', text)


def table(header: list[str], rows: list[list[str]]) -> Element:
    """Returns a table, which scrolls if it is wider than the page; columns of numbers are aligned to the right.

    Args:
        header: titles of the columns.
        rows: list of lists of texts.
    """
    is_number = [all(re.fullmatch(r'[-+\d.,]+(e[-+]?\d+)?( ?[%x])?', row[column]) for row in rows)
                 for column in range(len(header))]
    kinds = [{'class_': 'number'} if right else {} for right in is_number]
    return element('div', element('table', element('thead', element(
        'tr', *(element('th', title, **kind) for title, kind in zip(header, kinds)))), element('tbody', *(
            element('tr', *(element('td', cell, **kind) for cell, kind in zip(row, kinds))) for row in rows))),
                   class_='wide')


def missing(reason: str, command: str | None = None) -> Element:
    """Returns a paragraph in place of a missing part.

    Args:
        reason: a sentence with the reason.
        command: the command that would add the part, or None.
    """
    if command is None:
        return element('p', reason, class_='missing')
    return element('p', f'{reason} To add it: ', element('code', command), class_='missing')


def folded(summary: str, *children: Element) -> Element:
    """Returns elements that are shown when the summary is clicked."""
    return element('details', element('summary', summary), *children)


def image(png: bytes, description: str) -> Element:
    """Returns a picture that is embedded in the page.

    Args:
        png: bytes of a PNG file.
        description: its description, for screen readers.
    """
    return element('img', src='data:image/png;base64,' + base64.b64encode(png).decode('ascii'), alt=description)


def text(title: str, sections: dict[str, list[Element]], introduction: list[Element]) -> str:
    """Returns the page.

    Args:
        title: its title.
        sections: dictionary from the heading of a section to its elements.
        introduction: elements before the first section.
    """
    anchors = {heading: heading.lower().replace(' ', '-') for heading in sections}
    links = [element('a', heading, href=f'#{anchor}') for heading, anchor in anchors.items()]
    body = element('body', element('h1', title), *introduction, element('nav', *links), *(
        element('section', element('h2', heading), *children, id=anchors[heading])
        for heading, children in sections.items()))
    head = element(
        'head', element('meta', charset='utf-8'),
        element('meta', name='viewport', content='width=device-width, initial-scale=1'), element('title', title),
        element('style', _STYLE + _SERIES_STYLE))
    page = ElementTree.tostring(element('html', head, body, lang='en'), encoding='unicode', method='html')
    return f'<!DOCTYPE html>\n{page}\n'
