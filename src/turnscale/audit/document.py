"""A report as titled tables and lines of text, printed to a terminal or written as Markdown or LaTeX."""

from __future__ import annotations

from dataclasses import dataclass, field

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from turnscale.render.text import latex, markdown


@dataclass(frozen=True)
class Column:
    """A column's heading; numbers are right-aligned."""

    heading: str
    number: bool = False


@dataclass(frozen=True)
class Section:
    """A table (may be empty) with a title and the sentences a reader needs to read it."""

    title: str
    columns: tuple[Column, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Document:
    """A whole report."""

    title: str
    lead: tuple[str, ...]
    sections: tuple[Section, ...] = field(default=())


COLOURS = {
    "supported": "green",
    "not distinguishable": "yellow",
    "contradicted": "red",
    "not testable": "dim",
    "reproduced": "green",
    "not reproduced": "red",
    "undecided": "yellow",
}


def to_terminal(document: Document, console: Console) -> None:
    """Print with rich; verdict words are coloured, and the words carry the meaning without colour."""
    console.print(Text(document.title, style="bold"))
    for line in document.lead:
        console.print(Text(line))
    for section in document.sections:
        console.print()
        if section.rows:
            table = RichTable(
                title=Text(section.title, style="bold"),
                title_justify="left",
                box=SIMPLE_HEAD,
                padding=(0, 1, 0, 0),
            )
            for column in section.columns:
                table.add_column(
                    Text(column.heading), justify="right" if column.number else "left", overflow="fold"
                )
            for row in section.rows:
                table.add_row(*(Text(cell, style=COLOURS.get(cell, "")) for cell in row))
            console.print(table)
        else:
            console.print(Text(section.title, style="bold"))
        for note in section.notes:
            console.print(Text(note, style="dim" if section.rows else ""))


def to_markdown(document: Document) -> str:
    """The report as Markdown with pipe tables; all text escaped."""
    out = [f"# {markdown(document.title)}", ""]
    out += [line for text in document.lead for line in (markdown(text), "")]
    for section in document.sections:
        out += [f"## {markdown(section.title)}", ""]
        if section.rows:
            out.append("| " + " | ".join(markdown(c.heading) for c in section.columns) + " |")
            out.append("|" + "|".join("---:" if c.number else "---" for c in section.columns) + "|")
            out += ["| " + " | ".join(markdown(cell) for cell in row) + " |" for row in section.rows]
            out.append("")
        out += [line for note in section.notes for line in (markdown(note), "")]
    return "\n".join(out).rstrip() + "\n"


def to_latex(document: Document) -> str:
    """The report as a LaTeX fragment of booktabs longtables; all text escaped.

    Needs the packages booktabs, longtable, array and textcomp with T1 fonts.
    """
    out = [
        "% needs: \\usepackage[T1]{fontenc} \\usepackage{textcomp,booktabs,longtable,array}",
        f"\\section*{{{latex(document.title)}}}",
    ]
    out += [latex(text) + "\n" for text in document.lead]
    for section in document.sections:
        out.append(f"\\subsection*{{{latex(section.title)}}}")
        if section.rows:
            out += _longtable(section)
        out += [latex(note) + "\n" for note in section.notes]
    return "\n".join(out).rstrip() + "\n"


def _longtable(section: Section) -> list[str]:
    texts = [i for i, c in enumerate(section.columns) if not c.number]
    longest = {i: max(len(row[i]) for row in section.rows) for i in texts}
    wide = {i for i in texts if longest[i] > 28}
    width = 0.5 / max(len(wide), 1)
    spec = "".join(
        "r"
        if c.number
        else f">{{\\raggedright\\arraybackslash}}p{{{width:.2f}\\linewidth}}"
        if i in wide
        else "l"
        for i, c in enumerate(section.columns)
    )
    heading = " & ".join(latex(c.heading) for c in section.columns) + r" \\"
    body = [" & ".join(latex(cell) for cell in row) + r" \\" for row in section.rows]
    return [
        r"{\footnotesize",
        f"\\begin{{longtable}}{{@{{}}{spec}@{{}}}}",
        r"\toprule",
        heading,
        r"\midrule",
        r"\endhead",
        *body,
        r"\bottomrule",
        r"\end{longtable}}",
    ]
