"""Two Airflow DAGs: a letter every day (suppress, plan, send, report), and the sunset segment every week.

Written for Airflow 3; with Airflow 2 import DAG from airflow. Every task may run again: see "Airflow" in docs/pipeline.md. Before the
first letter run the DAG newsletter_segments once, because the plan reads segments/sunset.csv.
"""

from datetime import datetime, timedelta

from airflow.providers.standard.operators.bash import BashOperator
from airflow.providers.standard.sensors.time_delta import TimeDeltaSensor
from airflow.sdk import DAG

DIRECTORY = "/var/lib/newsletter"  # has lists, letters and events; the tasks write the others
DAMAGED = 3  # the exit code of a job that is done, with what can be read of a damaged event log

# The file is replaced at once, when it is complete. A damaged event log is a warning here: the others need the file.
SUPPRESS = """
zonemta pipeline suppress events --output bounced.csv || test $? -eq 3
"""

# A plan never changes, and one that was sent cannot be replaced: a task that runs again keeps it.
PLAN = """
test -e plans/{{ ds }}/manifest/_SUCCESS || zonemta pipeline plan lists/subscribers.csv
    --message letters/{{ ds }}.eml --from news@example.com --campaign daily-{{ ds }}
    --suppress bounced.csv --suppress segments/sunset.csv --output plans/{{ ds }}
"""

# Sends what the ledger lacks. Exit code 1 also says that recipients were refused for good: then a retry takes seconds.
SEND = """
zonemta pipeline send plans/{{ ds }} --relay 10.0.0.1:2525 --relay 10.0.0.2:2525 --timeout 1h --json
"""

REPORT = """
zonemta pipeline report events --plan plans/{{ ds }} --output reports/{{ ds }} --overwrite --json
"""

# Fails unless every recipient of the plan has one outcome.
RECONCILE = """
zonemta pipeline reconcile plans/{{ ds }} events --json
"""

# The day makes a run of last week repeatable; the file that plans read is replaced at once.
SEGMENT = """
zonemta pipeline segment engagement --list lists/subscribers.csv --joined-column joined --as-of {{ ds }}
    --output segments/{{ ds }} --overwrite --json &&
cp segments/{{ ds }}/sunset.csv segments/.sunset.part && mv segments/.sunset.part segments/sunset.csv
"""


def command(task_id: str, text: str, **settings: object) -> BashOperator:
    """A task that runs ``text``, whose lines are one command."""
    return BashOperator(task_id=task_id, bash_command=" ".join(text.split()), cwd=DIRECTORY, **settings)


DEFAULTS = {"retries": 3, "retry_delay": timedelta(minutes=10)}  # well within submission_key.window

with DAG(
    "newsletter",
    schedule="0 6 * * *",
    start_date=datetime(2026, 11, 1),
    catchup=False,
    max_active_runs=1,
    default_args=DEFAULTS,
) as newsletter:
    suppress = command("suppress", SUPPRESS)
    plan = command("plan", PLAN)
    send = command("send", SEND)
    # The report follows even when some recipients were refused; ``reconcile`` does not, so that the run counts as failed.
    wait = TimeDeltaSensor(
        task_id="wait_for_deliveries",
        delta=timedelta(hours=6),
        mode="reschedule",
        trigger_rule="all_done",
    )
    report = command("report", REPORT, skip_on_exit_code=DAMAGED)
    reconcile = command("reconcile", RECONCILE, skip_on_exit_code=DAMAGED)
    suppress >> plan >> send >> wait >> report
    [send, wait] >> reconcile

with DAG(
    "newsletter_segments",
    schedule="0 3 * * 1",
    start_date=datetime(2026, 11, 1),
    catchup=False,
    max_active_runs=1,
    default_args=DEFAULTS,
) as newsletter_segments:
    command("segment", SEGMENT)
