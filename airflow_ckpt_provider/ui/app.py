"""The application that the API server mounts: who gets in, what every answer carries, and what becomes of errors."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from airflow.api_fastapi.core_api.security import get_user
from fastapi import Depends, FastAPI
from fastapi.responses import HTMLResponse, JSONResponse
from starlette.exceptions import HTTPException
from starlette.middleware.base import BaseHTTPMiddleware

from airflow_ckpt_provider.checkpoint.secrets import without_credentials
from airflow_ckpt_provider.exceptions import CheckpointError, CheckpointMissingError, InvalidInputError
from airflow_ckpt_provider.ui.access import NotAllowedError
from airflow_ckpt_provider.ui.pages import render
from airflow_ckpt_provider.ui.routes import router

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from fastapi import Request, Response

_log = logging.getLogger(__name__)

#: Only what this application serves may run, be shown or be sent to; and only Airflow itself may frame it.
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; "
        "base-uri 'none'; frame-ancestors 'self'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
}


def create_app() -> FastAPI:
    """The application. Nobody gets anything of it without having signed in to Airflow."""
    app = FastAPI(title="Checkpoints", openapi_url=None, dependencies=[Depends(get_user)])
    app.include_router(router)
    app.add_middleware(BaseHTTPMiddleware, dispatch=_with_headers)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(NotAllowedError, _not_allowed)
    app.add_exception_handler(CheckpointError, _checkpoint_error)
    app.add_exception_handler(OSError, _checkpoint_error)
    return app


async def _with_headers(request: Request, answer: Callable[[Request], Awaitable[Response]]) -> Response:
    response = await answer(request)
    for name, value in _HEADERS.items():
        response.headers.setdefault(name, value)
    return response


async def _http_error(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    detail = str(error.detail) if isinstance(error, HTTPException) else "Internal error"
    if status == 401:
        detail = "You are not signed in to Airflow any more. Sign in again, and reload this page."
    return _answer(request, status, detail)


async def _not_allowed(request: Request, error: Exception) -> Response:
    return _answer(request, 403, str(error))


async def _checkpoint_error(request: Request, error: Exception) -> Response:
    """Why something cannot be shown, for a person to read; a script is told by the status."""
    status = 200
    if isinstance(error, CheckpointMissingError):
        status = 404
    elif isinstance(error, InvalidInputError):
        status = 400
    elif _asks_for_json(request):
        status = 502
    _log.warning("The page %s cannot be shown: %s", request.url.path, error)
    return _answer(request, status, without_credentials(str(error)) or type(error).__name__)


def _answer(request: Request, status: int, message: str) -> Response:
    if _asks_for_json(request):
        return JSONResponse({"detail": message}, status)
    return HTMLResponse(render("trouble.html", title="Checkpoints", message=message, status=status), status)


def _asks_for_json(request: Request) -> bool:
    return request.url.path.endswith(".json")
