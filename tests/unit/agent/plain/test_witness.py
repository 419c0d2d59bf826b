"""What is known of a worker that failed: from its error file, its last words, its signal."""

import json

from easyscale.agent.plain.values import Fault
from easyscale.agent.plain.witness import Evidence, could_not_start, fault_of, last_raised

TRACE = """\
starting
Traceback (most recent call last):
  File "/home/me/train.py", line 30, in <module>
    main()
  File "/home/me/train.py", line 12, in main
    loss = step(x)
           ^^^^^^^
  File "/usr/lib/python3.11/json/decoder.py", line 337, in decode
    raise error
ValueError: target 11 is out of bounds
"""


def source(file: str, line: int) -> str:
    return f"line {line}\n" if file == "/home/me/train.py" else ""


def fault(
    stderr: str = "", *, error_file: bytes = b"", code: int | None = 1, number: int | None = None
) -> Fault:
    return fault_of(
        Evidence(error_file, stderr, source),
        rank=3,
        node="a",
        pid=7,
        code=code,
        number=number,
        log="x",
        error_file="/e",
    )


def test_a_traceback_on_stderr_gives_the_innermost_own_line() -> None:
    found = fault(TRACE)
    assert found.headline == "ValueError: target 11 is out of bounds"
    assert (found.line, found.function) == (12, "main")
    assert found.caller == "/home/me/train.py:30"
    assert found.excerpt == tuple((n, f"line {n}") for n in range(9, 13))
    assert not found.is_victim
    assert not found.is_hopeless


def test_files_below_the_persons_folder_are_told_from_there() -> None:
    evidence = Evidence(b"", TRACE, source, folder="/home/me")
    found = fault_of(evidence, rank=0, node="a", pid=1, code=1, number=None, log="", error_file="")
    assert (found.file, found.caller) == ("train.py", "train.py:30")
    assert found.excerpt


def test_what_record_wrote_goes_before_what_was_printed() -> None:
    stack = TRACE.replace("ValueError: target 11", "KeyError: 'x'")
    content = {
        "message": {
            "message": "KeyError: 'x'",
            "extraInfo": {"py_callstack": stack, "timestamp": "1700000000"},
        }
    }
    found = fault("noise", error_file=json.dumps(content).encode())
    assert (found.headline, found.line, found.error_file) == ("KeyError: 'x'", 12, "/e")


def test_an_error_file_may_hold_a_bare_message_or_nonsense() -> None:
    assert fault(error_file=b'{"message": "it broke"}').headline == "it broke"
    for nonsense in (b"", b"{", b"[]", b'{"message": 3}', b'{"message": {"message": 1}}'):
        found = fault("last line\n\n", error_file=nonsense)
        assert found.headline == 'exit 1, no traceback (last on stderr: "last line")'
        assert found.error_file == ""


def test_a_signal_is_named_and_explains_more_than_an_old_traceback() -> None:
    found = fault(TRACE, code=None, number=11)
    assert found.headline.startswith("killed by SIGSEGV")
    assert found.line == 0


def test_who_lost_its_peers_is_a_victim() -> None:
    text = TRACE.replace(
        "ValueError: target 11 is out of bounds",
        "RuntimeError: [gloo/t.cc:81] Connection closed by peer [127.0.0.1]:1234",
    )
    assert fault(text).is_victim
    late = TRACE.replace(
        "ValueError: target 11 is out of bounds",
        "torch.distributed.DistStoreError: Timed out waiting 60000ms for store",
    )
    assert fault(late).is_victim


def test_a_script_that_python_cannot_read_is_hopeless() -> None:
    text = TRACE.replace("ValueError: target", "SyntaxError: target")
    assert fault(text).is_hopeless
    alone = (
        '  File "/home/me/train.py", line 3\n    x = = 1\n        ^\nSyntaxError: invalid syntax\n'
    )
    assert fault(alone).headline == "SyntaxError: invalid syntax"
    assert fault(alone).is_hopeless


def test_the_last_of_chained_exceptions_counts() -> None:
    text = TRACE + "\nDuring handling of the above exception, another exception occurred:\n\n"
    text += TRACE.replace("ValueError: target 11 is out of bounds", "RuntimeError: second")
    raised = last_raised(text)
    assert raised is not None
    assert raised.headline == "RuntimeError: second"


def test_a_program_that_cannot_be_started_says_why() -> None:
    found = could_not_start("Permission denied", words=["./run.sh"], rank=0, node="a")
    assert found.headline == "./run.sh: permission denied"
    assert found.is_hopeless
