"""Render one chat template, in a process of its own: the child half of `chat.py`.

A template comes with a model's files, so it is a stranger's program. Jinja's sandbox keeps it from objects, not from
loops or from doubling a string forty times; limits of the operating system do. This file imports nothing of glossd, so
that the process starts fast, and runs as `python -I render.py` with one JSON object on its standard input.
"""

import json
import sys

CPU_SECONDS, MEMORY_BYTES = 2, 512 * 1024 * 1024


class Refusal(Exception):
    """What a template's own `raise_exception` raises."""


def limit_process() -> None:
    try:
        import resource
    except ImportError:  # not a POSIX system: the parent's clock still ends us
        return
    for what, value in (
        (resource.RLIMIT_CPU, CPU_SECONDS),
        (resource.RLIMIT_AS, MEMORY_BYTES),
        (resource.RLIMIT_CORE, 0),
    ):
        hard = resource.getrlimit(what)[1]
        if hard == resource.RLIM_INFINITY or hard > value:
            # macOS refuses RLIMIT_AS.
            try:
                resource.setrlimit(what, (value, value))
            except (ValueError, OSError):
                continue


def refuse(message: object) -> None:
    raise Refusal(str(message))


def render(template: str, values: dict[str, object], limit: int) -> str:
    """At most `limit` characters; raises whatever the template provokes."""
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.globals["raise_exception"] = refuse
    pieces, size = [], 0
    for piece in environment.from_string(template).generate(**values):
        size += len(piece)
        if size > limit:
            raise Refusal(f"it renders to more than {limit} characters")
        pieces.append(piece)
    return "".join(pieces)


def main() -> None:
    limit_process()
    work = json.loads(sys.stdin.buffer.read())
    try:
        answer = {"text": render(work["template"], work["values"], work["limit"])}
    except (MemoryError, RecursionError, OverflowError) as error:
        answer = {"error": f"it takes too much memory or depth ({type(error).__name__})"}
    except Exception as error:  # a template can raise anything
        answer = {"error": str(error)[:300] or type(error).__name__}
    sys.stdout.buffer.write(json.dumps(answer).encode())


if __name__ == "__main__":
    main()
