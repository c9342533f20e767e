"""Show text from a submission: short, printable ASCII, in quotes.

Escaping for HTML is done once more, where a page is written; this keeps a line one line in a terminal, a log and a
gradebook comment, whatever bytes a student put in a file.
"""

__all__ = ["printable", "quote"]


def quote(value: object, limit: int = 60) -> str:
    """Show an untrusted value in one line of printable ASCII.

    Parameters
    ----------
    value : object
        A string or a JSON value.
    limit : int
        Characters of the value to keep; the rest becomes ``...``.

    Returns
    -------
    str
        In quotes where `value` is a string, as Python's `ascii` writes it.
    """
    if isinstance(value, str):
        # Cut before escaping, so that a megabyte is never escaped to show sixty characters of it.
        return ascii(value[:limit]) + ("..." if len(value) > limit else "")
    plain = value is None or isinstance(value, (bool, int, float))
    text = ascii(value) if plain else f"a {type(value).__name__}"
    return text[:limit] + ("..." if len(text) > limit else "")


def printable(text: str, limit: int) -> str:
    """An untrusted name for a page: cut, and with ``\\ufffd`` for what does not print.

    That is control characters, marks that turn the direction of text, and lone surrogates, which no file can hold.
    """
    return "".join(character if character.isprintable() else "\ufffd" for character in text[:limit])
