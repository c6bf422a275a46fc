"""Stable codes of all error messages: `dopsd explain D103` prints what to do about one.

A code that was released keeps its number, its name and its meaning: never reuse or renumber one. A
new code takes the next free number of its group. dopsd/cli/explanations.yaml has the text of each.
"""

from __future__ import annotations

from enum import Enum, unique


@unique
class Code(Enum):
    """The code at the end of an error message, by name; docs/errors.md explains all."""

    # settings
    NO_SETTINGS_FILE = "D101"
    NOT_YAML = "D102"
    UNKNOWN_KEY = "D103"
    WRONG_VALUE = "D104"
    CONTRADICTION = "D105"
    NAMED_FILE_MISSING = "D106"
    PROFILE = "D107"
    CHANGE = "D108"
    MISFIT = "D109"
    VARIABLE = "D110"

    # command line, and arguments of the library
    USAGE = "D201"
    UNKNOWN_NAME = "D202"
    ARGUMENT = "D203"
    OPTIONS = "D204"
    OUTPUT_EXISTS = "D205"
    NOT_A_PROJECT = "D206"
    PATH = "D207"

    # data and tasks
    SOURCE_MISSING = "D301"
    SOURCE_FORMAT = "D302"
    SOURCE_ROW = "D303"
    HUB = "D304"
    TOO_FEW_PROBLEMS = "D305"
    NOT_PREPARED = "D306"
    PREPARED_DAMAGED = "D307"
    NO_SOLUTIONS = "D308"
    PROMPT_FILE = "D309"
    PROBLEM_TEXT = "D310"
    VERIFIER_PROGRAM = "D311"
    NOT_TRAINABLE = "D312"

    # models and adapters
    NO_MODEL = "D401"
    MODEL_CONFIG = "D402"
    UNSUPPORTED_MODEL = "D403"
    WEIGHTS = "D404"
    TOKENIZER = "D405"
    NO_ADAPTER = "D406"
    ADAPTER_DAMAGED = "D407"
    ADAPTER_MISFIT = "D408"
    ADAPTER_KIND = "D409"
    LORA_TARGETS = "D410"
    MERGING = "D411"
    BASE_DIFFERS = "D412"
    NO_TRAINABLE = "D413"

    # training and stages
    INTERRUPTED = "D501"
    OTHER_CODE = "D502"
    RUN_IN_USE = "D505"
    RESUME = "D506"
    NOT_FINITE = "D507"
    OUT_OF_MEMORY = "D508"
    NOTHING_TO_LEARN = "D509"
    CHECKPOINTS_DIFFER = "D510"
    CHANGED_DURING_STAGE = "D511"
    STAGE_FAILED = "D512"
    STAGE_MISSING = "D513"
    PROCESS_LOST = "D514"

    # results and evaluation
    NO_RESULTS = "D601"
    RESULT_DAMAGED = "D602"
    GENERATIONS_FILE = "D603"
    GENERATIONS_ROW = "D604"
    NOT_COMPARABLE = "D605"

    # machine, disk and network
    PACKAGE_MISSING = "D701"
    NO_GPU = "D702"
    COMPILER = "D703"
    PROCESSES = "D704"
    DISK_FULL = "D705"
    TEMPORARY = "D706"
    NOT_READY = "D707"
    GIT = "D708"

    # tracking and plug-ins
    TRACKING_OFF = "D801"
    TRACKING_SERVER = "D802"
    PLUGIN_BROKEN = "D803"
    PLUGIN = "D804"
    PLUGIN_PAGE = "D805"
    PUSH_REFUSED = "D806"
    SERVED_DIFFERS = "D807"
    TRACKING_REFUSED = "D808"

    # runs with Prefect
    RUN_SERVER = "D901"
    NO_DEPLOYMENT = "D902"
    NO_RUN = "D903"
    RUN_FAILED = "D904"
    RUN_LEFT = "D905"
    RUN_CANCELLED = "D906"
