"""The page's files, and the headers with which a browser lets them do no more than they need."""

from pathlib import Path
from typing import Any

from fastapi import APIRouter, FastAPI
from fastapi.responses import FileResponse, Response
from starlette.staticfiles import StaticFiles

FILES = Path(__file__).with_name("static")
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",  # asks again each time, and is told when nothing has changed
}

router = APIRouter(include_in_schema=False)


@router.api_route("/", methods=["GET", "HEAD"])
async def page() -> FileResponse:
    """The page, for which no key is needed: it holds nothing and asks for the key itself."""
    return FileResponse(FILES / "index.html", headers=HEADERS)


class _PageFiles(StaticFiles):
    def file_response(self, *args: Any, **options: Any) -> Response:
        response = super().file_response(*args, **options)
        response.headers.update(HEADERS)
        return response


def add_site(app: FastAPI) -> None:
    """The page at `/`, and the files that it loads below /static."""
    app.include_router(router)
    app.mount("/static", _PageFiles(directory=FILES))
