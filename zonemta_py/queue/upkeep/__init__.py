"""Work on a queue beside its verbs: recovery, clean-up, checks, repair, operator's commands."""
