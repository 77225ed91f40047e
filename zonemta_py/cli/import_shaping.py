"""``zonemta import-shaping``."""

from pathlib import Path
from tempfile import TemporaryDirectory

import click

from zonemta_py.cli.common import json_option, print_json, reports_errors
from zonemta_py.cli.options import EXISTING_FILE
from zonemta_py.config.imports.kumomta import import_kumomta
from zonemta_py.config.imports.model import Imported
from zonemta_py.config.imports.powermta import import_powermta
from zonemta_py.config.load import to_yaml
from zonemta_py.config.providers import load_providers
from zonemta_py.config.shaping import check_rule_providers, load_shaping
from zonemta_py.core.errors import ConfigError

IMPORTS = {"kumomta": import_kumomta, "powermta": import_powermta}
HEAD = "# Imported from {name} by `zonemta import-shaping`. Read it before you use it.\n"


@click.command()
@click.argument("file", type=EXISTING_FILE)
@click.option(
    "--format",
    "kind",
    type=click.Choice([*IMPORTS]),
    help="What FILE is.  [default: kumomta for .toml, else powermta]",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path(),
    show_default="the current directory",
    help="Where providers.yaml and shaping.yaml are written.",
)
@click.option("--force", is_flag=True, help="Replace files that are there.")
@json_option
@reports_errors
def import_shaping(file: Path, kind: str | None, output: Path, force: bool, as_json: bool) -> None:
    """Turn KumoMTA's shaping TOML, or PowerMTA's domains and pattern lists, into providers.yaml and shaping.yaml.

    What has no counterpart is listed on standard error, with its line. A file with nothing of the format is refused. docs/shaping_import.md says what becomes of what.

    \b
    Examples:
      zonemta import-shaping /opt/kumomta/etc/policy/shaping.toml -o /etc/zonemta
      zonemta import-shaping /etc/pmta/config --format powermta -o /tmp
    """
    kind = kind or ("kumomta" if file.suffix == ".toml" else "powermta")
    found = IMPORTS[kind](file, load_providers(None, shipped=True))
    paths = _write(found, file, output, force=force)
    for each in sorted(found.left):
        click.echo(f"{file}:{each.line}: {each.text}", err=True)
    counts = {"providers": len(found.providers), "rules": len(found.rules), "left_out": len(found.left)}
    if as_json:
        print_json({**counts, "files": [str(path) for path in paths]})
    else:
        click.echo(
            f"{', '.join(map(str, paths))}: {counts['providers']} providers, {counts['rules']} rules; "
            f"{counts['left_out']} remarks"
        )


def _write(found: Imported, source: Path, output: Path, *, force: bool) -> list[Path]:
    """Write both files, if the relay can use them; an error names ``source``. Raises ConfigError, OSError."""
    contents = {"providers.yaml": {"providers": found.providers}, "shaping.yaml": {"rules": found.rules}}
    paths = [output / name for name in contents]
    taken = [str(path) for path in paths if path.exists()]
    if taken and not force:
        raise ConfigError(f"{', '.join(taken)}: there already; --force replaces")
    texts = {name: HEAD.format(name=source.name) + to_yaml(each) for name, each in contents.items()}
    with TemporaryDirectory() as directory:
        for name, text in texts.items():
            Path(directory, name).write_text(text, encoding="utf-8")
        try:
            table = load_providers(Path(directory, "providers.yaml"), shipped=True)
            rules = load_shaping(Path(directory, "shaping.yaml"), shipped=False)
            check_rule_providers(rules, table)
        except ConfigError as exc:
            text = str(exc).removeprefix(f"{directory}/")
            raise ConfigError(
                f"{source}: what was made of it cannot be used, change or remove it there: {text}"
            ) from exc
    output.mkdir(parents=True, exist_ok=True)
    for path, text in zip(paths, texts.values(), strict=True):
        path.write_text(text, encoding="utf-8")
    return paths
