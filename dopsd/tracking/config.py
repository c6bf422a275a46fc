"""Section `tracking`: the MLflow server and the names used there."""

import re
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import Field, field_validator

from dopsd.core.settings import Distinct, Name, Section

EXPECTED = "expected http://HOST:PORT or sqlite:///FILE"


def address_fault(uri: str) -> str | None:
    """Return what is wrong with the address of a tracking server; None: nothing that it shows."""
    try:
        parts = urlsplit(uri)
        host, _ = parts.hostname, parts.port  # an error if it is no number
    except ValueError as error:
        return f"{EXPECTED} ({error})"
    if parts.scheme in ("http", "https"):
        if not host or re.search(r"\s", uri):
            return EXPECTED
        if parts.fragment or parts.query or "#" in uri:
            root = parts._replace(
                netloc=parts.netloc.rpartition("@")[2],
                path=parts.path.rstrip("/"),
                query="",
                fragment="",
            )
            return f"the address of a page; write {root.geturl()}"
        return None
    if re.fullmatch(r"[\w.-]+:\d+(/.*)?", uri):
        return f"write http://{uri}"
    is_known = "://" in uri and parts.scheme not in ("", "file")
    return None if is_known or uri.startswith("databricks") else EXPECTED


class TrackingConfig(Section):
    """Where runs are published; the environment variable MLFLOW_TRACKING_URI overrides `uri`."""

    enabled: bool = True  # send runs to MLflow
    uri: str | None = None  # the tracking server; null: an sqlite file in the project root
    experiment: Annotated[str, Field(min_length=1, max_length=500)] = "dopsd"  # MLflow experiment
    also: Annotated[list[Literal["tensorboard", "wandb", "trackio"]], Distinct] = Field([])  # too
    registered_model: Name = "dopsd"  # registered models are named <registered_model>-<task>

    @field_validator("uri")
    @classmethod
    def is_an_address(cls, uri: str | None) -> str | None:
        """Refuse what is not the address of a server or a database."""
        if uri and (fault := address_fault(uri)):
            raise ValueError(f"{uri.rpartition('@')[2]:.200}: {fault}")
        return uri
