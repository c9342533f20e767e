"""The errors of staging and reading data sets; every message is one line that ends in a remedy."""


class DataError(RuntimeError):
    """A data set could not be staged, read or verified."""


class UnknownDataset(DataError):
    """No data set of this name is in the catalogue."""


class NotStaged(DataError):
    """The data set is not under the data root; the message holds the command that stages it."""


class Damaged(DataError):
    """The staged folder is incomplete, or a file in it has the wrong size or shape."""


class Unavailable(DataError):
    """A source cannot give the files from here; the next source is tried."""


class Corrupt(DataError):
    """A file's content is not what it should be.

    Attributes
    ----------
    file, expected, found : str
        The file's name, the checksum it should have, and the one it has.
    """

    def __init__(
        self, where: str, file: str, expected: str, found: str, remark: str = "", remedy: str = "", checksum: str = "SHA-256",
    ):  # fmt: skip
        self.file, self.expected, self.found = file, expected, found
        text = f"{where}: {file} is corrupt: {checksum} expected {expected}, found {found}"
        super().__init__(text + (f" ({remark})" if remark else "") + (f": {remedy}" if remedy else ""))
