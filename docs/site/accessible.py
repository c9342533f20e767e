"""What Sphinx and Furo leave out of a page for who listens to it: roles, names, levels of headings."""

import re

__all__ = ["accessible"]

REPLACED = (
    # The navigation's captions are headings without a level.
    ('<p class="caption" role="heading">', '<p class="caption" role="heading" aria-level="2">'),
    # Two of the same kind need names.
    ('<aside class="sidebar-drawer">', '<aside class="sidebar-drawer" aria-label="Site">'),
    ('<aside class="toc-drawer">', '<aside class="toc-drawer" aria-label="Page">'),
    # An empty heading of a table's column is none.
    ('<th class="head"><p></p></th>', "<td></td>"),
    ('<div id="search-results">', '<h1>Search</h1>\n<div id="search-results">'),
)
# The parameters of a long signature, one a line, are no definitions.
PARAMETERS = re.compile(r'<dl>\n((?:<dd><em class="sig-param">.*</dd>\n)+)</dl>')


def accessible(html: str) -> str:
    """The page with what is left out; `tests/accessibility` examines the pages of the whole site."""
    for old, new in REPLACED:
        html = html.replace(old, new)
    return PARAMETERS.sub(_lines, html)


def _lines(match: re.Match[str]) -> str:
    rows = match[1].replace("<dd>", '<span class="sig-line">').replace("</dd>", "</span>")
    return f'<span class="sig-lines">\n{rows}</span>'
