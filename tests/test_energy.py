"""Devices, traces and the ledger against the paper's tables."""

import numpy as np
import pytest

from skiptrain_plugin.energy.devices import Device, Trace, Workload, derive
from skiptrain_plugin.energy.ledger import EnergyLedger, assign
from skiptrain_plugin.energy.trace_csv import format_trace, parse_devices, parse_trace
from skiptrain_plugin.errors import InputError
from skiptrain_plugin.experiment.files import read_devices, read_trace
from skiptrain_plugin.resources import packaged_trace
from tests.problems import DEVICE_NAMES, PAPER_MWH, PAPER_TAU, refused, skiptrain

WORKLOADS = {"cifar": (Workload(89_834, 32, 20), 0.10), "femnist": (Workload(1_690_046, 16, 7), 0.50)}
NETWORK = {"cifar": "LeNet", "femnist": "CNN"}


def authors_csv(dataset: str) -> str:
    """The authors' layout, retyped from the facts: byte-order mark, CRLF, their column names."""
    net = NETWORK[dataset]
    header = (
        f"Device Name,Inference time MobileNet v2 CPU-F (ms),Inference time {net} (ms),Training time {net} (ms),"
        f"Training Time {net} (ms) total,Max Power consumption (W),Energy (Wh),Battery capacity (Wh),"
        "Battery capacity for training,Number of training rounds"
    )
    facts = [(27, 17.7, 17.8), (29, 15.1, 19.4), (17, 11, 17.41), (76, 8.2, 23.2)]
    rows = [
        f"{name},{ms},1,3,{ms * 40},{watts},{mwh / 1000:.9f},{battery},{battery / 10},{tau}"
        for name, (ms, watts, battery), mwh, tau in zip(
            DEVICE_NAMES, facts, PAPER_MWH[dataset], PAPER_TAU[dataset], strict=True
        )
    ]
    return "\ufeff" + "\r\n".join([header, *rows]) + "\r\n"


@pytest.mark.parametrize("dataset", ["cifar", "femnist"])
def test_traces_that_come_with_the_project_are_what_the_derivation_gives(dataset):
    workload, share = WORKLOADS[dataset]
    derived = tuple(derive(device, workload, share) for device in read_devices(packaged_trace("devices.csv")))
    assert read_trace(packaged_trace(f"{dataset}.csv")) == Trace(derived, workload)
    assert [row.budget for row in derived] == PAPER_TAU[dataset]
    assert [row.name for row in derived] == DEVICE_NAMES
    assert np.allclose([row.wh_per_round * 1000 for row in derived], PAPER_MWH[dataset], rtol=1e-6)


@pytest.mark.parametrize("dataset", ["cifar", "femnist"])
def test_authors_layout_gives_the_same_numbers(dataset, tmp_path):
    path = tmp_path / "Energy_traces.csv"
    path.write_bytes(authors_csv(dataset).encode())
    assert read_trace(path).workload is None, "the authors' layout cannot say it"
    authors, ours = read_trace(path).rows, read_trace(packaged_trace(f"{dataset}.csv")).rows
    assert [row.budget for row in authors] == [row.budget for row in ours]
    assert np.allclose([r.wh_per_round for r in authors], [r.wh_per_round for r in ours], rtol=1e-6, atol=0)


def test_derivation_by_hand():
    # 10 ms · 1 (as large as MobileNet-v2) · 3 · 2 samples · 5 steps = 300 ms; at 36 W that is 3 mWh.
    row = derive(Device("phone", 10, 36, 1.0), Workload(3_504_872, 2, 5), 0.0305)
    assert row.wh_per_round == pytest.approx(0.003)
    assert row.budget == 10


def test_trace_round_trip():
    trace = read_trace(packaged_trace("femnist.csv"))
    again = parse_trace(format_trace(trace.rows, trace.workload), "x")
    assert again == trace
    assert [row.allowance_wh for row in again.rows] == [8.9, 9.7, 8.705, 11.6], "half of each battery"


def test_ledger_adds_up_and_matches_the_papers_communication():
    rows = read_trace(packaged_trace("cifar.csv")).rows
    uids = np.arange(256)
    assert [row.name for row in assign(rows, np.array([0, 3, 5]))] == [DEVICE_NAMES[i] for i in (0, 3, 1)]
    ledger = EnergyLedger(np.array([row.wh_per_round for row in assign(rows, uids)]))
    sent = np.full(256, 6 * 89_834 * 4)
    for round in range(1000):
        ledger.charge(np.full(256, round % 8 < 4), sent)
    assert ledger.training_wh.sum() == pytest.approx(755.02, abs=0.005)
    assert ledger.communication_wh.sum() == pytest.approx(7.0)
    ledger.charge(uids == 2, 0 * sent)
    assert ledger.training_rounds[[1, 2]].tolist() == [500, 501]


HEAD = "device,energy per training round [Wh],training rounds [rounds]\n"
BAD_TRACES = {
    "missing column": ("device,energy [Wh]\na,1\n", "column 'energy per training round [Wh]' is missing"),
    "negative energy": (
        HEAD + "a,-0.1,3\n",
        "line 2, column 'energy per training round [Wh]': must be positive",
    ),
    "zero energy": (HEAD + "a,0,3\n", "must be positive"),
    "not a number": (HEAD + "a,0.1,3\nb,much,3\n", "line 3, column 'energy per training round [Wh]': 'much'"),
    "nan": (HEAD + "a,nan,3\n", "'nan' is not a number"),
    "negative budget": (HEAD + "a,0.1,-3\n", "must not be negative"),
    "fractional budget": (HEAD + "a,0.1,2.5\n", "is not a whole number"),
    "no rows": (HEAD, "no rows"),
    "empty": ("", "the file is empty"),
    "short row": (HEAD + "a,0.1\n", "line 2: 2 values where the header has 3"),
    "no workload": (
        "# workload: batch_size = 2\n" + HEAD + "a,0.1,3\n",
        "line 1: expected '# workload: parameters = N",
    ),
    "zero workload": (
        "# workload: parameters = 5, batch_size = 0, local_steps = 1\n" + HEAD + "a,0.1,3\n",
        "line 1: batch_size must be at least 1",
    ),
    "below a comment": ("# mine\n" + HEAD + "a,0.1,3\nb,-1,3\n", "line 4, column 'energy per training round [Wh]'"),
    "nameless": (HEAD + ",0.1,3\n", "the device has no name"),
    "twice": (HEAD + "a,0.1,3\na,0.2,3\n", "device 'a' is listed 2 times"),
    "authors' without energy": (
        "Device Name,Number of training rounds\na,3\n",
        "column 'Energy (Wh)' is missing",
    ),
}


@pytest.mark.parametrize("name", BAD_TRACES)
def test_bad_traces(name):
    text, message = BAD_TRACES[name]
    with pytest.raises(InputError) as error:
        parse_trace(text, "trace.csv")
    assert message in str(error.value)
    assert str(error.value).startswith("trace.csv")


def test_bad_devices_and_workloads():
    with pytest.raises(InputError, match="'battery \\[Wh\\]' is missing"):
        parse_devices("device,mobilenet_v2 [ms],power [W]\na,1,1\n", "d.csv")
    with pytest.raises(InputError, match="at most 100 %, not 110 %"):
        derive(Device("a", 1, 1, 1), Workload(1, 1, 1), 1.1)
    with pytest.raises(InputError, match="batch_size must be at least 1"):
        Workload(1, 0, 1)


def test_command_shows_and_derives(tmp_path):
    shown = skiptrain("energy", "show", "femnist.csv")
    assert "28.047269" in shown.stdout
    out = tmp_path / "derived.csv"
    options = ["--parameters", "89834", "--batch-size", "32", "--local-steps", "20"]
    made = skiptrain("energy", "derive", *options, "--battery", "10", "--out", out)
    assert made.returncode == 0, made.stderr
    assert out.read_text() == packaged_trace("cifar.csv").read_text()
    refused(skiptrain("energy", "derive", *options, "--battery", "120"), "at most 100 %, not 120 %")
    refused(
        skiptrain("energy", "derive", *options, "--battery", "10", "--device", "Xiaomi 12 Por"),
        "unknown device 'Xiaomi 12 Por'",
        "did you mean 'Xiaomi 12 Pro'",
    )
    refused(skiptrain("energy", "show", "nothing.csv"), "nothing.csv does not exist")
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00\x01")
    refused(skiptrain("energy", "show", tmp_path / "binary.csv"), "is not a text file")
    refused(skiptrain("energy", "show", tmp_path), "is a directory")
