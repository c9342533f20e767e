"""Allow-list sanitiser for the final HTML of a page, and the content security policies of pages.

The sanitiser is `nh3 <https://nh3.readthedocs.io>`_, bindings of Ammonia: it is maintained, parses as browsers do, and
takes milliseconds for a page. nbconvert brings bleach, which was declared deprecated in 2023.

A page has two layers. `clean_fragment` is for what one student's cell became: no identifiers, no classes but those of
highlighted code, no controls, no links into this site. `clean_page` is for a page's whole body, which holds nbgrader's
own controls, too.
"""

from __future__ import annotations

import re
import secrets
from base64 import b64encode
from hashlib import sha256

import nh3
from pygments.token import STANDARD_TYPES

__all__ = ["HANDLERS", "POLICY", "clean_fragment", "clean_page", "formgrader_policy", "new_nonce"]

# For pages that are files: nothing runs, nothing is fetched, nothing is sent.
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"

# nbgrader's templates have handlers in attributes, which a policy allows by their hashes.
HANDLERS = (
    "toggle_name(true);",
    "toggle_name(false);",
    "toggleAllNames()",
    "createAssignmentModal();",
    "createStudentModal();",
)

_TEXT = (
    "a b blockquote br code dd del details div dl dt em h1 h2 h3 h4 h5 h6 hr i img kbd li ol p pre s span strong sub "
    "summary sup table tbody td tfoot th thead tr u ul"
)
_CONTROLS = "button input textarea"
_DROPPED = {"script", "style", "template", "noscript", "iframe", "object", "embed", "title", "textarea", "select"}

_CLASSES = frozenset(STANDARD_TYPES.values()) | {"highlight", "as-typed", "note"}
_MORE_CLASSES = re.compile(r"(ansi|hl|language)-[A-Za-z0-9+-]{1,40}")
_PICTURE = re.compile(r"data:image/(png|jpeg);base64,[A-Za-z0-9+/]+={0,2}")
_LINK = re.compile(r"(https?://|mailto:)[^\s\\]{1,2000}", re.IGNORECASE)

# What a browser would not show as text, or would use to change its direction; tab and newline stay.
_INVISIBLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff]")


def _fragment_attribute(tag: str, name: str, value: str) -> str | None:
    if name == "class":
        kept = [word for word in value.split() if word in _CLASSES or _MORE_CLASSES.fullmatch(word)]
        return " ".join(kept) or None
    return _address(name, value)


def _address(name: str, value: str) -> str | None:
    if name == "src":
        return value if _PICTURE.fullmatch(value) else None
    if name == "href":
        return value if _LINK.fullmatch(value) else None
    return value


def _page_attribute(tag: str, name: str, value: str) -> str | None:
    if name == "href" and value.startswith("#"):
        return value  # from the list of scores to a cell
    return _address(name, value)


# A cell's width, and the widths of nbgrader's inputs; colours come from ANSI codes of a terminal's 256.
_STYLES = {"text-align", "color", "background-color"}
_SHARED = {"img": {"src", "alt"}, "ol": {"start"}, "td": {"style"}, "th": {"style"}, "span": {"style"}}
_FRAGMENT = nh3.Cleaner(
    tags=set(_TEXT.split()),
    clean_content_tags=_DROPPED,
    attributes={**_SHARED, "a": {"href"}}
    | {tag: _SHARED.get(tag, set()) | {"class"} for tag in ("div", "pre", "code", "span", "p")},
    attribute_filter=_fragment_attribute,
    filter_style_properties=_STYLES,
    url_schemes={"http", "https", "mailto", "data"},
    link_rel="noopener noreferrer nofollow",
)
_PAGE = nh3.Cleaner(
    tags=set(_TEXT.split()) | set(_CONTROLS.split()),
    clean_content_tags=_DROPPED - {"textarea"},
    attributes={
        **_SHARED,
        "*": {"class", "id"},
        "a": {"href"},
        "button": {"type"},
        "input": {"type", "style"},
        "div": {"tabindex"},
    },
    attribute_filter=_page_attribute,
    filter_style_properties={*_STYLES, "width"},
    url_schemes={"http", "https", "mailto", "data"},
    link_rel="noopener noreferrer nofollow",
)


def clean_fragment(html: str) -> str:
    """HTML made from a student's text, reduced to text, pictures in the page itself, and links to other sites."""
    return _FRAGMENT.clean(_INVISIBLE.sub("\ufffd", html))


def clean_page(html: str) -> str:
    """The body of a page, with nbgrader's score and comment boxes, without anything that runs or is fetched."""
    return _PAGE.clean(_INVISIBLE.sub("\ufffd", html))


def new_nonce() -> str:
    """A number that nobody can guess, for the scripts of one response of the server."""
    return secrets.token_urlsafe(16)


def formgrader_policy(nonce: str) -> str:
    """The policy of formgrader's pages: nbgrader's own scripts, by the nonce, and nobody else's.

    Scripts are not allowed by origin, because the same origin serves the files of submissions.
    """
    handlers = " ".join(f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'" for text in HANDLERS)
    return (
        f"default-src 'none'; script-src 'nonce-{nonce}' 'unsafe-hashes' {handlers}; style-src 'self' 'unsafe-inline'; "
        "img-src 'self' data:; font-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'"
    )
