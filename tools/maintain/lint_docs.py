"""Checks every document of the checkout in about a second, and prints all faults at once, each with its place.

`python tools/maintain/lint_docs.py` ends with status 1 if there is a fault. Commands are parsed, and never run.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tools.maintain import documents
from tools.maintain.documents import HISTORY, MADE, Checkout

ROOT = Path(__file__).resolve().parents[2]

NAMED_FILE = re.compile(
    r"(?<![\w/.-])((?:\.ci|\.github|scripts|deploy|docs|examples|test|tools|triton_sam)/[\w./-]*\w)"
)
SOURCE_FILE = re.compile(r"(?<![\w./-])((?:[\w.-]+/)*\w+\.(?:py|js|sh))(?!\w)")
NAME = re.compile(r"(?<![\w./:$-])([A-Za-z_]\w*)(?=\(|$)")
CAPITALS = re.compile(r"(?<![\w./-])[A-Z][A-Z0-9]*_[A-Z0-9_]*[A-Z0-9]\b")
TEST = re.compile(r"((?:test/(?:[\w-]+/)*)?test_\w+(?:\.py)?)(?:::([\w.]+))?")
DEFINITION = re.compile(r"(?m)^ *(?:async def|def|class) (\w+)")

OF_OTHERS = {
    *("CVAT_NUCLIO_HOST", "CVAT_NUCLIO_INVOKE_METHOD", "CVAT_NUCLIO_PORT", "CVAT_SERVERLESS"),
    "OTEL_TRACES_SAMPLER_ARG",
    *("InferenceService", "ModelInfer", "RawDeployment", "TRITON_ENABLE_GPU", "lock_exception"),
    *("raw_input_contents", "raw_output_contents"),
}
"""Names of other programs that the project's code does not contain."""
ERRORS_OF_OTHERS = {
    'could not select device driver "nvidia"',
    "This container was built for NVIDIA Driver Release",
    "no kernel image is available for execution on the device",
    "Failed to allocate memory for requested buffer",
    "No space left on device",
    "permission denied",
}
"""Errors on the troubleshooting page that Docker, Triton and the system print."""
PLACEHOLDERS = {"MyFamily", "vVERSION", "triton_sam.ask"}
"""Names that a reader replaces, or that an example creates."""
ODD = {
    r"\b(server|service|client|page|program|model)s? (knows?|hears?|asks?|tells?|forgets?|heals?)\b": "software "
    "stores, receives, sends, calls, returns",
    r", too\b|\bbesides\b|\bby itself\b|\bby themselves\b|\bat all\b": "leave it out",
    r"\b(hence|thus|whatever)\b": "plain words",
    r"\b(those that|one that|what it|what they)\b": "repeat the noun",
    r"\b(is|are) no (?!longer|more)\w+": "is not ...",
    r"\b(the way there and back|goes before|lives on|stands for itself)\b": "round trip, takes precedence, remains",
    r"\b(built-in model|picture|bars?)\b": "demo model, image, threshold",
    r"\baddress(es)? of (the|a|this) (server|service|page)\b": "URL",
    r"\b(missed|our aim|our threshold)\b": "a limitation, not a missed target",
    r"\b(was|were) at hand\b": "available",
    r"\balone\b": "only, before its word",
}
"""Patterns of wording that sounds translated, with what to write."""


# --- links and files


def links(checkout: Checkout) -> Iterator[str]:
    """Yield links and images with a missing target or heading."""
    known = {document.path.as_posix(): document for document in checkout.documents}
    link = re.compile(r'\]\(([^)\s#]*)(?:#([^)\s]*))?[^)]*\)| (?:src|srcset)="([^"]+)"')
    for document in checkout.documents:
        for match in link.finditer(document.text):
            name, anchor = match[1] or match[3] or "", match[2]
            if "://" in name or name.startswith("mailto:"):
                continue
            path = (checkout.root / document.path.parent / name).resolve() if name else checkout.root / document.path
            if not path.exists():
                yield f"{document.at(match.start())}: there is no {name}"
            elif anchor and path.suffix == ".md":
                target = known.get(path.relative_to(checkout.root.resolve()).as_posix(), document)
                if anchor not in target.anchors:
                    yield f"{document.at(match.start())}: {target.path} has no heading #{anchor}"


def files(checkout: Checkout) -> Iterator[str]:
    """Yield mentioned files that do not exist: paths anywhere, and names of source files in code."""
    for document in checkout.documents:
        for match in NAMED_FILE.finditer(document.text):
            name = match[1]
            places = (name, (document.path.parent / name).as_posix())
            if name.startswith(MADE) or "NAME" in name or not checkout.paths.isdisjoint(places):
                continue
            if not any(path.startswith(name) for path in checkout.paths):
                yield f"{document.at(match.start())}: there is no {name}"
        if document.path.name == HISTORY:
            continue
        for position, code in document.inline():
            for match in SOURCE_FILE.finditer(code):
                if match[1] not in checkout.ends and "NAME" not in match[1] and "*" not in code:
                    yield f"{document.at(position)}: no file has the name {match[1]}"


def navigation(checkout: Checkout) -> Iterator[str]:
    """Yield pages that the site's navigation lacks, and entries without a page."""
    named = set(re.findall(r"(?m)^ +- (?:.*: )?([\w/-]+\.md)$", checkout.read("mkdocs.yml")))
    pages = {
        str(document.path.relative_to("docs"))
        for document in checkout.documents
        if document.path.is_relative_to("docs") and not document.path.is_relative_to("docs/evidence")
    }
    yield from (f"mkdocs.yml: the navigation lacks {page}" for page in sorted(pages - named))
    yield from (f"mkdocs.yml: there is no page {page}" for page in sorted(named - pages))


def tables(checkout: Checkout) -> Iterator[str]:
    """Yield rows of tables that follow no header, and so are shown as text."""
    for document in checkout.documents:
        for match in re.finditer(r"(?m)(?<!\|\n)^\|.*\n(?!\|[-: |]+\|$)", document.text):
            yield f"{document.at(match.start())}: this row of a table has no header"


def documents_in_code(checkout: Checkout) -> Iterator[str]:
    """Yield missing documents that the code mentions."""
    folders = ("triton_sam/", "scripts/", "deploy/", "model_repository/", "examples/", "tools/")
    for name, text in checkout.code.items():
        if name.startswith(folders):
            for page in re.findall(r"\bdocs/[\w/-]+\.md\b", text):
                if page not in checkout.paths:
                    yield f"{name}: there is no {page}"


# --- names in code


def modules(checkout: Checkout) -> Iterator[str]:
    """Yield dotted names of this package that do not exist."""
    for document in checkout.documents:
        for match in re.finditer(r"(?<![\w./-])triton_sam2?(?:\.\w+)+", document.text):
            parts, place = match[0].split("."), ""
            while parts and (f"{place}{parts[0]}" in checkout.paths or f"{place}{parts[0]}.py" in checkout.paths):
                place = f"{place}{parts.pop(0)}/"
            source = checkout.code.get(f"{place[:-1]}.py") or checkout.code.get(f"{place}__init__.py", "")
            fits = not parts or re.search(rf"\b{parts[0]}\b", source) or "NAME" in match[0]
            if not fits and match[0] not in PLACEHOLDERS:
                yield f"{document.at(match.start())}: there is no {match[0]}"


def names(checkout: Checkout) -> Iterator[str]:
    """Yield names of functions, classes, variables and error codes that no code contains."""
    for document in checkout.documents:
        if document.path.name == HISTORY:
            continue
        found = [(match.start(), match[0]) for match in CAPITALS.finditer(document.text)]
        for position, code in document.inline():
            for name in NAME.findall(code):
                # A word of plain letters may mean anything.
                is_name = "_" in name.strip("_") or re.search("[a-z][A-Z]", name)
                if is_name and not TEST.fullmatch(name):
                    found.append((position, name))
        for position, name in sorted(set(found)):
            # A document may omit the start of a metric. The code adds `triton_sam_` and `_total` to all metrics.
            metric = name.removeprefix("triton_sam_").removeprefix("_").removesuffix("_total")
            if not {name, metric} & checkout.words and name not in OF_OTHERS | PLACEHOLDERS:
                yield f"{document.at(position)}: no code contains {name}"


def tests(checkout: Checkout) -> Iterator[str]:
    """Yield mentioned tests that do not exist."""
    sources: dict[str, list[str]] = {}
    for name in checkout.code:
        for end in (name, PurePosixPath(name).name, PurePosixPath(name).stem):
            sources.setdefault(end, []).append(name)
    for document in checkout.documents:
        for position, code in document.inline() if document.path.name != HISTORY else ():
            match = TEST.fullmatch(code)
            if match is not None and match[1] in sources:
                defined = {name for source in sources[match[1]] for name in DEFINITION.findall(checkout.code[source])}
                if not is_defined(match[2] or "", defined):
                    yield f"{document.at(position)}: {match[1]} has no test {match[2]}"
            elif match is not None and (match[2] or match[1] not in checkout.words):
                yield f"{document.at(position)}: there is no test {match[1]}"


def is_defined(test: str, defined: set[str]) -> bool:
    """Return whether a test is defined. The name may omit parts, as in `test_a_click...comes_back`, or end early."""
    if "..." in test:
        return any(all(part.strip("_") in name for part in test.split("...")) for name in defined)
    return not test or all(part in defined for part in test.split("."))


# --- what several files say


def claims(checkout: Checkout) -> Iterator[str]:
    """Yield claims of docs/evidence/claims.md without a test or a command."""
    page = checkout.read("docs/evidence/claims.md")
    for claim, proof in re.findall(r"(?m)^\| (?!claim \|)([^|\n]+) \| ([^|\n]*) \|$", page):
        if "`" not in proof:
            yield f"docs/evidence/claims.md: a claim without a test or a command: {claim}"


def repository(checkout: Checkout) -> Iterator[str]:
    """Yield clones of repositories other than pyproject.toml's, which README must mention."""
    url = checkout.project["project"]["urls"]["Repository"]
    for document in checkout.documents:
        for match in re.finditer(r"git clone (http\S+)", document.text):
            if match[1] != url and "facebookresearch" not in match[1]:
                yield f"{document.at(match.start())}: the repository is {url}, not {match[1]}"
    if f"git clone {url}" not in checkout.read("README.md"):
        yield f"README.md: it lacks git clone {url}"


def continuous_integration(checkout: Checkout) -> Iterator[str]:
    """Yield a fault if .ci/run or the task `test` differs from README's test command."""
    found = re.search(r"pip install (-c \S+ -e \S+) && (pytest[^\n`]*)", checkout.read("README.md"))
    if found is None:
        yield "README.md: it lacks the command that installs the project and runs its tests"
        return
    script = checkout.read(".ci/run")
    for part in (found[1], found[2]):
        if not re.search(rf"(?m)^[^#\n]*{re.escape(part)}", script):
            yield f".ci/run: it lacks {part!r} of README.md"
    task = checkout.tasks["test"]["cmd"]
    if task != found[2]:
        yield f"pyproject.toml: the task test is {task!r}, but README.md has {found[2]!r}"


def deployment(checkout: Checkout) -> Iterator[str]:
    """Yield a release in docs/how-to/deploy.md that differs from the Dockerfile."""
    page = checkout.read("docs/how-to/deploy.md")
    tag = re.findall(r"(?m)^ARG TRITON_TAG=(\S+)$", checkout.read("Dockerfile"))[0]
    for words in (f"| `{tag}` (default) |", f"{tag.removesuffix('-py3')} unless you set it"):
        if words not in page:
            yield f"docs/how-to/deploy.md: it lacks {words!r}"


def errors(checkout: Checkout) -> Iterator[str]:
    """Yield error texts on the troubleshooting page that the code does not contain."""
    page = next(each for each in checkout.documents if each.path.name == "troubleshooting.md")
    code = "\n".join(text for name, text in checkout.code.items() if name.startswith("triton_sam/"))
    for row in re.finditer(r"(?m)^\| ([^|]+) \|", page.text):
        for text in re.findall(r"`([^`]+ [^`]+)`", row[1]):
            if text not in code and text not in ERRORS_OF_OTHERS and not text.startswith("curl "):
                yield f"{page.at(row.start())}: no error says {text!r}"


CHECKS: tuple[Callable[[Checkout], Iterator[str]], ...] = (
    *(links, files, navigation, tables, documents_in_code, modules, names, tests),
    *(claims, repository, continuous_integration, deployment, errors),
    *documents.CHECKS,
)


def faults(root: Path = ROOT) -> list[str]:
    """Return all faults of the documents of a checkout."""
    checkout = Checkout(root)
    return [fault for check in CHECKS for fault in check(checkout)]


def prose(root: Path = ROOT) -> list[str]:
    """Return places whose wording sounds translated, and lines of more than 120 characters, in all documents."""
    found = []
    for document in Checkout(root).documents:
        is_code = False
        for number, line in enumerate(document.text.splitlines(), 1):
            is_code ^= line.lstrip().startswith("```")
            if is_code or document.path.name == HISTORY:
                continue
            found += [
                f"{document.path}:{number}: {match[0]!r}: {advice}"
                for pattern, advice in ODD.items()
                for match in re.finditer(pattern, re.sub(r"`[^`]*`", "", line), re.IGNORECASE)
            ]
            if len(line) > 120 and not line.lstrip().startswith("|") and "](" not in line:
                found.append(f"{document.path}:{number}: {len(line)} characters")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prose", action="store_true", help="list wording that sounds translated; never fails")
    if parser.parse_args().prose:
        print(*prose(), sep="\n")
        return 0
    found = faults()
    print(*found, sep="\n") if found else print("no faults")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
