"""Settings: flag > GLOSSD_* environment > TOML file > default, each value with its origin. Resolved once, then frozen.

`glossd run` hands its flags to the daemon as one JSON argument, `python -m glossd.start '{"model": ...}'`; both sides
call `resolve` with them. Imports neither torch nor hivemind, so that the command line stays quick.
"""

import difflib
import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    SecretStr,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from glossd import paths
from swarm.errors import BadSpan, ConfigError
from swarm.ids import Span
from swarm.wire.messages import Activations

ENV_PREFIX = "GLOSSD_"
DTypeName = Literal["float32", "bfloat16", "float16", "auto"]
QuantName = Literal["none", "int8", "nf4"]
LogLevel = Literal["debug", "info", "warning", "error"]

_LOCAL = ("/ip4/127.", "/ip4/localhost", "/ip6/::1/")
_LOOPBACK = re.compile(r"(127\.0\.0\.1|localhost|\[::1\]):(\d{1,5})")


def _layers(text: str) -> str:
    try:
        return text if text in ("auto", "none") else str(Span.parse(text))
    except BadSpan as error:
        raise ValueError(str(error)) from None


def _loopback(text: str) -> str:
    found = _LOOPBACK.fullmatch(text)
    if found is None or int(found[2]) > 65535:
        raise ValueError("write 127.0.0.1:PORT; only loopback addresses are served")
    return text


def _split(value: object) -> object:
    """An environment variable holds a list as words between commas or blanks."""
    return re.split(r"[\s,]+", value.strip(" ,\n")) if isinstance(value, str) and value.strip() else value or []


def _multiaddresses(values: list[str]) -> list[str]:
    for value in values:
        if not value.startswith("/"):
            raise ValueError(f"{value!r} is not a multiaddress such as /ip4/10.0.0.1/tcp/4001/p2p/12D3...")
    return values


_Path = Annotated[Path, AfterValidator(Path.expanduser)]
_Addresses = Annotated[list[str], NoDecode, BeforeValidator(_split), AfterValidator(_multiaddresses)]


class Settings(BaseSettings):
    """Everything a user can set. `glossd config show` prints it with origins."""

    model_config = SettingsConfigDict(env_prefix=ENV_PREFIX, frozen=True, extra="forbid", allow_inf_nan=False)

    model: Annotated[str, Field(min_length=1)] = "gloss-tiny"
    layers: Annotated[str, AfterValidator(_layers)] = "auto"
    join: _Addresses = Field(default_factory=list)
    require_join: bool = False
    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 0
    announce: _Addresses = Field(default_factory=list)
    state_dir: _Path = Field(default_factory=paths.state_dir)
    socket: _Path = Field(default_factory=lambda known: paths.socket_path(known["state_dir"]))
    http: Annotated[str, AfterValidator(_loopback)] | None = None
    http_token: Annotated[SecretStr, Field(min_length=8)] | None = None
    models_dir: _Path = Field(default_factory=paths.models_dir)
    dtype: DTypeName = "auto"
    quant: QuantName = "none"
    activations: Activations = "exact"
    device_map: Literal["none", "auto"] = "none"
    memory_mb: Annotated[int, Field(ge=0, le=100_000_000)] = 0
    threads: Annotated[int, Field(ge=0, le=1024)] = 0
    log_level: LogLevel = "info"
    log_json: bool = False
    queue_limit: Annotated[int, Field(ge=0, le=10_000)] = 64
    max_running: Annotated[int, Field(ge=1, le=1024)] = 16
    deterministic: bool = False
    cache_mb: Annotated[int, Field(ge=0, le=10_000_000)] = 1024
    hop_timeout_s: Annotated[float, Field(gt=0, le=600)] = 8.0
    pass_timeout_floor_s: Annotated[float, Field(gt=0, le=600)] = 2.0
    hedge_share: Annotated[float, Field(ge=0, le=1)] = 0.1
    drain_s: Annotated[float, Field(ge=0, le=600)] = 3.0

    @field_validator(
        "port",
        "memory_mb",
        "threads",
        "queue_limit",
        "max_running",
        "cache_mb",
        "hop_timeout_s",
        "pass_timeout_floor_s",
        "hedge_share",
        "drain_s",
        mode="before",
    )
    @classmethod
    def _no_bool(cls, value: object, info: ValidationInfo) -> object:
        if isinstance(value, bool):
            raise ValueError("want a number")  # python counts True as 1
        return value

    @model_validator(mode="after")
    def _reachable(self) -> Self:
        """A host that only this machine can call must not announce parts to a swarm of others."""
        far = [address for address in self.join if not address.startswith(_LOCAL)]
        if far and self.layers != "none" and f"/ip4/{self.host}".startswith(_LOCAL):
            raise ValueError(
                f"host {self.host} cannot be called from the swarm of {far[0]}; set --host 0.0.0.0, "
                "or --layers none to host nothing"
            )
        return self

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        *others: PydanticBaseSettingsSource,
        **more: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Only what `resolve` passes: it reads the sources itself, because it remembers who said what."""
        return (init_settings,)


@dataclass(frozen=True, slots=True)
class Resolved:
    """`origins` says for each key where its value comes from: "flag", "env GLOSSD_X", "file PATH" or "default".

    `file` is the TOML file that was read, if any.
    """

    settings: Settings
    origins: dict[str, str]
    file: Path | None


def resolve(flags: Mapping[str, Any]) -> Resolved:
    """`flags` maps keys to values, None meaning not given; its key "config" names the TOML file. Raises ConfigError."""
    given = {key: value for key, value in flags.items() if value is not None}
    file = _file(given.pop("config", None))
    layers = [("flag", given), ("env", _environment())]
    if file is not None:
        layers.append((f"file {file}", _toml(file)))

    values: dict[str, Any] = {}
    origins = dict.fromkeys(Settings.model_fields, "default")
    for origin, layer in reversed(layers):
        for key, value in layer.items():
            _check_known(key, origin)
            values[key] = value
            origins[key] = f"env {ENV_PREFIX}{key.upper()}" if origin == "env" else origin
    try:
        return Resolved(Settings(**values), origins, file)
    except ValidationError as error:
        first = error.errors()[0]
        if not first["loc"]:
            raise ConfigError(first["msg"].removeprefix("Value error, ")) from None
        key = str(first["loc"][0])
        want = first["msg"].removeprefix("Value error, ")
        shown = "" if key == "http_token" else f" is {values.get(key)!r}"
        raise ConfigError(f"{key}{shown} ({origins[key]}): {want[0].lower()}{want[1:]}") from None


def config_path(named: str | Path | None = None) -> Path:
    """Where the TOML file is looked for: where the caller says, or GLOSSD_CONFIG, or the user's config folder."""
    return Path(named or os.environ.get(f"{ENV_PREFIX}CONFIG") or paths.config_file()).expanduser()


def _file(named: str | Path | None) -> Path | None:
    path = config_path(named)
    if path.is_file():
        return path
    if path == paths.config_file():
        return None
    raise ConfigError(f"there is no config file {path}; `glossd config path` prints where one is looked for")


def _toml(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{file} cannot be read as TOML: {error}") from None


def _environment() -> dict[str, Any]:
    for name in os.environ:
        key = name.removeprefix(ENV_PREFIX).lower()
        if name.startswith(ENV_PREFIX) and key != "config":
            _check_known(key, f"env {name}")
    return EnvSettingsSource(Settings, env_ignore_empty=True)()


def _check_known(key: str, origin: str) -> None:
    if key in Settings.model_fields:
        return
    near = difflib.get_close_matches(key, Settings.model_fields, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]}?" if near else "`glossd config show` lists all keys"
    raise ConfigError(f"unknown setting {key} ({origin}); {hint}")
