"""``python -m zonemta_py`` is the command ``zonemta``."""

from zonemta_py.cli.main import main

if __name__ == "__main__":
    main(prog_name="zonemta")
