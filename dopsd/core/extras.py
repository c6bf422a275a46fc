"""Optional packages: the extra that installs each, and the line that asks for a missing one."""

from importlib.util import find_spec

from dopsd.core.errors import Code

EXTRAS = {  # package: extra of pyproject.toml
    "bokeh": "pipeline",
    "datasets": "data",
    "dvc": "pipeline",
    "fastapi": "pipeline",
    "gguf": "gguf",
    "jsonschema": "verifiers",
    "liger_kernel": "liger",
    "math_verify": "verifiers",
    "matplotlib": "pipeline",
    "mlflow": "tracking",
    "prefect": "pipeline",
    "pyarrow": "data",
    "reasoning_gym": "gym",
    "sqlalchemy": "pipeline",
}


def require(where: str, package: str) -> None:
    """Refuse to continue without an optional package."""
    if find_spec(package) is None:
        raise Code.PACKAGE_MISSING.error(f"{where}: {package} is not installed; {advice(package)}")


def advice(package: str) -> str:
    """Return the command that installs an optional package."""
    return f"pip install 'dopsd[{EXTRAS[package]}]'"
