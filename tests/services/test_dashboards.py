"""The dashboard for Grafana and the alerts for Prometheus ask for metrics that a relay exports, in valid expressions."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
ALERTS = ROOT / "config/prometheus/alerts.yaml"
DASHBOARD = ROOT / "config/grafana/zonemta.json"
# docs/metrics.md is what a relay exports: see test_admin_http.py.
EXPORTED = set(re.findall(r"`(zonemta_\w+)`", (ROOT / "docs/metrics.md").read_text()))


def expressions() -> dict[str, str]:
    """By where they are."""
    rules = yaml.safe_load(ALERTS.read_text())["groups"][0]["rules"]
    found = {rule["alert"]: rule["expr"] for rule in rules}
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        for target in panel["targets"]:
            found[f"{panel['title']} {target['refId']}"] = target["expr"]
    return found


@pytest.mark.parametrize(("where", "expression"), expressions().items())
def test_metrics_are_exported(where: str, expression: str) -> None:
    names = re.findall(r"zonemta_\w+", expression)
    assert names or "up{" in expression
    for name in names:
        assert name in EXPORTED or name.removesuffix("_bucket") in EXPORTED, name


PROMTOOL = shutil.which("promtool") or shutil.which("promtool", path=Path(sys.executable).parent)


@pytest.mark.skipif(PROMTOOL is None, reason="promtool: ./setup-tools")
def test_expressions_are_valid(tmp_path: Path) -> None:
    """promtool parses the alerts, and the queries of the dashboard as if they were rules."""
    rules = [
        {"record": f"test:rule{number}", "expr": re.sub(r"\$\w+", ".*", expression)}
        for number, expression in enumerate(expressions().values())
    ]
    queries = tmp_path / "queries.yaml"
    queries.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))
    for path in (ALERTS, queries):
        result = subprocess.run(
            [str(PROMTOOL), "check", "rules", path], capture_output=True, text=True, check=False
        )
        assert result.returncode == 0, result.stdout + result.stderr
