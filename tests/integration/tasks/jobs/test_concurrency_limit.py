"""A judge job's own limit on calls in flight, which holds across every worker."""

from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from config import keys
from tasks.jobs.model import JobRequest
from tests.support.chat_api import ChatApi
from tests.support.fleet import Fleet

PROFILES = '[profiles.main]\nbase_url = "{url}"\nmodels = ["m"]\nconcurrency_start = 100\n'
VERDICT = {"index": 0, "message": {"role": "assistant", "content": "Score: 6"}, "finish_reason": "stop"}


@pytest.mark.parametrize(("spec", "most"), [({"concurrency": 4}, 4), ({"concurrency": 6, "samples": 2}, 6), ({}, 40)])
def test_calls_in_flight_never_exceed_the_jobs_limit(
    fleet: Fleet, tmp_path: Path, spec: dict[str, Any], most: int
) -> None:
    with ChatApi(delay_s=0.05) as api:
        api.gather = (
            most if spec else 0
        )  # wait for the full number of calls, so that a limit that is not used up fails the test
        api.reply = {"choices": [VERDICT]}
        path = tmp_path / "profiles.toml"
        path.write_text(PROFILES.format(url=api.url))
        fleet.settings = fleet.settings.model_copy(update={"profiles_file": path})
        hands = [fleet.hire("api", index) for index in range(3)]
        hands[0].core.dispatcher.forget_fleet()
        items = [{"response": f"It is {n}."} for n in range(40)]
        asked = {"profile": "main", "use_schema": "never"} | spec
        job = hands[0].core.submitter.submit(JobRequest(kind="judge", items=items, spec=asked))
        threads = [Thread(target=fleet.finish, args=(job, hand)) for hand in hands]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert fleet.job(job).ok == 40
        assert api.peak == most or not spec
        assert fleet.core.state.hget(keys.job(job), "out:judge") in (None, "0")
