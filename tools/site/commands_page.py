"""The page of all commands, from the program itself."""

from collections.abc import Iterator

import click
import typer

from fedceo.cli.app import app

HEAD = """# Commands

What `fedceo COMMAND --help` prints, for every command. An error that you can mend is one line, and the exit code is 2.
"""


def page() -> str:
    context = click.Context(typer.main.get_command(app), info_name="fedceo")
    return "\n".join([HEAD, *(section(command) for command in commands(context))])


def commands(context: click.Context) -> Iterator[click.Context]:
    """The contexts of all commands that do something, in the order of the help."""
    group = context.command
    if not isinstance(group, click.Group):
        yield context
        return
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if not command.hidden:
            yield from commands(click.Context(command, info_name=name, parent=context))


def section(context: click.Context) -> str:
    command = context.command
    usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
    lines = [f"## {context.command_path}", "", command.help or "", "", f"    {usage}", ""]
    rows = [row for row in map(described, command.get_params(context)) if row]
    if rows:
        lines += ["| argument or option | meaning |", "|---|---|", *rows, ""]
    return "\n".join(lines)


def described(parameter: click.Parameter) -> str | None:
    """A row of the table; none for --help."""
    if parameter.name == "help":
        return None
    if isinstance(parameter, click.Option):
        names = [*parameter.opts, *parameter.secondary_opts]
    else:
        names = [parameter.make_metavar(click.Context(click.Command("")))]
    default = parameter.default
    said = "" if default in (None, False, ...) or callable(default) else f" Default: `{default}`."
    cells = (", ".join(f"`{name}`" for name in names), (getattr(parameter, "help", None) or "") + said)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
