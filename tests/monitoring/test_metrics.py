"""Metrics of real runs: what they count, what Prometheus makes of them, and what hostile data cannot do."""

import importlib.util
import json
import re
import subprocess
import threading
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

import pytest
import yaml

from tamis import JsonlReader, JsonlWriter, Pipeline, Rows
from tamis.cli import main
from tamis.dedup import ExactDedup
from tamis.errors import TamisError
from tamis.events import GpuSampled, MemoryAlert, MemorySampled, PartitionCommitted, StageStarted
from tamis.monitoring.metrics import COUNTERS, GAUGES, LABEL_CHARS, MOST_LABELS, Metrics
from tamis.report import Account, OperatorAccount
from tamis.text import WordCount

ROOT = Path(__file__).parent.parent.parent
MONITORING = ROOT / "deploy" / "monitoring"


def tool(name: str) -> str:
    """Prometheus or promtool, as `make test` has found or unpacked it."""
    spec = importlib.util.spec_from_file_location("find_prometheus", ROOT / "scripts" / "find_prometheus.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found = module.find_tool(name)
    assert found is not None, f"there is no {name}; run scripts/find_prometheus.py, or apt-get install prometheus"
    return found


def scrape(metrics: Metrics) -> str:
    with urllib.request.urlopen(metrics.url, timeout=60) as answer:
        return answer.read().decode()


def values(text: str) -> dict[str, float]:
    return {
        line.rpartition(" ")[0]: float(line.rpartition(" ")[2])
        for line in text.splitlines()
        if not line.startswith("#")
    }


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """The metrics of a finished run of two stages, still served."""
    folder = tmp_path_factory.mktemp("metrics")
    texts = ["one two three", "one", "one two three", "four five six seven"]
    (folder / "in.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    pipeline = Pipeline(
        JsonlReader(str(folder / "in.jsonl")), WordCount(min_words=2), ExactDedup(), JsonlWriter(str(folder / "out"))
    )
    with Metrics() as metrics:
        pipeline.run(on_event=metrics, executor="inline")
        yield metrics


def test_counters_agree_with_the_account(served):
    found = values(scrape(served))
    assert found['tamis_rows_read_total{stage="1"}'] == 4
    assert found['tamis_rows_dropped_total{reason="words < 2",stage="1",step="word_count"}'] == 1
    assert found['tamis_rows_kept_total{stage="2"}'] == 2
    assert found['tamis_input_bytes_total{stage="1"}'] > 0
    assert found['tamis_step_rows_in_total{stage="1",step="word_count"}'] == 4
    assert (found["tamis_run_up"], found["tamis_progress_ratio"]) == (0, 1)


def test_names_help_and_units_follow_the_conventions(served):
    """promtool reports metrics without help, wrong suffixes, units that are not base units, and bad names."""
    done = subprocess.run([tool("promtool"), "check", "metrics"], input=scrape(served), capture_output=True, text=True)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_every_metric_is_exposed_and_documented(served):
    text = scrape(served)
    page = (ROOT / "docs" / "looking.md").read_text()
    for name in COUNTERS:
        assert f"# TYPE tamis_{name}_total counter" in text
        assert f"`tamis_{name}_total`" in page
    for name in GAUGES:
        assert f"# TYPE tamis_{name} gauge" in text
        assert f"`tamis_{name}`" in page


def test_the_rules_are_valid_and_fire_when_they_should():
    for arguments in (["check", "config", "prometheus.yaml"], ["test", "rules", "prometheus_alerts_test.yaml"]):
        done = subprocess.run([tool("promtool"), *arguments], cwd=MONITORING, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr


def test_dashboard_and_rules_use_metrics_that_exist():
    dashboard = json.loads((MONITORING / "grafana_dashboard.json").read_text())
    rules = yaml.safe_load((MONITORING / "prometheus_alerts.yaml").read_text())
    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    expressions += [rule["expr"] for group in rules["groups"] for rule in group["rules"]]
    known = {f"tamis_{name}_total" for name in COUNTERS} | {f"tamis_{name}" for name in GAUGES}
    used = {name for expression in expressions for name in re.findall(r"\btamis_\w+", expression)}
    assert used <= known
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"]) == 12


def test_a_real_prometheus_scrapes_a_run_and_answers_the_queries_of_the_dashboard(served, tmp_path):
    config = yaml.safe_load((MONITORING / "prometheus.yaml").read_text())
    config["global"]["scrape_interval"] = "1s"
    config["rule_files"] = [str(MONITORING / "prometheus_alerts.yaml")]
    config["scrape_configs"][0]["static_configs"][0]["targets"] = [f"127.0.0.1:{served.port}"]
    (tmp_path / "prometheus.yaml").write_text(yaml.safe_dump(config))
    command = [
        tool("prometheus"),
        f"--config.file={tmp_path / 'prometheus.yaml'}",
        f"--storage.tsdb.path={tmp_path / 'data'}",
        "--web.listen-address=127.0.0.1:0",
    ]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    try:
        lines = []
        for line in process.stderr:
            lines.append(line)
            if listening := re.search(r'msg="Listening on" address=(\S+)', line):
                break
        else:
            pytest.fail("".join(lines))
        reader = threading.Thread(target=process.stderr.read, daemon=True)  # or it would block on a full pipe
        reader.start()

        def ask(expression: str) -> list[dict]:
            query = urllib.parse.urlencode({"query": expression})
            with urllib.request.urlopen(f"http://{listening[1]}/api/v1/query?{query}", timeout=60) as answer:
                found = json.load(answer)
            assert found["status"] == "success"
            return found["data"]["result"]

        wanted, pause = 'tamis_rows_read_total{stage="1"}', threading.Event()
        for _ in range(600):
            try:
                if result := ask(wanted):
                    break
            except urllib.error.URLError:  # it starts
                pass
            pause.wait(0.1)
        else:
            pytest.fail(f"Prometheus has not scraped {served.url}")
        assert float(result[0]["value"][1]) == 4
        dashboard = json.loads((MONITORING / "grafana_dashboard.json").read_text())
        for panel in dashboard["panels"]:
            for target in panel["targets"]:
                ask(target["expr"].replace("$instance", ".*"))
    finally:
        process.terminate()
        process.wait()
        process.stderr.close()


def test_labels_from_data_are_bounded_and_inert():
    metrics = Metrics()
    metrics(StageStarted(0, "stage", 1, 0, 1))
    reasons = {f'\x1b[31m"}} evil\n{number} {"x" * 10_000}': 1 for number in range(10)}
    reasons |= {f"reason {number}": 1 for number in range(1_000)}
    operator = OperatorAccount("step", "filter", rows_in=1_010, dropped=reasons)
    metrics(PartitionCommitted(0, 0, Account([operator], read=1_010).as_dict(), 1))
    with metrics:
        text = scrape(metrics)
    dropped = [line for line in text.splitlines() if line.startswith("tamis_rows_dropped_total{")]
    assert len(dropped) == MOST_LABELS + 1
    assert sum(float(line.rpartition(" ")[2]) for line in dropped) == 1_010
    assert max(map(len, dropped)) < LABEL_CHARS + 200
    assert "\x1b" not in text


def test_gpus_and_alerts_have_metrics():
    metrics = Metrics()
    gpu = GpuSampled(0, 3 * 10**9, 80 * 10**9, 2 * 10**9, {"weights": 2 * 10**9})
    metrics(MemorySampled(10**9, 2 * 10**9, 8 * 10**9, (gpu,)))
    metrics(MemoryAlert("budget", "warning", 0.9, 0.8, "much"))
    with metrics:
        found = values(scrape(metrics))
    assert found['tamis_gpu_memory_run_bytes{gpu="0"}'] == 2 * 10**9
    assert found['tamis_memory_alerts_total{kind="budget",level="warning"}'] == 1


def test_memory_is_counted_for_the_stage_that_runs():
    metrics = Metrics()

    def held(num_bytes, gpu_bytes):
        return MemorySampled(num_bytes, num_bytes, 10, (GpuSampled(0, gpu_bytes, 80, gpu_bytes, {}),))

    before = held(9, 9)
    for event in (
        before,
        StageStarted(0, "a", 1, 0, 1),
        held(5, 2),
        held(4, 3),
        StageStarted(1, "b", 1, 0, 1),
        held(1, 0),
    ):
        metrics(event)
    with metrics:
        found = values(scrape(metrics))
    assert [found[f'tamis_stage_memory_peak_bytes{{stage="{number}"}}'] for number in (1, 2)] == [5, 1]
    assert [found[f'tamis_stage_gpu_memory_peak_bytes{{gpu="0",stage="{number}"}}'] for number in (1, 2)] == [3, 0]


def test_only_this_machine_can_connect_and_a_used_port_is_a_clear_error(served):
    assert served.url.startswith("http://127.0.0.1:")
    with pytest.raises(TamisError, match=f"port {served.port}") as raised, Metrics(served.port):
        pass
    assert "choose another one" in raised.value.hint


def test_the_option_serves_metrics_until_the_run_ends(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("in.jsonl").write_text('{"text": "one two"}\n')
    arguments = [
        "run",
        "length",
        "--input",
        "in.jsonl",
        "--output",
        "out",
        "--executor",
        "inline",
        "--metrics-port",
        "0",
    ]
    assert main(arguments) == 0
    printed = capsys.readouterr().err
    url = re.search(r"metrics are at (http://127\.0\.0\.1:\d+/metrics)", printed)[1]
    with pytest.raises(urllib.error.URLError):  # it ends with the run
        urllib.request.urlopen(url, timeout=60)


def test_metrics_can_be_read_in_the_middle_of_a_run():
    metrics, seen = Metrics(), []

    def look(row):
        seen.append(values(scrape(metrics)))
        return True

    with metrics:
        Pipeline(Rows([{"n": 1}, {"n": 2}], rows_per_partition=1), look).run(on_event=metrics, executor="inline")
    assert [each["tamis_run_up"] for each in seen] == [1, 1]
    assert seen[-1]['tamis_partitions_committed_total{stage="1"}'] == 1
