import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from tamis.errors import ParameterError
from tamis.memory.alerts import (
    Alert,
    AlertDesk,
    AlertRules,
    AlertSettings,
    Thresholds,
    parse_alerts,
    seconds_left,
    usual_remedy,
)
from tamis.memory.gpu import GpuMemory
from tamis.memory.leaks import Leak
from tamis.memory.receivers import CommandReceiver, WebhookReceiver
from tamis.memory.tree import ProcessMemory, Snapshot, SystemMemory

ALARM = Alert("budget", "critical", 96.0, 95.0, "the run holds much")


def shot(at_s=0.0, *, held=0, percent=10.0, limit=None, limited=0, gpus=()):
    system = SystemMemory(1_000, int(1_000 - 10 * percent), percent, limit, limited)
    return Snapshot(0.0, at_s, system, (ProcessMemory(1, "driver", held),), gpus)


def levels(rules, **series):
    """The (kind, level) of the alerts that each value of a series gives rise to."""
    ((name, values),) = series.items()
    return [[(alert.kind, alert.level) for alert in rules.check(shot(**{name: value}))] for value in values]


# ---------------------------------------------------------------------------------------------------------------- rules


def test_the_budget_has_a_warning_and_a_critical_level_each_raised_once():
    rules = AlertRules(budget_bytes=1_000)
    assert levels(rules, held=[700, 800, 850, 950, 990]) == [
        [],
        [("budget", "warning")],
        [],
        [("budget", "critical")],
        [],
    ]


def test_an_alert_comes_again_only_after_the_figure_fell_below_by_a_margin():
    rules = AlertRules(budget_bytes=1_000)
    assert levels(rules, held=[800, 790, 800, 760, 800, 749, 800]) == [
        [("budget", "warning")],
        [],
        [],
        [],
        [],
        [("budget", "cleared")],
        [("budget", "warning")],
    ]


def test_from_critical_it_falls_back_to_warning_without_a_word():
    rules = AlertRules(budget_bytes=1_000)
    assert levels(rules, held=[960, 920, 960, 890, 960]) == [
        [("budget", "critical")],
        [],
        [],
        [],
        [("budget", "critical")],
    ]


def test_an_alert_says_what_it_is_about():
    (alert,) = AlertRules(budget_bytes=2_000_000_000).check(shot(held=1_920_000_000))
    assert alert == Alert("budget", "critical", 96.0, 95, "the run holds 1.9 GB, 96 % of its budget of 2.0 GB")


def test_without_a_budget_only_machine_and_gpus_are_looked_at():
    assert AlertRules().check(shot(held=10**12)) == []


def test_the_machine_is_watched():
    assert levels(AlertRules(), percent=[89.0, 91.0, 86.0, 84.0]) == [
        [],
        [("machine", "warning")],
        [],
        [("machine", "cleared")],
    ]


def test_the_container_counts_when_it_is_tighter_than_the_machine():
    (alert,) = AlertRules().check(shot(limit=100, limited=95))
    assert alert.message == "95 % of the memory of the container is in use"


def test_each_gpu_is_watched_apart():
    rules = AlertRules()

    def check(*used):
        gpus = tuple(GpuMemory(index, "H200", each, 100) for index, each in enumerate(used))
        return [alert.message for alert in rules.check(shot(gpus=gpus))]

    assert check(10, 95) == ["GPU 1 (H200) uses 95 % of its 100 B"]
    assert check(92, 95) == ["GPU 0 (H200) uses 92 % of its 100 B"]
    assert check(92, 95) == []


def test_a_threshold_of_none_is_never_passed():
    rules = AlertRules(Thresholds(None, None, None, None), budget_bytes=1)
    assert rules.check(shot(held=100, percent=99.0, gpus=(GpuMemory(0, "", 99, 100),))) == []


def rise(rules, values):
    """Alerts about exhaustion of a series at two snapshots a second, with when they came."""
    return [
        (at / 2, alert.level)
        for at, value in enumerate(values)
        for alert in rules.check(shot(at / 2, held=value))
        if alert.kind == "exhaustion"
    ]


def test_a_steady_rise_that_will_use_up_the_budget_is_foreseen():
    found = rise(AlertRules(budget_bytes=10_000), [20 * at for at in range(300)])
    ((at, level),) = found
    assert level == "critical"
    assert 130 <= at < 140


def test_a_rise_that_would_take_an_hour_is_no_alert():
    assert rise(AlertRules(budget_bytes=1_000_000), [10_000 + at for at in range(400)]) == []


def test_batches_that_come_and_go_are_no_exhaustion():
    assert rise(AlertRules(budget_bytes=10_000), [3_000 + 300 * (at % 16) for at in range(400)]) == []


def test_a_start_that_levels_off_is_no_exhaustion():
    assert rise(AlertRules(budget_bytes=10_000), [min(4_000, 500 * at) for at in range(400)]) == []


def test_an_exhaustion_that_is_averted_is_cleared():
    values = [40 * at for at in range(100)] + [4_000] * 200
    assert [level for _, level in rise(AlertRules(budget_bytes=10_000), values)] == ["critical", "cleared"]


def test_without_a_budget_the_machine_s_memory_is_what_runs_out():
    rules = AlertRules(Thresholds(machine_percent=None))
    found = [alert for at in range(80) for alert in rules.check(shot(at / 2, percent=10 + at * 0.5))]
    assert [alert.message.split(",")[1].split(" is ")[0] for alert in found] == [" the machine"]


def test_seconds_left_are_those_of_the_line():
    shots = [shot(float(at), held=100 * at) for at in range(40)]
    assert seconds_left(shots, lambda each: each.held_bytes, 5_900) == pytest.approx(20)
    assert seconds_left(shots[:10], lambda each: each.held_bytes, 5_900) is None
    assert seconds_left([], lambda each: each.held_bytes, 5_900) is None
    assert seconds_left(shots, lambda each: each.held_bytes, 1_000) == 0


def test_a_leak_is_an_alert_too():
    leak = Leak("stage 1", 3, 2_000_000.0, None, 5, 0.9999, 300_000_000)
    assert Alert.of_leak(leak, 500_000_000).message == (
        "worker 3 in stage 1 holds 2.0 MB more after each shard; it reaches its 500 MB in 100 shards"
    )
    assert usual_remedy(Alert.of_leak(leak)) == "recycle"


# ----------------------------------------------------------------------------------------------------------------- desk


def test_the_desk_logs_asks_the_remedy_and_passes_on():
    logged, passed = [], []
    with AlertDesk([passed.append], log=lambda *said: logged.append(said), remedy=lambda alert: "shrink") as desk:
        assert desk.handle(ALARM) == "shrink"
    assert logged == [(ALARM, "shrink")]
    assert passed == [ALARM]


def test_a_remedy_that_fails_or_talks_nonsense_is_reported():
    problems = []

    def broken(alert):
        raise OSError("no")

    for remedy in (broken, lambda alert: "explode"):
        assert AlertDesk(remedy=remedy, on_problem=problems.append).handle(ALARM) is None
    assert problems[0] == "the remedy for alerts failed: OSError: no"
    assert "returned 'explode'; it may return pause, recycle, shrink or None" in problems[1]


def test_slow_receivers_hold_nobody_up_and_what_is_dropped_is_reported():
    problems, go_on = [], threading.Event()
    with AlertDesk([lambda alert: go_on.wait(30) and None], on_problem=problems.append) as desk:
        for _ in range(100):
            desk.handle(ALARM)
        go_on.set()
    assert problems
    assert set(problems) == {"an alert was not sent because 64 others are waiting: the run holds much"}


@pytest.mark.parametrize(
    ("kind", "level", "action"),
    [
        ("budget", "critical", "shrink"),
        ("budget", "warning", None),
        ("exhaustion", "critical", "pause"),
        ("gpu", "warning", None),
    ],
)
def test_the_usual_remedies(kind, level, action):
    assert usual_remedy(Alert(kind, level, 0, 0, "")) == action


# -------------------------------------------------------------------------------------------------------------- command


def test_a_command_gets_the_alert_on_its_standard_input(tmp_path):
    code = "import sys; open(sys.argv[1], 'wb').write(sys.stdin.buffer.read())"
    target = tmp_path / "with space; rm -rf $HOME"
    assert CommandReceiver([sys.executable, "-c", code, str(target)])(ALARM) is None
    assert json.loads(target.read_bytes()) == {
        "kind": "budget",
        "level": "critical",
        "value": 96.0,
        "limit": 95.0,
        "message": "the run holds much",
    }


def test_a_command_that_reads_nothing_is_fine():
    assert CommandReceiver([sys.executable, "-c", ""])(ALARM) is None


def test_a_command_that_fails_is_reported_with_its_last_words():
    code = "import sys; print('first', file=sys.stderr); sys.exit('pager is down')"
    problem = CommandReceiver([sys.executable, "-c", code])(ALARM)
    assert problem == f"the alert command {sys.executable} failed with 1: pager is down"


def test_a_command_that_is_not_there_is_reported(tmp_path):
    missing = str(tmp_path / "missing")
    assert CommandReceiver([missing])(ALARM).startswith(f"the alert command {missing} could not be started: ")


def test_a_command_that_does_not_end_is_stopped_with_its_children():
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import signal; signal.pause()'])"
    problem = CommandReceiver([sys.executable, "-c", code], timeout_s=0.3)(ALARM)
    assert problem == f"the alert command {sys.executable} did not end within 0.3 s and was stopped"


# -------------------------------------------------------------------------------------------------------------- webhook


class Server:
    """A loopback server that gives the specified answers, and repeats the last one."""

    def __init__(self, *answers):
        self.answers, self.got = list(answers), []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                outer.got.append((self.path, self.headers["Content-Type"], json.loads(body)))
                status = outer.answers.pop(0) if outer.answers[1:] else outer.answers[0]
                self.send_response(status)
                if status == 302:
                    self.send_header("Location", "/elsewhere")
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *words):
                pass

        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/hook?token=secret"

    def __enter__(self):
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()
        return self

    def __exit__(self, *exc):
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")


def test_a_webhook_gets_the_alert_as_json():
    with Server(204) as server:
        assert WebhookReceiver(server.url)(ALARM) is None
    ((path, kind, body),) = server.got
    assert (path, kind) == ("/hook?token=secret", "application/json")
    assert body["message"] == "the run holds much"


def test_a_busy_server_is_tried_again_after_growing_waits():
    waits = []
    with Server(503, 500, 200) as server:
        assert WebhookReceiver(server.url, wait=waits.append)(ALARM) is None
    assert len(server.got) == 3
    assert waits == [0.5, 1.0]


def test_it_is_given_up_after_a_few_tries_and_reported_without_the_secret():
    with Server(503) as server:
        problem = WebhookReceiver(server.url, retries=2, wait=lambda seconds: None)(ALARM)
    assert len(server.got) == 3
    assert problem == "the alert webhook at 127.0.0.1 failed: it answered 503 Service Unavailable"


@pytest.mark.parametrize("status", [302, 404])
def test_what_another_try_cannot_change_is_not_tried_again_nor_followed(status):
    with Server(status) as server:
        problem = WebhookReceiver(server.url, wait=lambda seconds: None)(ALARM)
    assert f"it answered {status}" in problem
    assert len(server.got) == 1


def test_a_server_that_is_away_is_reported():
    with Server(200) as server:
        url = server.url
    problem = WebhookReceiver(url, retries=1, wait=lambda seconds: None)(ALARM)
    assert problem.startswith("the alert webhook at 127.0.0.1 failed: ")
    assert "secret" not in problem


@pytest.mark.parametrize(
    "url", ["file:///etc/passwd", "ftp://host/x", "hooks.example.org", "http://", "", 7, "http://["]
)
def test_only_web_addresses_are_taken(url):
    with pytest.raises(ParameterError, match="must be an address that begins with http:// or https://"):
        WebhookReceiver(url)


def test_the_desk_reports_a_webhook_that_fails():
    problems = []
    with Server(404) as server, AlertDesk([WebhookReceiver(server.url)], on_problem=problems.append) as desk:
        desk.handle(ALARM)
        desk.__exit__(None, None, None)
    assert problems == ["the alert webhook at 127.0.0.1 failed: it answered 404 Not Found"]


# -------------------------------------------------------------------------------------------------------- configuration


def test_settings_are_read_from_a_recipe():
    settings = parse_alerts(
        {
            "budget_percent": [70, 90],
            "machine_percent": 85.5,
            "gpu_percent": None,
            "time_to_exhaustion_s": 60,
            "command": ["notify", "memory"],
            "webhook": "https://hooks.example.org/x",
        }
    )
    assert settings.thresholds == Thresholds((70, 90), 85.5, None, 60)
    command, webhook = settings.receivers()
    assert (command.command, webhook.url) == (["notify", "memory"], "https://hooks.example.org/x")


def test_a_recipe_can_choose_what_is_done_about_which_alert():
    remedy = parse_alerts({"remedy": {"budget": "pause", "leak": None}}).remedy
    assert remedy(Alert("budget", "warning", 0, 0, "")) == "pause"
    assert remedy(Alert("budget", "cleared", 0, 0, "")) is None
    assert remedy(Alert("leak", "warning", 0, 0, "")) is None
    assert remedy(Alert("exhaustion", "critical", 0, 0, "")) == "pause", "the usual, where nothing is said"


def test_a_program_can_decide_itself():
    def decide(alert):
        return "shrink"

    assert parse_alerts({"remedy": decide}).remedy is decide


def test_nothing_said_means_the_defaults():
    assert parse_alerts(None) == parse_alerts({}) == AlertSettings(Thresholds((80, 95), 90, 90, 120))
    assert parse_alerts({}).receivers() == []


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ([80], "`alerts` must be a mapping"),
        ({"budget_percent": 80}, "`budget_percent` must be two rising percentages, got 80"),
        ({"budget_percent": [95, 80]}, "two rising percentages"),
        ({"budget_percent": [0, 80]}, "two rising percentages"),
        ({"budget_percent": ["80", "95"]}, "two rising percentages"),
        ({"machine_percent": 120}, "`machine_percent` must be a percentage between 0 and 100, got 120"),
        ({"gpu_percent": True}, "`gpu_percent` must be a percentage"),
        ({"time_to_exhaustion_s": 0}, "`time_to_exhaustion_s` must be a positive number of seconds"),
        ({"command": "notify-send memory"}, "`command` of `alerts` must be a list of words"),
        ({"command": []}, "must be a list of words"),
        ({"command": ["a", 1]}, "must be a list of words"),
        ({"remedy": "pause"}, "`remedy` of `alerts` must be a mapping"),
        ({"remedy": {"budgets": "pause"}}, "names an unknown kind of alert, `budgets`\n\nhint: did you mean `budget`?"),
        ({"remedy": {"budget": "stop"}}, "names an unknown action, 'stop'"),
        ({"remedy": {"leak": "pause"}}, "a leak does not end"),
        ({"webhook": "file:///x"}, "begins with http:// or https://"),
        ({"webhok": "https://x"}, "`alerts` has no setting `webhok`\n\nhint: did you mean `webhook`?"),
    ],
)
def test_a_mistake_is_named(config, message):
    with pytest.raises(ParameterError) as caught:
        parse_alerts(config)
    assert message in str(caught.value)
