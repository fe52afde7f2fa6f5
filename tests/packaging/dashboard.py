"""What Prometheus and Grafana ask in deploy/, and what a query answers them."""

import json
from pathlib import Path

from prometheus_client import generate_latest
from ruamel.yaml import YAML

from schemas.commands import Mirror, MirroredSubscription
from streaming.broker.persistent.topic import SHADOW_SOURCE
from streaming.metrics.endpoint import registry
from streaming.metrics.query import BatchProgress, CanaryFigures, QueryMetrics
from tests.broker.kit import Run

DEPLOY = Path(__file__).parents[2] / "deploy"
MIRRORED = "persistent://public/default/mirrored"


def expressions() -> list[tuple[str, str]]:
    """Every PromQL expression of the dashboard and the alerts, with where it is. Variables of Grafana have their widest value."""
    dashboard = json.loads((DEPLOY / "grafana/dashboards/magnetar.json").read_text())
    found = [
        (f"{panel['title']} {target['refId']}", target["expr"])
        for panel in dashboard["panels"]
        for target in panel.get("targets", ())
    ]
    variables = [each["name"] for each in dashboard["templating"]["list"]]
    for place, (name, expression) in enumerate(found):
        for variable in variables:
            expression = expression.replace(f"${variable}", ".*")
        found[place] = name, expression.replace("$__rate_interval", "5m")
    rules = YAML(typ="safe").load(DEPLOY / "prometheus/alerts.yml")
    return found + [(rule["alert"], rule["expr"]) for group in rules["groups"] for rule in group["rules"]]


def scrape() -> str:
    """What a query with some traffic, a mirrored topic and a canary answers at ``/metrics``."""
    run = Run(
        backlogQuotaDefaultLimitBytes=100_000,
        backlogQuotaDefaultLimitSecond=40,
        preciseTimeBasedBacklogQuotaCheck=True,
    )
    run.subscribe("s")
    run.create_producer()
    run.send(0)
    run.publish(1)
    run.now += 10_000
    run.check("backlogQuota")
    run.admin("PUT", "", {SHADOW_SOURCE: MIRRORED}, topic=MIRRORED)
    run.do(Mirror(subscriptions={"s": MirroredSubscription((-1, -1), backlog=3)}), MIRRORED)
    measured = run.broker.metrics(everything=True)
    measured.quarantined = {"malformed": 1}
    metrics = QueryMetrics()
    metrics.batch({(0, "SEND_RECEIPT"): 2}, [measured])
    metrics.canaries([CanaryFigures("ttl", "t", "s", 1, None, {"lost newly": 2})], {"ttl": run.now})
    metrics.files({"segments": 3, "tables": 5, "checkpoint": 20})
    metrics.progress(
        BatchProgress(
            batch_id=3,
            time=run.now,
            records=4,
            seconds={"addBatch": 0.2, "walCommit": 0.1, "triggerExecution": 0.4},
            records_per_second=10.0,
            behind=0,
            state_memory=1000,
            read={},
        )
    )
    return generate_latest(registry(metrics)).decode()
