"""Slots requested for a run, by variables and by the command's flag, on hosts with any number of GPUs."""

import pytest

from tasks.errors import Permanent
from workers.devices.requested_slots import requested_slots

EIGHT = {"CUDA_VISIBLE_DEVICES": "0,1,2,3,4,5,6,7", "PATH": ""}
NONE = {"CUDA_VISIBLE_DEVICES": "", "PATH": ""}


@pytest.mark.parametrize(
    ("variables", "slots", "visible"),
    [
        ({"NUM_WORKERS": "2", "TOTAL_GPUS": "4", "GPUS_PER_WORKER": "2"}, "2", "0,1,2,3"),
        ({"NUM_WORKERS": "4", "TOTAL_GPUS": "8", "GPUS_PER_WORKER": "2"}, "4", "0,1,2,3,4,5,6,7"),
        ({"NUM_WORKERS": "8", "TOTAL_GPUS": "8", "GPUS_PER_WORKER": "1"}, "8", "0,1,2,3,4,5,6,7"),
        ({"NUM_WORKERS": "2", "TOTAL_GPUS": "8", "GPUS_PER_WORKER": "4"}, "2", "0,1,2,3,4,5,6,7"),
        ({"NUM_WORKERS": "2", "GPUS_PER_WORKER": "1"}, "2", "0,1"),
        ({"GPUS_PER_WORKER": "4"}, "2", "0,1,2,3,4,5,6,7"),
        ({"TOTAL_GPUS": "3"}, "3", "0,1,2"),
        ({"NUM_WORKERS": "16"}, "16", "0,1,2,3,4,5,6,7"),
        ({"NUM_WORKERS": "3", "TOTAL_GPUS": "0"}, "cpu:3", None),
    ],
)
def test_variables_choose_slots_and_gpus(variables: dict[str, str], slots: str, visible: str | None) -> None:
    asked = requested_slots(EIGHT | variables, [])
    expected = {"ASSAY_SLOTS": slots} | ({"CUDA_VISIBLE_DEVICES": visible} if visible else {})
    assert (asked.environment, asked.note) == (expected, "")


def test_without_a_request_the_settings_are_unchanged() -> None:
    assert requested_slots(EIGHT | {"NUM_WORKERS": " "}, ["assay", "infer", "--num_workers_of", "3"]).environment == {}


@pytest.mark.parametrize(
    "flag", [["--num_workers", "2"], ["--num-workers=2"], ["--num_workers=9", "--num_workers", "2"]]
)
def test_the_commands_flag_overrides_variables(flag: list[str]) -> None:
    asked = requested_slots(NONE | {"NUM_WORKERS": "4"}, ["assay", "infer", *flag, "--verbose"])
    assert asked.environment == {"ASSAY_SLOTS": "cpu:2"}


def test_too_few_gpus_are_shared_with_a_warning() -> None:
    asked = requested_slots(NONE | {"NUM_WORKERS": "4", "TOTAL_GPUS": "8", "GPUS_PER_WORKER": "2"}, [])
    assert asked.environment == {"ASSAY_SLOTS": "cpu:4"}
    assert asked.note == "8 GPUs were requested, but this machine has 0: the workers are CPU slots."
    asked = requested_slots(NONE | {"CUDA_VISIBLE_DEVICES": "0,1", "NUM_WORKERS": "4", "GPUS_PER_WORKER": "1"}, [])
    assert asked.environment == {"ASSAY_SLOTS": "4", "CUDA_VISIBLE_DEVICES": "0,1"}
    assert asked.note == "4 GPUs were requested, but this machine has 2: workers share them."


@pytest.mark.parametrize("variables", [{"NUM_WORKERS": "0"}, {"TOTAL_GPUS": "x"}, {"GPUS_PER_WORKER": "-1"}])
def test_the_error_for_an_invalid_number_names_its_variable(variables: dict[str, str]) -> None:
    with pytest.raises(Permanent, match=f"^{next(iter(variables))}: must be a whole number"):
        requested_slots(NONE | variables, [])
