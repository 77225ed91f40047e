"""Results of the mail: report, unusual hours, recommendations, outcomes.

job                   ``zonemta pipeline report``
attempts, sums        sums of attempts, and those of a log or of a report that is kept up to date
tables                the tables of a report
page, charts          its page
anomalies             ``zonemta pipeline anomaly``
advice                ``zonemta pipeline recommend``
outcomes              ``zonemta pipeline reconcile``
"""
