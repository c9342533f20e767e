"""The error of evidence that cannot be used."""

__all__ = ["EvidenceError"]


class EvidenceError(Exception):
    """Evidence that cannot be used; the message is one line: what, where, remedy."""
