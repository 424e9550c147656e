"""The HTTP interface of an exported model."""

import asyncio
import html
import mimetypes
from collections.abc import AsyncIterator, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from typing import Annotated, Any

import numpy as np

from arcaps.errors import ArcapsError
from arcaps.export import Exported
from arcaps.registry import unknown
from arcaps.serve.batching import Answers, Batcher
from arcaps.serve.images import FORMATS, to_input
from arcaps.serve.limits import Limits

try:
    import python_multipart  # noqa: F401 (FastAPI needs it for forms, and says so only when one arrives)
    from fastapi import FastAPI, HTTPException, Query, Request
    from fastapi.responses import JSONResponse, Response
    from starlette.requests import ClientDisconnect

    from arcaps.serve.body import CountBytes, read_image_bytes
except ModuleNotFoundError as error:
    raise ArcapsError(f"this needs the package {error.name}: pip install 'arcaps[serve]'") from None

LOCAL_ONLY = "default-src 'self' data: blob: 'unsafe-inline' 'wasm-unsafe-eval'"
"""The page may use what this server gives it, and nothing from elsewhere: the browser enforces it."""
FILE = {"type": "string", "format": "binary"}
BODY = {
    "required": True,
    "content": {
        "multipart/form-data": {
            "schema": {"type": "object", "required": ["image"], "properties": {"image": FILE}},
        },
        **{kind: {"schema": FILE} for kind in FORMATS},
    },
}
PROBLEMS = {
    408: "the image did not arrive in time",
    413: "the request has too many bytes",
    415: "the type of the content is not that of an image",
    422: "the image cannot be read, has too many pixels, or a part is unknown",
    503: "too many requests are under way: try again after the seconds of Retry-After",
    504: "there was no answer in time",
}


class Service:
    """An exported model that answers requests within limits."""

    def __init__(self, exported: Exported, limits: Limits) -> None:
        self.exported, self.limits = exported, limits
        self.batcher = Batcher(exported.run, limit=limits.batch)
        self.decoding = ThreadPoolExecutor(1, "decode")  # one image at a time: this bounds the memory
        self.parts = sorted({output.partition(".")[0] for output in exported.outputs})
        self.under_way = 0

    async def predict(self, request: Request, parts: str) -> dict[str, Any]:
        """Read a request, and answer it."""
        wanted = self.check_parts(parts)
        deadline = asyncio.get_running_loop().time() + self.limits.deadline
        with self.place_in_queue():
            try:
                async with asyncio.timeout_at(deadline):
                    content = await read_image_bytes(request)
            except TimeoutError:
                late = f"the image did not arrive within {self.limits.deadline:g} s: send a smaller one"
                raise HTTPException(408, late) from None
            try:
                async with asyncio.timeout_at(deadline):
                    return describe(await self.answer(content), wanted, self.exported.class_names)
            except TimeoutError:
                late = f"there was no answer within {self.limits.deadline:g} s: try again later"
                raise HTTPException(504, late) from None
            except ArcapsError as error:
                raise HTTPException(422, str(error)) from None

    async def answer(self, content: bytes) -> Answers:
        """Decode an image file in the decoding thread, and answer it with others that wait."""
        loop = asyncio.get_running_loop()
        image = await loop.run_in_executor(self.decoding, to_input, content, self.exported, self.limits.max_pixels)
        return await self.batcher(image)

    def check_parts(self, parts: str) -> list[str]:
        """The parts of an answer that were asked for, separated by commas; refuses what the model does not have."""
        wanted = [part.strip() for part in parts.split(",") if part.strip()]
        for part in wanted:
            if part not in self.parts:
                raise HTTPException(422, f"{unknown('part', part, self.parts)}")
        return wanted

    @contextmanager
    def place_in_queue(self) -> Iterator[None]:
        """Count a request as under way; refuses it when there are too many already."""
        if self.under_way >= self.limits.queue:
            full = f"{self.under_way} requests are under way, which is the most: try again in a second"
            raise HTTPException(503, full, headers={"Retry-After": "1"})
        self.under_way += 1
        try:
            yield
        finally:
            self.under_way -= 1

    def model(self) -> dict[str, Any]:
        """What a client needs to know of the model, and the limits of the server."""
        channels, height, width = self.exported.input_shape
        known = ("architecture", "parameters", "preprocessing", "arcaps_version")
        return {
            "classes": self.exported.class_names,
            "image": {"channels": channels, "height": height, "width": width},
            "parts": self.parts,
            "precision": self.exported.precision,
            **{key: self.exported.metadata[key] for key in known},
            "limits": {"max_bytes": self.limits.max_bytes, "max_pixels": self.limits.max_pixels},
        }

    def health(self) -> dict[str, Any]:
        """That the server answers, and how much it has answered."""
        batcher = self.batcher
        return {"status": "ok", "under_way": self.under_way, "answered": batcher.answered, "batches": batcher.batches}

    def warm_up(self) -> None:
        """Answer one black image, so that the first client does not wait for what is set up once."""
        channels, height, width = self.exported.input_shape
        self.exported.run(self.exported.prepare(np.zeros((height, width, channels), np.uint8)))

    def close(self) -> None:
        """End the threads."""
        self.batcher.close()
        self.decoding.shutdown(wait=False, cancel_futures=True)


def describe(answers: Answers, parts: list[str], class_names: list[str]) -> dict[str, Any]:
    """The class of an image and the score of every class, as `arcaps predict --json` says it, and the other parts."""
    scores = answers["scores"]
    found: dict[str, Any] = {
        "class": class_names[int(scores.argmax())],
        "scores": dict(zip(class_names, scores.tolist(), strict=True)),
    }
    for part in parts:
        if part == "coefficients":
            prefix = "coefficients."
            layers = {name.removeprefix(prefix): name for name in answers if name.startswith(prefix)}
            found[part] = {layer: answers[name].tolist() for layer, name in layers.items()}
        elif part != "scores":
            found[part] = answers[part].tolist()
    return found


def create_app(exported: Exported, *, page: Mapping[str, bytes] | None = None, limits: Limits | None = None) -> FastAPI:
    """An application that answers with an exported model: run it with `arcaps.serve.run`, or any ASGI server.

    `page` holds the files of the page that is shown at `/`, by their paths, as `arcaps.page.page_files` makes them.
    Without them, a plain page with a form is shown.
    """
    service = Service(exported, limits or Limits())
    service.warm_up()

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        service.close()

    app = FastAPI(
        title="arcaps",
        summary="Capsule networks: the classes of images.",
        version=str(exported.metadata["arcaps_version"]),
        docs_url=None,  # FastAPI's pages of documentation load scripts from other hosts
        redoc_url=None,
        lifespan=lifespan,
    )
    app.add_middleware(CountBytes, max_bytes=service.limits.max_bytes)
    add_api(app, service)
    add_page(app, {"index.html": plain_page(exported.class_names)} if page is None else page)
    return app


def add_api(app: FastAPI, service: Service) -> None:
    """The routes for programs."""
    problem = {"application/json": {"schema": {"type": "object", "properties": {"detail": {"type": "string"}}}}}
    responses: dict[int | str, dict[str, Any]] = {
        code: {"description": reason, "content": problem} for code, reason in PROBLEMS.items()
    }

    @app.post("/predict", responses=responses, openapi_extra={"requestBody": BODY})
    async def predict(
        request: Request,
        parts: Annotated[str, Query(description=f"Also answer with these, of: {', '.join(service.parts)}")] = "",
    ) -> Response:
        """Name the class of an image, with the score of every class."""
        try:
            answer = await service.predict(request, parts)
        except ClientDisconnect:
            return Response(status_code=400)  # the client is gone: nobody reads this
        except asyncio.CancelledError:  # the server ends, and this request took longer than it waits
            return JSONResponse({"detail": "the server is stopping: try again later"}, status_code=503)
        return JSONResponse(answer)

    @app.get("/model")
    async def model() -> dict[str, Any]:
        """Describe the model and the limits."""
        return service.model()

    @app.get("/health")
    async def health() -> dict[str, Any]:
        """Say that the server answers."""
        return service.health()

    @app.exception_handler(Exception)
    async def fault(request: Request, error: Exception) -> Response:
        sentence = f"the server failed with {type(error).__name__}: its log says more"
        return JSONResponse({"detail": sentence}, status_code=500)


NOTHING_HERE = (
    "there is nothing at this address: GET / is the page, POST /predict takes an image, "
    "GET /openapi.json describes all requests"
)


def add_page(app: FastAPI, files: Mapping[str, bytes]) -> None:
    """The files of the page. The browser is told to ask no other host for anything."""

    @app.get("/{path:path}", include_in_schema=False)
    async def file(path: str) -> Response:
        content = files.get(path or "index.html")
        if content is None:
            raise HTTPException(404, NOTHING_HERE)
        kind, packed = mimetypes.guess_type(path or "index.html")
        kind = "application/octet-stream" if packed or kind is None else kind
        return Response(content, media_type=kind, headers={"Content-Security-Policy": LOCAL_ONLY})


def plain_page(class_names: list[str]) -> bytes:
    """A page that needs no other files: what the server answers, and a form to try it."""
    known = html.escape(", ".join(class_names))
    return PLAIN_PAGE.replace("CLASSES", known).replace("KINDS", ",".join(FORMATS)).encode()


PLAIN_PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>arcaps serve</title>
<style>body { font: 1rem/1.5 system-ui, sans-serif; max-width: 42rem; margin: 2rem auto; padding: 0 1rem }</style>
<h1>arcaps serve</h1>
<p>This model knows the classes CLASSES.</p>
<form method="post" action="predict" enctype="multipart/form-data">
  <label>An image: <input type="file" name="image" accept="KINDS" required></label>
  <button>Predict</button>
</form>
<ul>
  <li><code>POST /predict</code>: the class of an image</li>
  <li><a href="model"><code>GET /model</code></a>: classes, image size, limits</li>
  <li><a href="health"><code>GET /health</code></a>: whether the server answers</li>
  <li><a href="openapi.json"><code>GET /openapi.json</code></a>: the description of all this for programs</li>
</ul>
</html>
"""
