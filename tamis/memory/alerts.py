"""Memory alerts: when they are raised, and who receives them.

    snapshot -> AlertRules.check -> alerts -> AlertDesk -> event or log line
                                                       |-> command, webhook   (in a separate thread)
                                                       +-> remedy: pause, recycle, shrink, or nothing

An alert is raised once. When the figure has fallen below the threshold by a margin, an alert of level `cleared` follows, and
it can be raised again. A receiver that fails is reported and never stops a run.
"""

from __future__ import annotations

import math
import queue
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

from tamis.errors import ParameterError, did_you_mean
from tamis.memory.leaks import Leak, Trend
from tamis.memory.monitor import trend_of
from tamis.memory.tree import Snapshot
from tamis.parameters import format_bytes

if TYPE_CHECKING:
    from tamis.memory.receivers import Receiver

Action: TypeAlias = Literal["pause", "recycle", "shrink"]
ACTIONS = ("pause", "recycle", "shrink")
KINDS = ("budget", "machine", "gpu", "exhaustion", "leak")

MARGIN_PERCENT = 5.0
"""How far below its threshold a percentage must fall before the alert is over."""

TREND_S = 60.0
"""Exhaustion is predicted from the last minute."""

MIN_TREND_S = 15.0
"""A shorter rise predicts nothing: batches are allocated and freed all the time."""

WAITING = 64
"""Alerts that may wait for slow receivers; any more are dropped, which is reported."""


@dataclass(frozen=True)
class Alert:
    """A threshold that was exceeded, or (level `cleared`) no longer is."""

    kind: str
    """One of `KINDS`."""
    level: str
    """warning, critical or cleared"""
    value: float
    """Percent; seconds left for exhaustion; bytes per shard for a leak."""
    limit: float
    message: str

    @staticmethod
    def of_leak(leak: Leak, limit_bytes: int | None = None) -> Alert:
        """The alert for a leak; with the worker's limit it says when that is reached."""
        rate = format_bytes(leak.bytes_per_shard)
        text = f"worker {leak.worker} in {leak.stage or 'this stage'} holds {rate} more after each shard"
        if limit_bytes is not None:
            text += f"; it reaches its {format_bytes(limit_bytes)} in {leak.shards_until(limit_bytes):.0f} shards"
        return Alert("leak", "warning", leak.bytes_per_shard, limit_bytes or 0, text)


@dataclass(frozen=True)
class Thresholds:
    """When to raise an alert; None means never. Percentages are of the budget, of the machine or container, of each GPU."""

    budget_percent: tuple[float, float] | None = (80, 95)
    """Warning and critical."""
    machine_percent: float | None = 90
    gpu_percent: float | None = 90
    time_to_exhaustion_s: float | None = 120
    """Raised when, at the current rate, the budget or the machine's memory is used up sooner than this."""

    def __post_init__(self) -> None:
        pair = self.budget_percent
        if pair is not None:
            if (
                not isinstance(pair, (list, tuple))
                or len(pair) != 2
                or not all(map(_is_percent, pair))
                or pair[0] > pair[1]
            ):
                raise ParameterError(
                    f"`budget_percent` must be two rising percentages, got {pair!r}", hint="for example [80, 95]"
                )
            object.__setattr__(self, "budget_percent", tuple(pair))
        for name in ("machine_percent", "gpu_percent"):
            value = getattr(self, name)
            if value is not None and not _is_percent(value):
                raise ParameterError(f"`{name}` must be a percentage between 0 and 100, got {value!r}")
        seconds = self.time_to_exhaustion_s
        if seconds is not None and not (_is_number(seconds) and seconds > 0):
            raise ParameterError(f"`time_to_exhaustion_s` must be a positive number of seconds, got {seconds!r}")


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_percent(value: object) -> bool:
    return _is_number(value) and 0 < cast("float", value) <= 100


# ---------------------------------------------------------------------------------------------------------------- rules


class AlertRules:
    """Turns snapshots into alerts, each raised once until it is cleared.

    `budget_bytes` is what the process tree may hold; without it only the machine and the GPUs are checked.
    """

    def __init__(self, thresholds: Thresholds | None = None, budget_bytes: int | None = None) -> None:
        self.thresholds = thresholds or Thresholds()
        self.budget_bytes = budget_bytes
        self._raised: dict[tuple[str, object], int] = {}
        self._recent: list[Snapshot] = []

    def check(self, snapshot: Snapshot) -> list[Alert]:
        """The alerts that this snapshot causes, given the earlier ones."""
        start = snapshot.elapsed_s - TREND_S
        self._recent = [shot for shot in self._recent if shot.elapsed_s >= start] + [snapshot]
        found = [*self._check_budget(snapshot), *self._check_machine(snapshot), *self._check_gpus(snapshot)]
        return found + self._check_exhaustion(snapshot)

    def _check_budget(self, snapshot: Snapshot) -> list[Alert]:
        if self.budget_bytes is None or self.thresholds.budget_percent is None:
            return []
        held = snapshot.held_bytes
        percent = 100 * held / self.budget_bytes
        text = f"the run holds {format_bytes(held)}, {percent:.0f} % of its budget of {format_bytes(self.budget_bytes)}"
        return self._percent("budget", None, percent, self.thresholds.budget_percent, text)

    def _check_machine(self, snapshot: Snapshot) -> list[Alert]:
        if self.thresholds.machine_percent is None:
            return []
        system = snapshot.system
        percent, what = system.percent, "the machine"
        if system.limit_bytes:
            within = 100 * system.limited_bytes / system.limit_bytes
            percent, what = max((percent, what), (within, "the container"))
        text = f"{percent:.0f} % of the memory of {what} is in use"
        return self._percent("machine", None, percent, (self.thresholds.machine_percent,), text)

    def _check_gpus(self, snapshot: Snapshot) -> list[Alert]:
        limit = self.thresholds.gpu_percent
        if limit is None:
            return []
        found = []
        pids = {process.pid for process in snapshot.processes}
        for gpu in snapshot.gpus:
            text = f"GPU {gpu.index} ({gpu.name}) uses {gpu.percent:.0f} % of its {format_bytes(gpu.total_bytes)}"
            others = gpu.used_bytes - gpu.held_by(pids)
            if gpu.shares and others > gpu.used_bytes // 2:
                text += f", {format_bytes(others)} of it for other processes"
            found += self._percent("gpu", gpu.index, gpu.percent, (limit,), text)
        return found

    def _percent(self, kind: str, which: object, value: float, limits: tuple[float, ...], text: str) -> list[Alert]:
        """Raise the level as soon as it is reached, lower it only below the margin."""
        was = self._raised.get((kind, which), 0)
        up = sum(value >= limit for limit in limits)
        down = sum(value >= limit - MARGIN_PERCENT for limit in limits)
        now = max(up, min(was, down))
        self._raised[kind, which] = now
        if now > was:
            level = "critical" if now == 2 else "warning"
            return [Alert(kind, level, value, limits[now - 1], text)]
        if was and not now:
            return [Alert(kind, "cleared", value, limits[0], text)]
        return []

    def _check_exhaustion(self, snapshot: Snapshot) -> list[Alert]:
        horizon = self.thresholds.time_to_exhaustion_s
        if horizon is None:
            return []
        if self.budget_bytes is not None:
            what, limit = "the budget", self.budget_bytes
            left = seconds_left(self._recent, lambda shot: shot.held_bytes, limit, horizon)
        else:
            what, limit = "the machine", snapshot.system.total_bytes
            left = seconds_left(self._recent, lambda shot: limit - shot.system.available_bytes, limit, horizon)
        key = ("exhaustion", None)
        was = self._raised.get(key, 0)
        now = int(left is not None and left < (1.5 * horizon if was else horizon))
        self._raised[key] = now
        if now and not was:
            assert left is not None
            text = f"at the current rate, {what} is used up in {left:.0f} s"
            return [Alert("exhaustion", "critical", left, horizon, text)]
        if was and not now:
            return [Alert("exhaustion", "cleared", left or 0.0, horizon, f"{what} is no longer about to run out")]
        return []


def seconds_left(
    snapshots: list[Snapshot], value: Callable[[Snapshot], float], limit: float, within_s: float = math.inf
) -> float | None:
    """Seconds until `value` reaches `limit` if it keeps rising; None if it does not rise steadily.

    Also None if it clearly takes longer than `within_s`, which avoids fitting a trend.
    """
    span = snapshots[-1].elapsed_s - snapshots[0].elapsed_s if snapshots else 0.0
    if span < MIN_TREND_S:
        return None
    now = value(snapshots[-1])
    if (limit - now) * span > 4 * within_s * max(0.0, now - value(snapshots[0])):
        return None
    trend: Trend | None = trend_of(snapshots, value, TREND_S)
    if trend is None or trend.slope <= 0 or not trend.steady or trend.confidence < 0.999:
        return None
    return max(0.0, (limit - trend.level) / trend.slope)


# ----------------------------------------------------------------------------------------------------------------- desk

Remedy: TypeAlias = Callable[[Alert], "Action | None"]


def usual_remedy(alert: Alert) -> Action | None:
    """The default action: replace a leaking worker, use smaller batches when memory is short, pause when it runs out."""
    if alert.kind == "leak":
        return "recycle"
    if alert.level != "critical":
        return None
    return "pause" if alert.kind == "exhaustion" else "shrink"


@dataclass(frozen=True)
class ChosenRemedy:
    """The default actions, except for the given kinds of alert: for these one action at every level, or none."""

    chosen: Mapping[str, Action | None]

    def __call__(self, alert: Alert) -> Action | None:
        if alert.kind not in self.chosen:
            return usual_remedy(alert)
        return None if alert.level == "cleared" else self.chosen[alert.kind]


class AlertDesk:
    """Sends each alert to the log and to all receivers; use as a context manager.

    `handle` returns the action of the remedy at once. `log` is called with every alert and that action, in the calling
    thread. Receivers run in a separate thread, in order; `on_problem` is called for each failure.
    """

    def __init__(
        self,
        receivers: tuple[Receiver, ...] | list[Receiver] = (),
        *,
        log: Callable[[Alert, Action | None], None] | None = None,
        remedy: Remedy | None = None,
        on_problem: Callable[[str], None] | None = None,
    ) -> None:
        self.receivers = tuple(receivers)
        self._log, self._remedy = log, remedy
        self._on_problem = on_problem or (lambda text: None)
        self._waiting: queue.Queue[Alert | None] = queue.Queue(WAITING)
        self._thread: threading.Thread | None = None

    def __enter__(self) -> AlertDesk:
        if self.receivers:
            self._thread = threading.Thread(target=self._deliver, name="tamis-alerts", daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._thread is not None:
            self._waiting.put(None)
            self._thread.join()
            self._thread = None

    def handle(self, alert: Alert) -> Action | None:
        """Send an alert; returns the action of the remedy."""
        action = self._ask(alert)
        if self._log is not None:
            self._log(alert, action)
        if self._thread is not None:
            try:
                self._waiting.put_nowait(alert)
            except queue.Full:
                self._on_problem(f"an alert was not sent because {WAITING} others are waiting: {alert.message}")
        return action

    def _ask(self, alert: Alert) -> Action | None:
        if self._remedy is None:
            return None
        try:
            action = self._remedy(alert)
        except Exception as error:  # noqa: BLE001 - a user's function must not stop the run
            self._on_problem(f"the remedy for alerts failed: {type(error).__name__}: {error}")
            return None
        if action is not None and action not in ACTIONS:
            self._on_problem(f"the remedy for alerts returned {action!r}; it may return {', '.join(ACTIONS)} or None")
            return None
        return action

    def _deliver(self) -> None:
        while (alert := self._waiting.get()) is not None:
            for receiver in self.receivers:
                problem = receiver(alert)
                if problem is not None:
                    self._on_problem(problem)


# -------------------------------------------------------------------------------------------------------- configuration


@dataclass(frozen=True)
class AlertSettings:
    """The settings under `alerts` in a recipe."""

    thresholds: Thresholds = field(default_factory=Thresholds)
    command: tuple[str, ...] | None = None
    webhook: str | None = None
    remedy: Remedy = usual_remedy

    @property
    def remedy_name(self) -> Any:
        """The remedy, as it is written to the manifest."""
        if isinstance(self.remedy, ChosenRemedy):
            return dict(self.remedy.chosen)
        return "as usual" if self.remedy is usual_remedy else getattr(self.remedy, "__name__", "a function")

    def receivers(self) -> list[Receiver]:
        if self.command is None and self.webhook is None:
            return []
        from tamis.memory.receivers import CommandReceiver, WebhookReceiver

        found: list[Receiver] = []
        if self.command is not None:
            found.append(CommandReceiver(self.command))
        if self.webhook is not None:
            found.append(WebhookReceiver(self.webhook))
        return found


def parse_alerts(config: object) -> AlertSettings:
    """Check and return the settings under `alerts` in a recipe; by default the default thresholds and remedies, no receivers.

    `remedy` maps kinds of alert to actions, or is a function that takes an alert and returns an action.

    >>> parse_alerts({"budget_percent": [70, 90], "gpu_percent": None}).thresholds.budget_percent
    (70, 90)
    """
    if config is None:
        return AlertSettings()
    if not isinstance(config, Mapping):
        raise ParameterError(f"`alerts` must be a mapping, got {config!r}", hint="alerts: {budget_percent: [80, 95]}")
    values: dict[str, Any] = dict(config)
    known = (*(each.name for each in fields(Thresholds)), "command", "webhook", "remedy")
    for name in values:
        if name not in known:
            hint = did_you_mean(str(name), known) or f"known are {', '.join(known)}"
            raise ParameterError(f"`alerts` has no setting `{name}`", hint=hint)
    command, webhook = values.pop("command", None), values.pop("webhook", None)
    remedy = _parse_remedy(values.pop("remedy", None))
    if command is not None:
        if not isinstance(command, (list, tuple)) or not command or not all(isinstance(part, str) for part in command):
            raise ParameterError(
                f"`command` of `alerts` must be a list of words, got {command!r}",
                hint="no shell is involved: [notify-send, 'memory'] and not 'notify-send memory'",
            )
        command = tuple(command)
    settings = AlertSettings(Thresholds(**values), command, webhook, remedy)
    settings.receivers()  # reports a wrong address now rather than at the first alert
    return settings


def _parse_remedy(config: object) -> Remedy:
    """The remedy given as a mapping or a function; the default actions for kinds that a mapping leaves out."""
    if config is None:
        return usual_remedy
    if callable(config):
        return cast("Remedy", config)
    if not isinstance(config, Mapping):
        raise ParameterError(f"`remedy` of `alerts` must be a mapping, got {config!r}", hint="remedy: {budget: shrink}")
    for kind, action in config.items():
        if kind not in KINDS:
            hint = did_you_mean(str(kind), KINDS) or f"known are {', '.join(KINDS)}"
            raise ParameterError(f"`remedy` of `alerts` names an unknown kind of alert, `{kind}`", hint=hint)
        if action is not None and action not in ACTIONS:
            hint = did_you_mean(str(action), ACTIONS) or f"known are {', '.join(ACTIONS)}, and null for nothing"
            raise ParameterError(f"`remedy` of `alerts` names an unknown action, {action!r}", hint=hint)
        if kind == "leak" and action == "pause":
            raise ParameterError(
                "a run cannot pause for a leak, because a leak does not end", hint="remedy: {leak: recycle}"
            )
    return ChosenRemedy(dict(config))
