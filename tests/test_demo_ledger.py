"""What the demo's tools did is on file once per call, whoever wrote at the same time."""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from agentstate.demo import ledger
from agentstate.durable.idempotency import use_idempotency_key
from tools.processes import PROJECT


@pytest.fixture(autouse=True)
def demo_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "not" / "there" / "yet"
    monkeypatch.setenv("AGENTSTATE_DEMO_DIR", str(folder))
    return folder


def test_a_ledger_that_was_never_written_is_empty():
    assert ledger.entries("refunds") == []


def test_each_line_says_when_and_for_which_call(demo_folder):
    with use_idempotency_key("key-1"):
        assert ledger.append("refunds", claim_number="CLM-1042", amount="500.00") == 1
    assert ledger.append("refunds", claim_number="CLM-1047", amount="750.00") == 2

    first, second = (json.loads(line) for line in (demo_folder / "refunds.jsonl").read_text().splitlines())
    assert first["key"] == "key-1"
    assert first["at"].endswith("+00:00")
    assert first["claim_number"] == "CLM-1042"
    assert second["key"] == ""
    assert ledger.entries("refunds") == [first, second]
    assert ledger.entries("letters") == []


def test_a_call_that_is_run_again_finds_its_own_line_and_no_other():
    with use_idempotency_key("key-1"):
        assert not ledger.written_before("letters")
        ledger.append("letters", to="someone")
        assert ledger.written_before("letters")
    with use_idempotency_key("key-2"):
        assert not ledger.written_before("letters")
    assert not ledger.written_before("letters")


def test_text_of_any_kind_stays_one_line():
    ledger.append("letters", text="two\nlines, “quotes” and a \u2028 separator")
    assert ledger.entries("letters")[0]["text"] == "two\nlines, “quotes” and a \u2028 separator"


@pytest.mark.slow
def test_processes_and_threads_that_write_at_once_lose_nothing_and_number_each_line_once(demo_folder):
    program = (
        "from concurrent.futures import ThreadPoolExecutor\n"
        "from agentstate.demo import ledger\n"
        "with ThreadPoolExecutor(4) as pool:\n"
        "    numbers = list(pool.map(lambda n: ledger.append('refunds', text='x' * 9000), range(25)))\n"
        "print(*numbers)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(PROJECT)}
    with ThreadPoolExecutor(3) as pool:
        outputs = list(
            pool.map(
                lambda _: (
                    subprocess.run(
                        [sys.executable, "-c", program],
                        env=environment,
                        capture_output=True,
                        text=True,
                        check=True,
                    ).stdout
                ),
                range(3),
            )
        )
    numbers = sorted(int(number) for output in outputs for number in output.split())
    assert numbers == list(range(1, 76))
    assert len(ledger.entries("refunds")) == 75
