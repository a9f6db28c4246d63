"""Files of a workspace, reached so that no path and no symbolic link leads out of it."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePath

import msgspec

from clew.tools.context import ToolContext
from clew.tools.signals import ToolError
from clew.workspace._folders import temporary_name

__all__ = ["Place", "locate", "read_bytes", "write_bytes"]

_BY_FD = os.open in os.supports_dir_fd
_CLOEXEC = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
_NO_LINK = getattr(os, "O_NOFOLLOW", 0) | _CLOEXEC
_FOLDER = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | _NO_LINK


class Place(msgspec.Struct, frozen=True):
    """A path inside a workspace, with no links left in it."""

    root: Path
    parts: tuple[str, ...]

    @property
    def path(self) -> Path:
        return self.root.joinpath(*self.parts)

    def __str__(self) -> str:
        return "/".join(self.parts) or "."


def locate(ctx: ToolContext, path: str) -> Place:
    """Where a model's path leads. A `ToolError` if that is not inside the workspace.

    Links inside the workspace are followed here, and only here: whoever opens the place refuses links, so one that is put
    there in between leads nowhere.
    """
    if ctx.workspace is None:
        raise ToolError("There is no workspace, so there are no files. Run the agent with workspace=…")
    wanted = PurePath(path)
    if not path or "\0" in path or ".." in wanted.parts:
        raise ToolError(f"The path {path!r} is not allowed: give one inside the workspace, without '..'.")
    root = Path(os.path.realpath(ctx.workspace))
    if wanted.is_absolute():
        homes = (root, Path(os.path.abspath(ctx.workspace)))
        home = next((home for home in homes if wanted.is_relative_to(home)), None)
        if home is None:
            raise ToolError(f"The path {path!r} is outside the workspace. Give one relative to the workspace.")
        wanted = wanted.relative_to(home)
    try:
        real = Path(os.path.realpath(root / wanted))
    except OSError as error:
        raise _explain(error, path) from error
    if not real.is_relative_to(root):
        raise ToolError(f"The path {path!r} leads out of the workspace through a symbolic link.")
    return Place(root, real.relative_to(root).parts)


def read_bytes(place: Place, largest: int) -> tuple[bytes, int]:
    """A regular file's content and its mode."""
    with _folder(place, make=False) as (fd, name):
        opened = os.open(name, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | _NO_LINK, dir_fd=fd)
        try:
            facts = os.fstat(opened)
            if stat.S_ISDIR(facts.st_mode):
                raise ToolError(f"{str(place)!r} is a folder. list_files shows what is in it.")
            if not stat.S_ISREG(facts.st_mode):
                raise ToolError(f"{str(place)!r} is not a regular file.")
            if facts.st_size > largest:
                raise ToolError(
                    f"{str(place)!r} has {facts.st_size} bytes, more than the {largest} that this tool takes. "
                    "Use a command for it."
                )
            with os.fdopen(opened, "rb", closefd=False) as file:
                return file.read(largest + 1), stat.S_IMODE(facts.st_mode)
        finally:
            os.close(opened)


def write_bytes(place: Place, data: bytes, mode: int | None) -> None:
    """Put a file there in one step: whoever reads it sees the old one or the new one. Folders are made as needed."""
    if not place.parts:
        raise ToolError("The workspace itself is a folder, and not a file that can be written.")
    with _folder(place, make=True) as (fd, name):
        if _is_folder(name, fd):
            raise ToolError(f"{str(place)!r} is a folder. Give the path of a file.")
        temporary = os.fsdecode(temporary_name())  # snapshots of the workspace leave it out
        if fd is None:
            temporary = str(Path(name).parent / temporary)
        opened = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NO_LINK, 0o666, dir_fd=fd)
        try:
            with os.fdopen(opened, "wb") as file:
                file.write(data)
                if mode is not None and hasattr(os, "fchmod"):
                    os.fchmod(opened, mode)
            os.replace(temporary, name, src_dir_fd=fd, dst_dir_fd=fd)
        except BaseException:
            with suppress(OSError):
                os.unlink(temporary, dir_fd=fd)
            raise


@contextmanager
def _folder(place: Place, *, make: bool) -> Iterator[tuple[int | None, str]]:
    """The folder that a file is in, opened name by name from the root, and the file's name in it.

    Where the system cannot open by descriptor there is None for the folder, and the whole path for the name.
    """
    fds: list[int] = []
    try:
        if not _BY_FD:
            if make:
                place.path.parent.mkdir(parents=True, exist_ok=True)
            yield None, str(place.path)
            return
        fds.append(os.open(place.root, _FOLDER))
        for name in place.parts[:-1]:
            if make:
                with suppress(FileExistsError):
                    os.mkdir(name, dir_fd=fds[-1])
            fds.append(os.open(name, _FOLDER, dir_fd=fds[-1]))
        yield fds[-1], place.parts[-1] if place.parts else "."
    except OSError as error:
        raise _explain(error, str(place)) from error
    finally:
        for fd in fds:
            os.close(fd)


def _is_folder(name: str, fd: int | None) -> bool:
    try:
        return stat.S_ISDIR(os.stat(name, dir_fd=fd, follow_symlinks=False).st_mode)
    except FileNotFoundError:
        return False


def _explain(error: OSError, path: str) -> ToolError:
    """Without the whole path of the workspace, which is not the model's business."""
    if isinstance(error, FileNotFoundError):
        return ToolError(f"There is no file {path!r} in the workspace. list_files shows what is there.")
    return ToolError(f"{path!r}: {error.strerror or type(error).__name__}")
