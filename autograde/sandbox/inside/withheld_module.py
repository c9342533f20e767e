"""This module is withheld: an exercise of this lab asks you to write what it holds."""


class _Withheld(type):
    """Class of what is imported from here. It can be named, subclassed and passed on, so that every import succeeds."""

    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return cls

    def __call__(cls, *args, **kwargs):
        raise RuntimeError(
            f"{cls.__module__}.{cls.__name__} is withheld here: an exercise of this lab asks you to write it"
        )

    __getitem__ = __iter__ = __call__


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # An exception, so that `except` can name it.
    return globals().setdefault(name, _Withheld(name, (Exception,), {"__module__": __name__}))
