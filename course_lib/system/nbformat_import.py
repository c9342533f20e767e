"""Import nbformat without a grammar that it does not need, which takes a second.

nbformat imports jsonschema, which for its check of international addresses imports rfc3987_syntax, which builds a
grammar there and then: over a second of a processor in every command and every grading worker. No schema of notebooks
is checked for such addresses.
"""

import sys

__all__ = ["leave_addresses_out"]


def leave_addresses_out() -> None:
    """Let jsonschema, if it is not imported yet, do without rfc3987_syntax, which it takes for not installed."""
    sys.modules.setdefault("rfc3987_syntax", None)  # type: ignore[arg-type]
