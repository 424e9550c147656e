"""The body of a request: counted while it comes, and read as an image file."""

from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from arcaps.serve.images import FORMATS

FORM = "multipart/form-data"
UNNAMED = {"", "application/octet-stream"}
"""What clients send as the type of a file that they do not know. In a form it is accepted: the bytes decide."""


class CountBytes:
    """Middleware that refuses bodies of more than `max_bytes`, whether or not they say their length.

    What the client still sends after the refusal is read and dropped by the server, piece by piece, so that the client
    sees the answer instead of a broken connection.
    """

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self.app, self.max_bytes = app, max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        count = 0

        async def counted() -> Message:
            nonlocal count
            if count == 0 and declared_length(scope) > self.max_bytes:
                raise self.too_large()
            message = await receive()
            count += len(message.get("body", b""))
            if count > self.max_bytes:
                raise self.too_large()
            return message

        await self.app(scope, counted if scope["type"] == "http" else receive, send)

    def too_large(self) -> HTTPException:
        """The refusal."""
        return HTTPException(413, f"the request has more than {self.max_bytes:,} bytes: send a smaller image")


def declared_length(scope: Scope) -> int:
    """The length that a request says it has; 0 where it says none. The server has checked that it is a number."""
    return next((int(value) for name, value in scope["headers"] if name == b"content-length"), 0)


async def read_image_bytes(request: Request) -> bytes:
    """The bytes of the image file in a request: the whole body, or the field `image` of a form."""
    kind = media_type(request.headers.get("content-type"))
    if kind == FORM:
        return await read_field(request)
    if kind not in FORMATS:
        raise wrong_type(f"the body has the type {kind or '(none)'}")
    return await request.body()


async def read_field(request: Request) -> bytes:
    """The bytes of the form's file `image`."""
    async with request.form(max_files=1, max_fields=1) as form:
        image = form.get("image")
        if not isinstance(image, UploadFile):
            raise HTTPException(422, "the form has no file in the field 'image': send one, as curl -F image=@digit.png")
        kind = media_type(image.content_type)
        if kind not in FORMATS and kind not in UNNAMED:
            raise wrong_type(f"the file has the type {kind}")
        return await image.read()


def media_type(header: str | None) -> str:
    """The type alone, without parameters such as the boundary."""
    return (header or "").partition(";")[0].strip().lower()


def wrong_type(what: str) -> HTTPException:
    """The refusal of a type of content."""
    kinds = ", ".join(FORMATS)
    return HTTPException(415, f"{what}: send an image as one of {kinds}, or as the file 'image' of a form ({FORM})")
