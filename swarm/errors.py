"""Every error glossd raises on purpose, named by the phase that failed.

GlossError
├── BadRequest            the caller asked for something impossible      exit 2  http 400
│   ├── BadSpan           a span that no model has
│   └── TooLarge          beyond a limit                                         http 413
├── StartError            the daemon cannot start here                   exit 1
│   ├── ConfigError       a setting is unknown or wrong                  exit 2
│   ├── ModelFileError    a model's files are missing, corrupt or contradictory
│   ├── FetchFailed       a model could not be pulled: absent, gated, unreachable, no space
│   └── IdentityError     the identity key is corrupt or not private
├── NotRunning            no daemon answers on the socket                exit 3
├── CoverageLost          no live peer serves some parts                 exit 4  http 503
├── CacheMiss             a span does not hold the keys and values of this epoch (the caller primes again)
├── Overloaded            the queue is full                                      http 503
├── DeadlineExceeded      the request ran out of time                            http 504
├── Halted                the kill switch is set                                 http 503
├── PassFailed            one pass through a chain failed; another chain may succeed (retryable)
│   ├── DialFailed        the peer cannot be reached
│   ├── PassTimeout       the peer did not answer in time
│   ├── LinkBroken        the connection ended in the middle of an answer
│   │   └── NetworkDown   this node's own network ended and starts again; no peer is to blame
│   ├── PeerRefused       the peer said no (busy, draining, other model)
│   ├── BadAnswer         the answer fails its checks
│   └── PipelineLost      a pass of a patch pipeline failed (the driver goes on with a synchronous step)
└── WireError             bytes that do not decode                               http 400

`code` is what crosses sockets and wires; `exit_code`, `http_status` and `retryable` are read from the class.
"""

from typing import ClassVar


class GlossError(Exception):
    """Base of all errors. The message says what is wrong and what to do next, in one line."""

    code: ClassVar[str] = "failed"
    exit_code: ClassVar[int] = 1
    http_status: ClassVar[int] = 500
    retryable: ClassVar[bool] = False


class BadRequest(GlossError):
    """`field` names the offending part of the request, if there is one."""

    code = "bad_request"
    exit_code = 2
    http_status = 400

    def __init__(self, message: str, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


class BadSpan(BadRequest):
    code = "bad_span"


class TooLarge(BadRequest):
    code = "too_large"
    http_status = 413


class StartError(GlossError):
    code = "start_failed"


class ConfigError(StartError):
    code = "bad_config"
    exit_code = 2


class ModelFileError(StartError):
    code = "bad_model_file"


class FetchFailed(StartError):
    code = "fetch_failed"


class IdentityError(StartError):
    code = "bad_identity"


class NotRunning(GlossError):
    code = "not_running"
    exit_code = 3


class CoverageLost(GlossError):
    """`parts` are the parts of the model that no live peer serves."""

    code = "coverage_lost"
    exit_code = 4
    http_status = 503

    def __init__(self, message: str, parts: tuple[int, ...]) -> None:
        super().__init__(message)
        self.parts = parts


class CacheMiss(GlossError):
    code = "cache_miss"
    http_status = 503
    retryable = True


class Overloaded(GlossError):
    code = "overloaded"
    http_status = 503


class DeadlineExceeded(GlossError):
    code = "deadline"
    http_status = 504


class Halted(GlossError):
    code = "halted"
    http_status = 503


class PassFailed(GlossError):
    code = "pass_failed"
    http_status = 503
    retryable = True


class DialFailed(PassFailed):
    code = "dial_failed"


class PassTimeout(PassFailed):
    code = "pass_timeout"


class LinkBroken(PassFailed):
    code = "link_broken"


class NetworkDown(LinkBroken):
    code = "network_down"


class PeerRefused(PassFailed):
    code = "refused"


class BadAnswer(PassFailed):
    code = "bad_answer"


class PipelineLost(PassFailed):
    code = "pipeline_lost"


class WireError(GlossError):
    code = "bad_bytes"
    http_status = 400
