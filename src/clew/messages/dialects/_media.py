"""Pictures and documents: which of their forms a vendor takes, and the words that stand for those it does not."""

from __future__ import annotations

import re
from typing import Literal

from clew.messages.blocks import File, Image

IMAGE_TYPES = frozenset({"image/jpeg", "image/png", "image/gif", "image/webp"})
"""All three APIs take these four and no other."""
_ALIASES = {"image/jpg": "image/jpeg"}
_LINK = re.compile(r"https?://\S+", re.IGNORECASE)
_ANTHROPIC_FILE = "file_"

Form = Literal["data", "url", "file_id"]


def image_type(image: Image) -> str:
    return _ALIASES.get(image.media_type, image.media_type)


def is_image_type(media_type: object) -> bool:
    return isinstance(media_type, str) and media_type in IMAGE_TYPES


def image_form(image: Image) -> Form | None:
    """The bytes if they can be sent, else the link, else the vendor's file. None if there is nothing to send."""
    if image.data and image_type(image) in IMAGE_TYPES:
        return "data"
    return _other_form(image)


def file_form(file: File) -> Form | None:
    return "data" if file.data else _other_form(file)


def _other_form(block: Image | File) -> Form | None:
    if is_link(block.url):
        return "url"
    return "file_id" if block.file_id else None


def is_link(url: object) -> bool:
    return isinstance(url, str) and _LINK.fullmatch(url) is not None


def is_anthropic_file(file_id: object) -> bool:
    """Files belong to the vendor they were uploaded to. The two vendors' ids begin differently: `file_` and `file-`."""
    return isinstance(file_id, str) and file_id.startswith(_ANTHROPIC_FILE)


def is_openai_file(file_id: object) -> bool:
    return isinstance(file_id, str) and file_id != "" and not file_id.startswith(_ANTHROPIC_FILE)


def words_for(block: Image | File) -> str:
    """What the model reads in place of something it cannot be shown."""
    kind = "image" if isinstance(block, Image) else "file"
    name = block.name if isinstance(block, File) else ""
    about = ", ".join(part for part in (name, block.media_type, block.url or "") if part)
    return f"[{kind} not shown: {about}]" if about else f"[{kind} not shown]"
