"""Files that are written whole or not at all."""

import os
import tempfile
from pathlib import Path

__all__ = ["write_atomically"]


def write_atomically(path: str | Path, content: bytes | str) -> None:
    """Write `content` under a temporary name in the same folder, then rename it to `path`.

    A reader, and a machine that loses power, sees the old file or the new one, never a part.
    """
    path = Path(path)
    data = content.encode() if isinstance(content, str) else content
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _umask() -> int:
    # mkstemp makes private files, but a run folder is there to be shared; os.umask can only be read by setting it.
    mask = os.umask(0o022)
    os.umask(mask)
    return mask
