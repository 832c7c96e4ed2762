"""Where this package may be loaded: in the main interpreter of a process.

Its native half has one of everything in a process, with threads that outlive calls. A second interpreter would share
objects with the first one, and its end would wait for threads that wait for it.
"""


def in_main_interpreter() -> bool:
    """Whether this is the first interpreter of the process; also where Python cannot tell."""
    try:
        import _interpreters as interpreters  # type: ignore[import-not-found]
    except ImportError:
        try:
            import _xxsubinterpreters as interpreters  # type: ignore[import-not-found]
        except ImportError:
            return True
    return bool(interpreters.get_current() == interpreters.get_main())


if not in_main_interpreter():
    raise ImportError(
        "mooncrate cannot be loaded in a subinterpreter; use threads of the main interpreter, or processes"
    )
