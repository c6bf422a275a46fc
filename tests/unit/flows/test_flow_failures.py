"""Wrong parameters of a run: refused by Prefect's server, or one line without a traceback."""

import contextlib
import json
import logging
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT, write_params
from deployed import prefect_server
from prefect import flow
from prefect.exceptions import FailedRun
from prefect.utilities.callables import parameter_schema
from prefect.utilities.importtools import import_object
from prefect.utilities.schema_tools import validation

from dopsd.config import params_file, profiles
from dopsd.core.errors import DopsdError
from dopsd.pipeline.run.request import RunRequest
from flows import stages
from flows.running import CommandFailed, failed

FLOWS = ("flows/train.py:train", "flows/compare.py:compare", "flows/rehearse.py:rehearse")


@pytest.fixture(scope="module")
def schema() -> dict[str, Any]:
    """The one schema of overrides of all flows; it is checked here and not with each value."""
    with contextlib.chdir(ROOT):
        first, *others = [parameter_schema(import_object(name)).model_dump() for name in FLOWS]
    about = ("anyOf", "default")  # and not how each form describes it
    values = [[each["properties"]["overrides"][key] for key in about] for each in (first, *others)]
    assert values == [values[0]] * 3 and "$ref" not in json.dumps(values)
    validation._VALIDATOR.check_schema(validation.preprocess_schema(first))
    return first


@pytest.fixture
def submit(schema, monkeypatch):
    """What the server does with the parameters of `prefect deployment run`."""
    monkeypatch.setattr(validation._VALIDATOR, "check_schema", lambda *_, **__: None)
    return lambda overrides: validation.validate(
        {"overrides": overrides}, schema, raise_on_error=True
    )


WRONG = {
    "train.updats": 5,
    "trains": {},
    "evaluate.protocols.greedy.gen_lengt": 8,
    "method.d_opsd.train.updates.more": 1,
    "method.nobody.updates": 1,
    "data.gsm8k.train.paths": "x",
}


@pytest.mark.parametrize("key", WRONG)
def test_a_key_that_does_not_exist_is_refused_by_name_on_submission(submit, key):
    with pytest.raises(validation.ValidationError) as refused:
        submit({"train.updates": 5, key: WRONG[key]})
    assert f"({key!r} was unexpected)" in str(refused.value) and len(str(refused.value)) < 200


def test_a_value_of_another_kind_is_refused_on_submission(submit):
    sections = [{key: v} for key in ("train", "method.d_opsd", "data.gsm8k") for v in (None, 5, [])]
    for overrides in ({"train.updates": "five"}, *sections):
        with pytest.raises(validation.ValidationError, match="|".join(overrides)):
            submit(overrides)


@pytest.mark.full
def test_every_setting_of_every_profile_may_be_overridden(submit):
    for profile in profiles.names():
        submit(params_file.flat(profiles.resolve(profile)))
    more = {"evaluate.protocols.mine": {"steps": 8}, "ablate.variants.mine.train.updates": 5}
    more |= {"evaluate.protocols.256.steps": 8, "data.gsm8k.train.path": "data/external/a.jsonl"}
    more |= {"train": {"updates": 5}, "tracking.uri": None, "data.gsm8k.model": None}
    for overrides in (more, {}, None):
        submit(overrides)


@pytest.fixture(scope="module")
def server(prefect_database: Path):
    with prefect_server(prefect_database):
        yield


@pytest.fixture
def logged(server) -> Any:
    """What Prefect's engine logs of flow and task runs, tracebacks included."""
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(handler.format(record))
    engines = [logging.getLogger(f"prefect.{name}_runs") for name in ("flow", "task")]
    for engine in engines:
        engine.addHandler(handler)
    yield lines
    for engine in engines:
        engine.removeHandler(handler)


@pytest.mark.full
def test_a_mistake_in_the_settings_ends_a_run_with_its_message_and_no_traceback(here, logged):
    write_params()
    before = Path("params.yaml").read_bytes()

    @flow
    def run() -> Any:
        try:
            return stages.write_settings(RunRequest(overrides={"train.learning_rat": 1}))
        except DopsdError as error:
            return failed(error)

    state = run(return_state=True)
    said = "\n".join(logged)
    assert state.is_failed() and "train.learning_rat: unknown key;" in state.message
    assert state.message in said and "Traceback" not in said
    assert Path("params.yaml").read_bytes() == before


@pytest.mark.full
def test_a_run_that_is_part_of_another_fails_both_with_one_message(logged):
    @flow
    def inner() -> Any:
        return failed(CommandFailed("train", 2, ["dopsd: data/x.jsonl:3: no answer"]))

    @flow
    def outer() -> Any:
        try:
            return inner()
        except FailedRun as error:
            return failed(error)

    assert outer(return_state=True).message == "train: data/x.jsonl:3: no answer (exit code 2)"
    assert "Traceback" not in "\n".join(logged)


@pytest.mark.full
def test_an_error_that_explains_nothing_keeps_its_traceback(logged):
    @flow
    def run() -> Any:
        try:
            return {}["missing"]
        except KeyError as error:
            return failed(error)

    assert run(return_state=True).is_failed()
    assert "Traceback" in "\n".join(logged)
