"""Coverage-guided fuzzing of one parser: ``python -m tests.fuzz TARGET [libFuzzer options]``.

``make fuzz`` runs each for five minutes. A finding is written as ``crash-…`` and ends the run.
"""

import sys

import atheris

with atheris.instrument_imports(include=["zonemta_py"]):
    from tests.fuzz.targets import TARGETS

if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1] not in TARGETS:
        sys.exit(
            f"usage: python -m tests.fuzz TARGET [-max_total_time=SECONDS]; targets: {', '.join(TARGETS)}"
        )
    atheris.Setup([sys.argv[0], *sys.argv[2:]], TARGETS[sys.argv[1]])
    atheris.Fuzz()
