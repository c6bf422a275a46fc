"""Check settings across sections of params.yaml, before any data or model is loaded."""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from dopsd.algorithms.common.config import BETWEEN, AlgorithmConfig
from dopsd.algorithms.d_opsd.config import DOpsdConfig
from dopsd.core.errors import unknown
from dopsd.core.paths import BASES
from dopsd.evaluation.speed import curve_protocols
from dopsd.models.config import ModelConfig
from dopsd.tasks.common.config import Source
from dopsd.tasks.custom.verifiers.config import watched
from dopsd.training.run_settings import ADAPTING, PHASES
from dopsd.training.start import start_run

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

    from dopsd.config.params import Params
    from dopsd.training.run_settings import RunSettings

OTHER_METHOD = (
    "ablate.variants and ablate.tables belong to ablate.method: set them together, such as --set"
    " ablate.method={method} --set 'ablate.variants={{default: {{}}, NAME: {{KEY: VALUE}}}}' --set"
    " 'ablate.tables={{TABLE: [NAME]}}'"
)


SIDE_BY_SIDE = (
    "`dopsd launch --at-once {count} repro` makes {count} runs of the matrix at a time, each on its"
    " own GPUs (launch.processes)"
)


def check_variants(params: Params) -> None:
    """Check every row of ablate.variants against the settings of its method."""
    for name, changes in params.ablate.variants.items():
        if f"{params.ablate.method}{BETWEEN}{name}" in PHASES:
            raise ValueError(
                f"ablate.variants.{name}: is a run of `dopsd adapt`; name it otherwise"
            )
        if not changes:  # the method itself, which is checked with the others
            continue
        try:
            _check_states(params, f"ablate.variants.{name}", params.changed(name))
        except ValidationError as error:
            raise ValueError(_variant_fault(params, name, error.errors()[0])) from error


def _variant_fault(params: Params, name: str, fault: ErrorDetails) -> str:
    """Return what is wrong with a variant; one of another method has keys that do not exist."""
    variant, keys = f"ablate.variants.{name}", [str(part) for part in fault["loc"]]
    if fault["type"] != "extra_forbidden":
        message = fault["msg"].removeprefix("Value error, ")
        return f"{'.'.join([variant, *keys])}: {message}, found {fault['input']!r}"
    method = params.ablate.method
    config: AlgorithmConfig = vars(params.method)[method]
    other = "see the comments in params.yaml" if keys[1:] else OTHER_METHOD.format(method=method)
    known = type(config.train if keys[1:] else config).model_fields
    similar = get_close_matches(keys[-1], known, 1)
    advice = f"did you mean {similar[0]}?" if similar else other
    return f"{variant}: {method} has no setting {'.'.join(keys)}; {advice}"


def check_sections(params: Params) -> None:
    """Check that no two sections contradict each other."""
    _check_task_names(params)
    check_watched(params)
    models = _models(params)
    _check_protocols(params, models)
    for name, config in vars(params.method).items():
        _check_states(params, f"method.{name}", config)
    if params.adapt.distill:
        _check_states(params, "adapt.distill", params.adapt.distill)
    if params.launch.shard:
        _check_shard(params, models)
    _check_matrix(params)
    _check_adapt(params)
    runs = every_run(params)
    reasons = [
        reason
        for r in runs
        for reason in (r.reason_against_task, r.reason_against_sampling, r.reason_against_reuse)
    ]
    if faults := [reason for reason in reasons if reason]:
        raise ValueError(faults[0])
    _check_weights(params, runs)
    _check_starts(params, runs)


def _check_task_names(params: Params) -> None:
    for key, names in (
        ("matrix.tasks", params.matrix.tasks),
        ("verify_teacher.tasks", params.verify_teacher.tasks),
        ("ablate.task", [params.ablate.task]),
        ("evaluate.watch", params.evaluate.watch),
    ):
        if invalid := [name for name in names if name not in params.tasks]:
            raise ValueError(unknown(f"{key}: {', '.join(invalid)}", params.tasks))


def _models(params: Params) -> dict[str, ModelConfig]:
    """Return section `model` and every task's overridden copy of it, by key in params.yaml."""
    models = {"model": params.model}
    for task, config in params.data.tasks.items():
        if config.model is not None:
            try:
                models[f"data.{task}.model"] = params.model_of(task)
            except ValidationError as error:
                reason = error.errors()[0]["msg"].removeprefix("Value error, ")
                raise ValueError(f"data.{task}.model: {reason}") from error
    return models


def _check_protocols(params: Params, models: dict[str, ModelConfig]) -> None:
    if params.select.protocol not in params.evaluate.protocols:
        known = ", ".join(params.evaluate.protocols)
        raise ValueError(
            f"select.protocol {params.select.protocol!r} is not one of evaluate.protocols ({known})"
        )
    name = params.select.protocol
    curve_protocols(name, params.evaluate.protocols[name], params.evaluate.curve)  # refuses misfits
    if words := params.evaluate.protocols[params.select.protocol].approximations:
        raise ValueError(
            f"select.protocol {params.select.protocol!r} is approximate ({', '.join(words)}); set"
            " an exact protocol"
        )
    _check_race(params)
    cached = [
        name for name, protocol in params.evaluate.protocols.items() if protocol.cache != "none"
    ]
    for key, model in models.items():
        if cached and (model.attention != "sdpa" or model.compile):
            raise ValueError(
                f"evaluate.protocols.{cached[0]}.cache needs {key}.attention sdpa and"
                f" {key}.compile false"
            )


def _check_race(params: Params) -> None:
    race = params.select.race
    if race is None:
        return
    if race.protocol not in params.evaluate.protocols:
        known = ", ".join(params.evaluate.protocols)
        raise ValueError(
            f"select.race.protocol {race.protocol!r} is not one of evaluate.protocols ({known})"
        )
    if race.protocol == params.select.protocol:
        raise ValueError(
            f"select.race.protocol {race.protocol!r} is select.protocol: name a faster one, or a"
            " copy under another name"
        )
    if not params.evaluate.protocols[race.protocol].mask_padding:
        raise ValueError(
            f"select.race: evaluate.protocols.{race.protocol}.mask_padding must be true, so that"
            " an answer is the same in every round"
        )


def _check_matrix(params: Params) -> None:
    for task in params.matrix.tasks:
        texts = params.data.tasks[task].texts
        if texts and params.model_of(task).prompt_style == "compact":
            raise ValueError(
                f"data.{task}.{texts[0]} is not read with model.prompt_style compact; set"
                " model.prompt_style to instructions"
            )
    for method in params.matrix.methods + (params.adapt.phases if params.adapt.tasks else []):
        if params.launch.processes > (size := params.of(method).train.prompts_per_collect):
            raise ValueError(
                f"launch.processes must be at most train.prompts_per_collect of {method}, {size}:"
                " one problem for each process; for more GPUs set it to 1 and make runs side by"
                f" side: `dopsd launch --at-once {params.launch.processes} repro`"
            )
    if len(params.unsolved) == len(params.matrix.tasks) * len(params.matrix.methods):
        task, method = params.unsolved[0]
        raise ValueError(
            f"matrix.methods: {method} needs reference solutions and {task} has none; remove one of"
            " them"
        )
    a = params.ablate
    has_solutions = params.data.tasks[a.task].has_solutions
    if a.run and vars(params.method)[a.method].wants_solutions and not has_solutions:
        raise ValueError(
            f"ablate.method: {a.method} needs reference solutions and {a.task} has none; name"
            " another task or method"
        )


def matrix_notes(params: Params) -> list[str]:
    """Return a note for each pair of the matrix without a run, and each row unlike the paper's."""
    notes = [
        f"{task}/{method}: no run, since {method} needs reference solutions and {task} has none"
        for task, method in params.unsolved
    ]
    methods = dict.fromkeys(method for _, method in params.pairs)
    configs = [vars(params.method)[method] for method in methods]
    is_published = not params.pretrain.tasks  # a language model, as in the paper
    return notes + [c.unlike_paper for c in configs if is_published and c.unlike_paper]


def _check_adapt(params: Params) -> None:
    """Check that an adapted base is the one that the runs start from."""
    adapt, model = params.adapt, params.model_of(params.matrix.tasks[0])
    for task in adapt.tasks:
        config, path = params.data.tasks.get(task), Path(params.model.path)
        blocks = bool(model.block_size and adapt.output_shift)
        without = config is not None and not (config.has_solutions or adapt.learn.traces)
        faults = {
            f"adapt.tasks: {task} must be the first of matrix.tasks: it makes the base of all": (
                task != params.matrix.tasks[0]
            ),
            f"adapt.tasks: {task} is in pretrain.tasks too": task in params.pretrain.tasks,
            f"data.{task}.model.path must be null: model.path names the adapted base": (
                config is not None and config.model is not None and config.model.path is not None
            ),
            "model.path: name a new folder for the adapted base, not adapt.source": (
                path == Path(adapt.source or "")
            ),
            f"model.path: {path}: folders in {BASES}/ are those of `dopsd pretrain`; name another"
            " for the adapted base, such as models/mine": BASES in path.parents,
            f"model.path: {path}: name a folder of this project, such as models/mine": (
                path.is_absolute() or ".." in path.parts
            ),
            "adapt.distill: the causal teacher needs model.attention sdpa": (
                adapt.distill is not None and model.attention.startswith("flash")
            ),
            "adapt.learn.train.reuse: set 1, for new masks": params.of(ADAPTING).train.reuse > 1,
            "launch.shard must be false: adapting trains all weights": params.launch.shard,
            "adapt.output_shift: blocks (model.block_size) need 0": blocks,
            f"adapt.learn.traces: {task} has no solutions of its own; name a file": without,
        }
        if found := [fault for fault, holds in faults.items() if holds]:
            raise ValueError(found[0])


def every_run(params: Params) -> list[RunSettings]:
    """Return every run of the matrix and of `ablate.run`."""
    a = params.ablate
    variants = [f"{a.method}{BETWEEN}{name}" for name in a.run if name in a.variants]
    return params.runs + [params.run(a.task, name, seed) for name in variants for seed in a.seeds]


def _check_weights(params: Params, runs: list[RunSettings]) -> None:
    """Check that a run of all weights has no settings of adapters, and a base that can train."""
    merged = [name for name, protocol in params.evaluate.protocols.items() if protocol.merged]
    for run in [run for run in runs if not run.train.adapter]:
        method, config = run.key.method, run.algorithm
        faults = {
            f"method.{method}.train.lora must be null": config.train.lora is not None,
            f"method.{method}.teacher_dropout must be false": vars(config).get("teacher_dropout"),
            "model.quantization must be none": run.model.quantization != "none",
            f"evaluate.protocols.{'.'.join(merged[:1])}.merged must be false": bool(merged),
        }
        if found := [fault for fault, holds in faults.items() if holds]:
            raise ValueError(
                f"train.weights: all, of {method}: {found[0]}; or set train.weights to lora"
            )


def _check_starts(params: Params, runs: list[RunSettings]) -> None:
    """Check that no run starts from one that DVC may train later, and what a reference needs."""
    keys = {run.key for run in runs}
    for run in runs:
        start, train, method = start_run(run), run.train, run.key.method
        if train.reference == "start" and not train.start_from:
            raise ValueError(f"train.reference: start needs train.start_from, which {method} lacks")
        if start and start.method not in params.methods:
            raise ValueError(unknown(f"train.start_from: {start.method}", params.methods))
        if start and start in keys - {run.key}:
            raise ValueError(
                f"train.start_from: {method} starts from {start}, a run of the same matrix, which"
                f" DVC may train later; train it first, then remove {start.method} from"
                " matrix.methods or ablate.run"
            )


def _check_shard(params: Params, models: dict[str, ModelConfig]) -> None:
    """Check what sharding needs: a frozen base whose weights are stored as they are."""
    for key, model in models.items():
        is_moving = model.compile or model.cuda_graphs
        if model.quantization != "none" or model.attention == "auto" or is_moving:
            raise ValueError(
                f"launch.shard: needs {key}.quantization none, compile and cuda_graphs false,"
                " attention sdpa or flash_attention_2"
            )
    merged = [name for name, protocol in params.evaluate.protocols.items() if protocol.merged]
    if merged:
        raise ValueError(
            f"launch.shard: evaluate.protocols.{merged[0]}.merged must be false; sharded weights"
            " cannot be merged"
        )
    for method in params.matrix.methods:
        if fault := params.run(params.matrix.tasks[0], method, 0).reason_against_shards:
            raise ValueError(fault)


def _check_states(params: Params, key: str, config: AlgorithmConfig) -> None:
    """Check that a trajectory gives a method of self-distillation states to train on."""
    if not isinstance(config, DOpsdConfig):
        return
    s = params.sampling
    if s.gen_length == s.block_length and not config.record_last_block:
        raise ValueError(
            f"sampling: one block only and {key}.record_last_block false leave no state to train"
            f" on; make block_length a part of gen_length, or set {key}.record_last_block: true"
        )
    if config.reveal_scope == "all_masked" and config.reveal_ratio == 1:
        raise ValueError(
            f"{key}.reveal_ratio 1 with reveal_scope all_masked leaves nothing to learn"
        )
    if config.updates_per_trajectory > s.steps:
        raise ValueError(f"{key}.updates_per_trajectory must be at most sampling.steps {s.steps}")


def adapt_files(params: Params) -> dict[str, str]:
    """Return the local files that section adapt names, by key."""
    adapt = params.adapt
    if not adapt.tasks or not adapt.source:
        return {}
    is_gguf = Path(adapt.source).suffix.lower() == ".gguf"
    source = {"adapt.source": adapt.source if is_gguf else f"{adapt.source}/config.json"}
    return source | _source_files("adapt.learn", vars(adapt.learn))


def task_files(params: Params, task: str) -> dict[str, str]:
    """Return the local files that a task's section names, by key."""
    section = params.data.tasks[task]
    files = {f"data.{task}.{key}": name for key, name in section.files.items()}
    return files | _source_files(f"data.{task}", vars(section))


def method_files(params: Params, method: str) -> dict[str, str]:
    """Return the local files that a method's section names, by key."""
    return _source_files(f"method.{method}", vars(vars(params.method)[method]))


def _source_files(key: str, section: dict[str, Any]) -> dict[str, str]:
    """Return the local files of a section's datasets by key, without names on the hub."""
    return {
        f"{key}.{name}.path": value.path
        for name, value in section.items()
        if isinstance(value, Source) and value.is_file
    }


def check_watched(params: Params) -> None:
    """Refuse files outside data/external, of which a change would make no stage run again."""
    files: dict[str, str] = {}
    for task in params.data.tasks:
        files |= task_files(params, task)
    for method in vars(params.method):
        files |= method_files(params, method)
    files |= _source_files("adapt.learn", vars(params.adapt.learn))
    for key, path in files.items():
        try:
            watched(path)
        except ValueError as error:
            raise ValueError(f"{key}: {path}: {error}; move it there") from error
