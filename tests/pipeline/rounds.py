"""``python -m tests.pipeline.rounds pipeline send …``: ``zonemta`` with small rounds, so that few recipients are enough for several."""

from zonemta_py.cli.main import main

FIRST_ROUND = 1000  # recipients

if __name__ == "__main__":
    from zonemta_py.pipeline.send import job

    job.ROUND_ROWS_MIN = FIRST_ROUND
    main(prog_name="zonemta")
