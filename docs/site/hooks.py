"""Hooks of `mkdocs build`: they add pages and files that are stored outside docs/.

README, CONTRIBUTING and similar files become pages. The page of the command line is made from the
`--help` of every verb. If a page links to a file of the repository, the file is copied into the
site. If it links to a folder, the site gets a list of its files. Links are written for the
repository; the hooks change them to the addresses of the site.
"""

import contextlib
import io
import os
import posixpath
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from unittest import mock
from urllib.parse import unquote

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from pymdownx.slugs import slugify

ROOT = Path(__file__).resolve().parents[2]
TOP = {
    "index.md": "README.md",
    "contributing.md": "CONTRIBUTING.md",
    "changelog.md": "CHANGELOG.md",
    "licence.md": "LICENSE",
}
"""Pages of the site that are files at the top of the repository."""
FAMILIES = "families/"
COMMANDS = "reference/cli.md"
PARTS = re.compile(r"\{([a-z,]+)\} \.\.\.")
"""The verbs of a verb, in its usage."""
LINK = re.compile(r"(?<=\]\()(?!https?:|mailto:|#)([^)#\s]+)")
CODE = re.compile(r"^(```|~~~).*?^\1|^(?:    |\t).*?$|`[^`\n]+`", re.MULTILINE | re.DOTALL)
FETCHED = re.compile(
    r"<(?:script|link|img|iframe|source)\b[^>]*?\b(?:src|href)=[\"']?(?:https?:)?//[^>]*>"
)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Add a page for each family to the navigation, and make anchors of headings as GitHub does."""
    config.mdx_configs.setdefault("toc", {})["slugify"] = slugify(case="lower")
    folder = Path(config.docs_dir) / FAMILIES
    pages = [FAMILIES + name for name in family_pages(folder)]
    config.nav = [  # type: ignore[assignment]
        {title: pages} if content == FAMILIES else {title: content}
        for entry in config.nav or []
        for title, content in entry.items()
    ]
    return config


def family_pages(folder: Path) -> list[str]:
    """Return the file names of the pages of families, with their overview first."""
    return [
        "README.md",
        *sorted(page.name for page in folder.glob("*.md") if page.stem != "README"),
    ]


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add pages from outside docs/, and the files that pages link to."""
    for uri, name in TOP.items():
        text = (ROOT / name).read_text(encoding="utf-8")
        if name == "LICENSE":
            text = f"# Licence\n\n```text\n{text}```\n"
        files.append(File.generated(config, uri, content=text))
    files.append(File.generated(config, COMMANDS, content=commands()))
    linked = {
        target
        for file in files.documentation_pages()
        for target in links(file.content_string, source(file.src_uri, config))
    }
    for target in sorted(linked):
        for uri, content in carried(target, config):
            if files.get_file_from_path(uri) is None:
                files.append(File.generated(config, uri, **content))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, **_: object) -> str:
    """Change the links of a page to addresses of the site."""
    here = source(page.file.src_uri, config)

    def led(match: re.Match[str]) -> str:
        target = (here.parent / unquote(match[1])).resolve()
        if not target.exists():
            return match[1]  # MkDocs reports that the target is missing
        return posixpath.relpath(place(target, config), posixpath.dirname(page.file.src_uri))

    parts, end = [], 0
    for code in CODE.finditer(markdown):
        parts += [LINK.sub(led, markdown[end : code.start()]), code[0]]
        end = code.end()
    return "".join([*parts, LINK.sub(led, markdown[end:])])


def on_post_page(output: str, *, page: Page, **_: object) -> str:
    """Raise an error if a page would fetch something from another host."""
    if found := FETCHED.search(output):
        raise PluginError(f"{page.file.src_uri} needs a network: {found[0]}; copy it to docs/")
    return output


def source(uri: str, config: MkDocsConfig) -> Path:
    """Return the file of the repository that a page of the site was made from."""
    return ROOT / TOP[uri] if uri in TOP else Path(config.docs_dir) / uri


def place(target: Path, config: MkDocsConfig) -> str:
    """Return the address in the site of a file or a folder of the repository."""
    if target.is_relative_to(config.docs_dir):
        return target.relative_to(config.docs_dir).as_posix()
    name = target.relative_to(ROOT).as_posix()
    pages = {top: uri for uri, top in TOP.items()}
    return pages.get(name, f"files/{name}/index.md" if target.is_dir() else f"files/{name}")


def links(markdown: str, here: Path) -> Iterator[Path]:
    """Yield the files outside docs/ that a page links to, except those that are pages."""
    for match in LINK.finditer(CODE.sub("", markdown)):
        target = (here.parent / unquote(match[1])).resolve()
        inside = target.is_relative_to(ROOT) and not target.is_relative_to(ROOT / "docs")
        if inside and target.exists() and target.relative_to(ROOT).as_posix() not in TOP.values():
            yield target


def carried(target: Path, config: MkDocsConfig) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield address and content of a linked file, or of a folder's list and all of its files."""
    if not target.is_dir():
        yield place(target, config), {"abs_src_path": str(target)}
        return
    held = sorted(file for file in target.iterdir() if file.is_file())
    lines = [f"| [{file.name}]({file.name}) | {file.stat().st_size:,} |" for file in held]
    head = f"# {target.relative_to(ROOT).as_posix()}\n\n| file | bytes |\n| --- | ---: |\n"
    yield place(target, config), {"content": head + "\n".join(lines) + "\n"}
    for file in held:
        yield place(file, config), {"abs_src_path": str(file)}


def commands() -> str:
    """Return the page of the command line, made from the help of each verb."""
    sys.path.insert(0, str(ROOT))
    from lra.cli import VERBS, main

    def printed(*words: str) -> str:
        text = io.StringIO()
        width = mock.patch.dict(os.environ, {"COLUMNS": "88", "NO_COLOR": "1"})
        with width, contextlib.redirect_stdout(text), contextlib.suppress(SystemExit):
            main([*words, "--help"])
        if not text.getvalue():
            raise PluginError(f"lra {' '.join(words)} --help printed nothing")
        return text.getvalue()

    parts = [
        "# Command line",
        "This page shows what `--help` prints for each command, for example `lra run --help`. "
        "`lra list` prints the names that you can choose from. [Configuration]"
        "(../configuration.md) explains which setting has priority.",
        f"```text\n{printed()}```",
    ]
    for verb in VERBS:
        parts += [f"## lra {verb}", f"```text\n{printed(verb)}```"]
        for part in chosen[1].split(",") if (chosen := PARTS.search(printed(verb))) else ():
            parts += [f"### lra {verb} {part}", f"```text\n{printed(verb, part)}```"]
    return "\n\n".join(parts) + "\n"
