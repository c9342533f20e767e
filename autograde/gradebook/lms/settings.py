"""``c.LTI`` in ``nbgrader_config.py``: how this course reaches the LMS's services."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import urlsplit

from traitlets import Integer, List, TraitError, Unicode
from traitlets.config import Config, Configurable

from course_lib.runs.run_evidence.quoting import quote

__all__ = ["LTI", "LmsError", "lti_settings", "reachable"]

_AGS, _NRPS = "https://purl.imsglobal.org/spec/lti-ags/scope/", "https://purl.imsglobal.org/spec/lti-nrps/scope/"
SCOPES = [f"{_AGS}lineitem", f"{_AGS}result.readonly", f"{_AGS}score", f"{_NRPS}contextmembership.readonly"]


class LmsError(RuntimeError):
    """The LMS cannot be used, or refuses. The message is one line with the remedy."""


class LTI(Configurable):
    """What the LMS says of this tool and this course. docs/administrator.md says where it says so."""

    token_url = Unicode(help="Where access tokens are given out.").tag(config=True)
    audience = Unicode(help="Whom a request for a token names as its receiver; the token_url where empty.").tag(
        config=True
    )
    client_id = Unicode(help="The tool's client id.").tag(config=True)
    key_file = Unicode(help="The tool's private RSA key (PEM), which only its owner can read.").tag(config=True)
    key_id = Unicode(help="The key's `kid`, where the LMS reads the public key as a JWK.").tag(config=True)
    scopes = List(Unicode(), SCOPES, help="What a token is asked for.").tag(config=True)
    line_items_url = Unicode(help="The course's line items (AGS).").tag(config=True)
    members_url = Unicode(help="The course's members (NRPS); needed for `lab roster`.").tag(config=True)
    student_field = Unicode(
        "lis_person_sourcedid",
        help="The field of a member that is the student's id here; on a hub, the account's name. It is one that "
        "students cannot change.",
    ).tag(config=True)
    attempts = Integer(6, min=1, max=20, help="How often a request is tried.").tag(config=True)

    def private_key(self) -> bytes:
        """The key file's bytes. Raises `LmsError`: it cannot be read, or others can read it."""
        try:
            with open(self.key_file, "rb") as file:
                if os.fstat(file.fileno()).st_mode & 0o077:
                    raise LmsError(f"{self.key_file} can be read by others; chmod 600 {self.key_file}")
                return file.read()
        except OSError as error:
            raise LmsError(f"c.LTI.key_file = {self.key_file!r} cannot be read ({error.strerror})") from None


def reachable(url: str) -> bool:
    """Whether tokens and scores may go to an address: by TLS, or not over a network."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    return bool(parts.hostname) and (
        parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in ("127.0.0.1", "::1"))
    )


def lti_settings(config: Config, *needed: str) -> LTI:
    """The settings of nbgrader's configuration.

    Parameters
    ----------
    needed : str
        Names of addresses that must be there, beside those for a token.

    Raises `LmsError`: a setting is missing, misspelt or of another kind, or an address is not https.
    """
    place = "nbgrader_config.py: c.LTI"
    if unknown := [name for name in config.LTI if name not in LTI.class_trait_names(config=True)]:
        known = ", ".join(sorted(LTI.class_trait_names(config=True)))
        raise LmsError(f"{place} has no {quote(unknown[0])}; it has {known}")
    try:
        settings = LTI(config=config)
    except TraitError as error:
        raise LmsError(f"{place}: {' '.join(str(error).split())}") from None
    for name in ("token_url", "client_id", "key_file", *needed):
        value = getattr(settings, name)
        if not value:
            raise LmsError(f"{place}.{name} is not set; docs/administrator.md says where the LMS shows it")
        if name.endswith("_url") and not reachable(value):
            raise LmsError(f"{place}.{name} = {quote(value)} is no https address")
    settings.key_file = str(Path(settings.key_file).expanduser())
    return settings
